"""From the bytes of a file to an image, or to the reason why there is none."""

from __future__ import annotations

import io
import warnings

from PIL import Image, UnidentifiedImageError

HEAD, TAIL = 8, 12  # bytes that `looks_whole` looks at

_PNG = b"\x89PNG\r\n\x1a\n"


class BadImageError(Exception):
    """The bytes of one file are no whole image."""


def decode(content: bytes) -> Image.Image:
    """The image in RGB, which grey, palette and CMYK images are converted to.

    Raises:
        BadImageError: nothing can be made of the bytes, or they end too early.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata and transparency, which are not looked at
            with Image.open(io.BytesIO(content)) as image:
                return image.convert("RGB")
    except UnidentifiedImageError as error:  # Pillow would name the object in memory
        raise BadImageError("of no form that Pillow knows" if content else "it is empty") from error
    # Whatever a damaged file makes of Pillow's parsers: OSError, SyntaxError, struct.error, IndexError, ...
    except Exception as error:
        raise BadImageError(str(error) or type(error).__name__) from error


def looks_whole(head: bytes, tail: bytes) -> bool:
    """Whether a file begins and ends as a JPEG or PNG does, by its first 8 and last 12 bytes.

    Some whole files do not: those have to be decoded.
    """
    if head.startswith(b"\xff\xd8\xff"):
        return tail.endswith(b"\xff\xd9")
    return head == _PNG and tail[4:8] == b"IEND"
