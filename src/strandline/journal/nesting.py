"""How deeply a JSON text is nested.

The recursion limit of Python covers the stack of the caller and the nesting of the text that it decodes. So what
one process could store, another could fail to read. A limit of our own keeps every stored text readable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")

#: Arrays and objects inside each other in a payload or metadata: half of Python's limit.
MAX_NESTING = 500
# The objects and arrays in which a value or a header has a payload or metadata.
_AROUND = 4

_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_OTHERS = bytes(code for code in range(256) if code not in b"[]{}")
# As signed bytes, a bracket that opens is 1 and one that closes is -1.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def is_too_deep(text: bytes, limit: int = MAX_NESTING) -> bool:
    """Whether more arrays and objects than that are inside each other in a JSON text."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    steps = _STRINGS.sub(b"", text).translate(_STEPS, _OTHERS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > limit


def decoded(decode: Callable[[bytes], T], text: bytes) -> T:
    """The value of a stored text. ValueError if it is nested too deeply, whatever stack the caller has left.

    A RecursionError is left as it is: the caller has little stack left, and another one can decode the text.
    """
    if is_too_deep(text, MAX_NESTING + _AROUND):
        raise ValueError(f"more than {MAX_NESTING} arrays and objects are inside each other")
    return decode(text)
