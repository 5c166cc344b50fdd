"""What is known about sets of the archives without having their files: shapes, classes and sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
        confirmed: whether all this was read in the files themselves; else it is recalled, and label names may differ.
    """

    archive: str
    channels: int
    length: int
    cases: tuple[int, int]
    class_labels: tuple[str, ...] = ()
    equal_length: bool = True
    confirmed: bool = False

    @property
    def kind(self) -> str:
        """What is learned: "classification" or "regression"."""
        return "classification" if self.class_labels else "regression"

    @property
    def training_values(self) -> int:
        """Numbers in the training file, with every series at full length."""
        return self.cases[0] * self.channels * self.length

    @property
    def megabytes(self) -> float:
        """Rough size of the two text files, at ten bytes a value."""
        return sum(self.cases) * self.channels * self.length * 10 / 1e6


def _numbers(first: int, last: int, suffix: str = "") -> tuple[str, ...]:
    return tuple(f"{number}{suffix}" for number in range(first, last + 1))


def _words(names: str) -> tuple[str, ...]:
    return tuple(names.split())


# Read in the files that sktime ships.
_SHIPPED = {
    "JapaneseVowels": KnownSet("uea", 12, 26, (270, 370), _numbers(1, 9), equal_length=False),
    "BasicMotions": KnownSet("uea", 6, 100, (40, 40), _words("Standing Running Walking Badminton")),
    "OSULeaf": KnownSet("ucr", 1, 427, (200, 242), _numbers(1, 6)),
    "ACSF1": KnownSet("ucr", 1, 1460, (100, 100), _numbers(0, 9)),
    "PLAID": KnownSet("ucr", 1, 1344, (537, 537), _numbers(0, 10), equal_length=False),
    "ArrowHead": KnownSet("ucr", 1, 251, (36, 175), _numbers(0, 2)),
    "GunPoint": KnownSet("ucr", 1, 150, (50, 150), _numbers(1, 2)),
    "ItalyPowerDemand": KnownSet("ucr", 1, 24, (67, 1029), _numbers(1, 2)),
    "Tecator": KnownSet("tser", 1, 100, (172, 43)),
    "Covid3Month": KnownSet("tser", 1, 84, (140, 61)),
}

_PHONEMES = _words(
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH"
)
_GEESE = _words(
    "Black-bellied_Whistling_Duck Canadian_Goose Greylag_Goose Pink-footed_Goose White-faced_Whistling_Duck"
)
_INSECTS = _words(
    "aedes_female aedes_male fruit_flies house_flies quinx_female quinx_male stigma_female stigma_male "
    "tarsalis_female tarsalis_male"
)
_RACKETS = _words("Badminton_Smash Badminton_Clear Squash_ForehandBoast Squash_BackhandBoast")
_SUPERNOVAE = _words("6 15 16 42 52 53 62 64 65 67 88 90 92 95")

# The other 28 of the UEA archive's thirty sets (Bagnall et al., arXiv 1811.00075; sizes as in its .ts files).
_UEA = {
    "ArticularyWordRecognition": KnownSet("uea", 9, 144, (275, 300), _numbers(1, 25, ".0")),
    "AtrialFibrillation": KnownSet("uea", 2, 640, (15, 15), _words("n s t")),
    "CharacterTrajectories": KnownSet("uea", 3, 182, (1422, 1436), _numbers(1, 20), equal_length=False),
    "Cricket": KnownSet("uea", 6, 1197, (108, 72), _numbers(1, 12, ".0")),
    "DuckDuckGeese": KnownSet("uea", 1345, 270, (50, 50), _GEESE),
    "EigenWorms": KnownSet("uea", 6, 17984, (128, 131), _numbers(1, 5)),
    "Epilepsy": KnownSet("uea", 3, 206, (137, 138), _words("EPILEPSY WALKING RUNNING SAWING")),
    "ERing": KnownSet("uea", 4, 65, (30, 270), _numbers(1, 6)),
    "EthanolConcentration": KnownSet("uea", 3, 1751, (261, 263), _words("E35 E38 E40 E45")),
    "FaceDetection": KnownSet("uea", 144, 62, (5890, 3524), _numbers(0, 1)),
    "FingerMovements": KnownSet("uea", 28, 50, (316, 100), _words("left right")),
    "HandMovementDirection": KnownSet("uea", 10, 400, (160, 74), _words("right forward left backward")),
    "Handwriting": KnownSet("uea", 3, 152, (150, 850), _numbers(1, 26, ".0")),
    "Heartbeat": KnownSet("uea", 61, 405, (204, 205), _words("normal abnormal")),
    "InsectWingbeat": KnownSet("uea", 200, 22, (25000, 25000), _INSECTS, equal_length=False),
    "Libras": KnownSet("uea", 2, 45, (180, 180), _numbers(1, 15)),
    "LSST": KnownSet("uea", 6, 36, (2459, 2466), _SUPERNOVAE),
    "MotorImagery": KnownSet("uea", 64, 3000, (278, 100), _words("finger tongue")),
    "NATOPS": KnownSet("uea", 24, 51, (180, 180), _numbers(1, 6, ".0")),
    "PEMS-SF": KnownSet("uea", 963, 144, (267, 173), _numbers(1, 7, ".0")),
    "PenDigits": KnownSet("uea", 2, 8, (7494, 3498), _numbers(0, 9)),
    "PhonemeSpectra": KnownSet("uea", 11, 217, (3315, 3353), _PHONEMES),
    "RacketSports": KnownSet("uea", 6, 30, (151, 152), _RACKETS),
    "SelfRegulationSCP1": KnownSet("uea", 6, 896, (268, 293), _words("negativity positivity")),
    "SelfRegulationSCP2": KnownSet("uea", 7, 1152, (200, 180), _words("negativity positivity")),
    "SpokenArabicDigits": KnownSet("uea", 13, 93, (6599, 2199), _numbers(1, 10), equal_length=False),
    "StandWalkJump": KnownSet("uea", 4, 2500, (12, 15), _words("standing walking jumping")),
    "UWaveGestureLibrary": KnownSet("uea", 3, 315, (120, 320), _numbers(1, 8, ".0")),
}

# The six regression sets of gzerveas/mvts_transformer's paper (Tan et al., arXiv 2006.10996).
_TSER = {
    "AppliancesEnergy": KnownSet("tser", 24, 144, (95, 42)),
    "BenzeneConcentration": KnownSet("tser", 8, 240, (3433, 5445)),
    "BeijingPM10Quality": KnownSet("tser", 9, 24, (12432, 5100)),
    "BeijingPM25Quality": KnownSet("tser", 9, 24, (12432, 5100)),
    "LiveFuelMoistureContent": KnownSet("tser", 7, 365, (3493, 1510)),
    "IEEEPPG": KnownSet("tser", 5, 1000, (1768, 1328)),
}

KNOWN_SETS = {**{name: replace(known, confirmed=True) for name, known in _SHIPPED.items()}, **_UEA, **_TSER}
