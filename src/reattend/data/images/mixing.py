"""Labels that are spread and mixed: label smoothing, mixup and cutmix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from timm.data.mixup import cutmix_bbox_and_lam
from torch import Tensor
from torch.nn import functional as F

from reattend.config.schema import AugmentationConfig


@dataclass(frozen=True)
class Mixing:
    """timm's `Mixup` in its mode "batch", of micro-batches of any size.

    With probability `mix_probability` every row i is mixed with row B - 1 - i: the images are lam x_i + (1 - lam) x_j
    (mixup: Zhang et al., ICLR 2018), or one box of all images is from x_j and 1 - lam is its share of the image
    (cutmix: Yun et al., ICCV 2019), with lam from Beta(alpha, alpha). Labels are lam t_i + (1 - lam) t_j, where t has
    1 - s + s / C at the class and s / C elsewhere.
    """

    augmentation: AugmentationConfig
    classes: int

    def __call__(self, x: Tensor, y: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """Mixes `x` (B, C, S, S) in place and gives labels (B, classes), drawing from NumPy's global generator.

        A row whose partner is not `usable` (B,) stays as it is.
        """
        smoothing = self.augmentation.label_smoothing
        targets = F.one_hot(y, self.classes).float() * (1.0 - smoothing) + smoothing / self.classes
        share, box = self._draw(x.shape)
        if share == 1.0:
            return x, targets
        rows = torch.arange(len(x))
        partner = torch.where(usable.flip(0), rows.flip(0), rows)
        if box is None:
            others = x[partner].mul_(1.0 - share)
            x.mul_(share).add_(others)
        else:
            top, bottom, left, right = box
            x[:, :, top:bottom, left:right] = x[partner, :, top:bottom, left:right]
        return x, targets * share + targets[partner] * (1.0 - share)

    def _draw(self, shape: torch.Size) -> tuple[float, tuple[int, int, int, int] | None]:
        """The share lam of a row itself, and the box of cutmix."""
        chosen = self.augmentation
        alphas = [alpha for alpha in (chosen.mixup, chosen.cutmix) if alpha]
        if not alphas or np.random.rand() >= chosen.mix_probability:
            return 1.0, None
        cut = not chosen.mixup
        if len(alphas) == 2:
            cut = bool(np.random.rand() < chosen.switch_probability)
        alpha = chosen.cutmix if cut else chosen.mixup
        share = float(np.random.beta(alpha, alpha))
        if not cut or share == 1.0:
            return share, None
        box, share = cutmix_bbox_and_lam(shape, share)
        return float(share), box


def mixing(augmentation: AugmentationConfig, classes: int) -> Mixing | None:
    """What the recipe does to labels; None where they stay classes."""
    used = augmentation.mixup or augmentation.cutmix or augmentation.label_smoothing
    return Mixing(augmentation, classes) if used else None
