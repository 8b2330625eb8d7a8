"""Seeds that follow from what they are for, never from the order in which things happen. Pure."""

from __future__ import annotations

import hashlib


def mix_seed(*parts: object) -> int:
    """A seed that follows from all parts, and differs if one of them does. Every engine takes numbers of its size.

    >>> mix_seed("run", 3) == mix_seed("run", 3), mix_seed("run", 3) == mix_seed("run", 4), mix_seed("run") < 2**31
    (True, False, True)
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
