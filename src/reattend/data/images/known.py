"""The sets of images that have a task here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Statistics = tuple[tuple[float, ...], tuple[float, ...]]

# Mean and standard deviation of each channel; those of ImageNet, as timm has them, for all that is in colour.
IMAGENET: Statistics = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FASHION_MNIST: Statistics = (0.2860,), (0.3530,)


@dataclass(frozen=True)
class KnownSet:
    """What is known of a set before its files are read.

    Attributes:
        task: one that learns from it.
        folders: where its files may be, below data.root, in the order in which they are looked for.
        source: where a person gets it, and how large it is.
        sizes: images of "train" and "test"; empty where unknown.
        classes: their number.
        channels: 3, or 1 for grey.
        statistics: mean and standard deviation that images are normalised with.
    """

    task: str
    folders: tuple[str, ...]
    source: str
    classes: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    channels: int = 3
    statistics: Statistics = IMAGENET


_IMAGENET_SOURCE = (
    "Source: https://image-net.org/download-images, ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar (138 and 6 GB),"
    " or https://huggingface.co/datasets/ILSVRC/imagenet-1k (parquet, 150 GB); both want an account. The folders may be"
    " links."
)

KNOWN: dict[str, KnownSet] = {
    "imagenet-1k": KnownSet(
        "imagenet/deit_tiny", ("imagenet-1k",), _IMAGENET_SOURCE, 1000, {"train": 1_281_167, "test": 50_000}
    ),
    "imagenet-100": KnownSet(
        "imagenet100/deit_small",
        ("imagenet-100", "imagenet-1k"),
        f"That may be a tree of its 100 classes or the whole of ImageNet. {_IMAGENET_SOURCE}",
        100,
    ),
    "fashion_mnist": KnownSet(
        "image/fashion_mnist",
        ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw"),
        "Source: https://github.com/zalandoresearch/fashion-mnist, or Debian's package dataset-fashion-mnist and "
        "data.root=/usr/share/datasets (31 MB). With a network the command below fetches it by torchvision.",
        10,
        {"train": 60_000, "test": 10_000},
        1,
        FASHION_MNIST,
    ),
    "cifar10": KnownSet(
        "image/cifar10",
        ("cifar10/cifar-10-batches-py", "cifar-10-batches-py", "lra/image/cifar-10-batches-py"),
        "Source: https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz (170 MB), unpacked. With a network the "
        "command below fetches it by torchvision.",
        10,
        {"train": 50_000, "test": 10_000},
    ),
}
