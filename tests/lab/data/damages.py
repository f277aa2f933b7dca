"""Random damage to files, the same for the same seed."""

from __future__ import annotations

import random


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return a content with one to three changes: flipped, cut, left out, doubled or inserted bytes."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(changed) + 1)
        length = rng.choice([1, 2, 4, 16, 200])
        match rng.choice(["flip", "flip", "flip", "set", "cut", "remove", "double", "insert"]):
            case "flip":
                changed[place : place + 1] = bytes(byte ^ 1 << rng.randrange(8) for byte in changed[place : place + 1])
            case "set":
                changed[place : place + 1] = rng.choice([b"\0", b"\xff", b"\n", b"0"])
            case "cut":
                del changed[place:]
            case "remove":
                del changed[place : place + length]
            case "double":
                changed[place:place] = changed[place : place + length]
            case "insert":
                changed[place:place] = rng.randbytes(length)
    return bytes(changed)
