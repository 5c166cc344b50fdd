"""What is done to an image before a model sees it, by timm's and torchvision's parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

from PIL import Image
from timm.data import auto_augment
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import str_to_interp_mode
from timm.data.transforms_factory import transforms_imagenet_train
from torchvision import transforms

from reattend.config.schema import AugmentationConfig
from reattend.errors import ReattendError

Transform = Callable[[Image.Image], Image.Image]
Interpolation = Literal["bicubic", "bilinear", "nearest"]


def evaluation_transform(image_size: int, crop_ratio: float, interpolation: Interpolation) -> Transform:
    """The short side becomes floor(S / crop_ratio), of which the central S x S are kept."""
    short = math.floor(image_size / crop_ratio)
    mode = str_to_interp_mode(interpolation)
    crop: Transform = transforms.Compose(
        [transforms.Resize(short, interpolation=mode), transforms.CenterCrop(image_size)]
    )
    return crop


def training_transform(
    augmentation: AugmentationConfig,
    image_size: int,
    crop_ratio: float,
    interpolation: Interpolation,
    mean: tuple[float, ...],
) -> Transform:
    """timm's order: crop, flip, then RandAugment or another policy, or else colour jitter.

    The crop is a random one that is resized, or that of evaluation, padded and cropped at random.

    Raises:
        ReattendError: timm does not know the policy.
    """
    try:
        crop_and_flip, colour, _ = transforms_imagenet_train(
            image_size,
            scale=augmentation.crop_scale,
            hflip=augmentation.flip,
            color_jitter=augmentation.color_jitter or None,  # type: ignore[arg-type]
            auto_augment=augmentation.auto_augment,
            interpolation=interpolation,
            mean=mean,
            separate=True,
        )
    except (AssertionError, ValueError, KeyError) as error:
        raise ReattendError(
            f"recipe.augmentation.auto_augment={augmentation.auto_augment}: timm knows no such policy ({error}). "
            "DeiT's is rand-m9-mstd0.5-inc1; null does without."
        ) from error
    steps = [*crop_and_flip.transforms, *colour.transforms]
    for step in steps:
        _allow_no_bits(step)
    if augmentation.crop_scale is None:
        steps[0] = evaluation_transform(image_size, crop_ratio, interpolation)
        if augmentation.pad:
            steps.insert(1, transforms.RandomCrop(image_size, padding=augmentation.pad))
    change: Transform = transforms.Compose(steps)
    return change


def erasing(probability: float) -> RandomErasing | None:
    """Replaces a rectangle of a normalised image by noise, in place; None where that never happens."""
    return RandomErasing(probability, mode="pixel", device="cpu") if probability else None


def _allow_no_bits(step: Any) -> None:
    """Lets posterizing keep 0 bits, as RandAugment does at its strongest: a black image, which Pillow 13 refuses."""
    policies = getattr(step, "policy", None) or [getattr(step, "ops", ())]
    for operation in itertools.chain.from_iterable(policies):
        if getattr(operation, "aug_fn", None) is auto_augment.posterize:
            operation.aug_fn = _posterize


def _posterize(image: Image.Image, bits_to_keep: int, **options: Any) -> Image.Image:
    if bits_to_keep < 1:
        return Image.new(image.mode, image.size)
    reduced: Image.Image = auto_augment.posterize(image, bits_to_keep, **options)
    return reduced
