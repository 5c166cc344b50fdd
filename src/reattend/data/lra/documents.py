"""Documents as bytes: byte b is token b + 1, as in TensorFlow Datasets' ByteTextEncoder; 0 is padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reattend.data.lra.raw import STORED_BYTES
from reattend.data.prepared.arrays import Block

VOCABULARY = 257
SAMPLES_PER_BLOCK = 2048
_LAST = 255


def byte_block(documents: Sequence[Sequence[bytes]], labels: Sequence[int]) -> Block:
    """Token ids of the first 4,096 bytes of each document.

    Args:
        documents: for each document of a sample, that of all samples.
        labels: class of each sample.
    """
    tokens, lengths = [], []
    for column in documents:
        cut = [document[:STORED_BYTES] for document in column]
        values = np.frombuffer(b"".join(cut), np.uint8)
        # Byte 255, which no UTF-8 text has, is token 256.
        wide = len(values) > 0 and int(values.max()) == _LAST
        tokens.append(values.astype(np.uint16) + np.uint16(1) if wide else values + np.uint8(1))
        lengths.append(np.array([len(document) for document in cut], dtype=np.int64))
    return Block(tuple(tokens), tuple(lengths), np.array(labels, dtype=np.int64))
