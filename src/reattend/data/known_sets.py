"""What is known about sets of the archives without having their files: shapes, classes and sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownSet:
    """Shape of a set of an archive.

    Attributes:
        archive: "uea", "ucr" or "tser".
        channels: channels of every series.
        length: steps of the longest training series.
        cases: training and test cases.
        class_labels: names of the classes; empty for regression.
        equal_length: whether all series have `length` steps.
    """

    archive: str
    channels: int
    length: int
    cases: tuple[int, int]
    class_labels: tuple[str, ...] = ()
    equal_length: bool = True

    @property
    def megabytes(self) -> float:
        """Rough size of the two text files, at ten bytes a value."""
        return sum(self.cases) * self.channels * self.length * 10 / 1e6


def _numbers(first: int, last: int, suffix: str = "") -> tuple[str, ...]:
    return tuple(f"{number}{suffix}" for number in range(first, last + 1))


# Read in the files that sktime ships.
_SHIPPED = {
    "JapaneseVowels": KnownSet("uea", 12, 26, (270, 370), _numbers(1, 9), equal_length=False),
    "BasicMotions": KnownSet("uea", 6, 100, (40, 40), ("Standing", "Running", "Walking", "Badminton")),
    "OSULeaf": KnownSet("ucr", 1, 427, (200, 242), _numbers(1, 6)),
    "ACSF1": KnownSet("ucr", 1, 1460, (100, 100), _numbers(0, 9)),
    "PLAID": KnownSet("ucr", 1, 1344, (537, 537), _numbers(0, 10), equal_length=False),
    "ArrowHead": KnownSet("ucr", 1, 251, (36, 175), _numbers(0, 2)),
    "GunPoint": KnownSet("ucr", 1, 150, (50, 150), _numbers(1, 2)),
    "ItalyPowerDemand": KnownSet("ucr", 1, 24, (67, 1029), _numbers(1, 2)),
    "Tecator": KnownSet("tser", 1, 100, (172, 43)),
    "Covid3Month": KnownSet("tser", 1, 84, (140, 61)),
}

# The rest of the ten sets of the primal-dual paper, as the archive describes them (Bagnall et al., arXiv 1811.00075);
# label names are recalled, not read.
_NOT_SHIPPED = {
    "EthanolConcentration": KnownSet("uea", 3, 1751, (261, 263), ("E35", "E38", "E40", "E45")),
    "FaceDetection": KnownSet("uea", 144, 62, (5890, 3524), _numbers(0, 1)),
    "Handwriting": KnownSet("uea", 3, 152, (150, 850), _numbers(1, 26, ".0")),
    "Heartbeat": KnownSet("uea", 61, 405, (204, 205), ("normal", "abnormal")),
    "PEMS-SF": KnownSet("uea", 963, 144, (267, 173), _numbers(1, 7, ".0")),
    "SelfRegulationSCP1": KnownSet("uea", 6, 896, (268, 293), ("negativity", "positivity")),
    "SelfRegulationSCP2": KnownSet("uea", 7, 1152, (200, 180), ("negativity", "positivity")),
    "SpokenArabicDigits": KnownSet("uea", 13, 93, (6599, 2199), _numbers(1, 10), equal_length=False),
    "UWaveGestureLibrary": KnownSet("uea", 3, 315, (120, 320), _numbers(1, 8, ".0")),
}

KNOWN_SETS = {**_SHIPPED, **_NOT_SHIPPED}
