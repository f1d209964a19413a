"""Bytes of a file, changed as chance has it."""

from __future__ import annotations

import random
import struct

WILD = [0, 1, 2, 3, 7, 31, 255, 512, 513, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40]
WILD += [(1 << 63) - 1, 1 << 63, (1 << 64) - 1]
"""Numbers at the borders of their types."""


def mutate(content: bytes, header_end: int, rng: random.Random) -> bytes:
    """One to four changes, most of them in the header."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(header_end, len(data)) if rng.random() < 0.95 else len(data))
        change = rng.randrange(7)
        if change == 0:
            data[at] = rng.randrange(256)
        elif change == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif change == 2:
            data[at : at + 8] = struct.pack("<Q", rng.choice(WILD))
        elif change == 3:
            data[at : at + 4] = struct.pack("<I", rng.choice(WILD) & 0xFFFFFFFF)
        elif change == 4:
            del data[at : at + rng.choice((1, 4, 8, 64, 4096))]
        elif change == 5:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 64)))
        else:
            other = rng.randrange(header_end)
            n = rng.choice((4, 8, 40))
            data[at : at + n] = data[other : other + n]
        if not data:
            return b""
    if rng.random() < 0.1:
        del data[rng.randrange(len(data)) :]
    return bytes(data)
