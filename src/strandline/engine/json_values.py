"""Python values as JSON texts, for everything that users hand over as a value."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import msgspec

_encode = msgspec.json.Encoder(decimal_format="number").encode
# The encoder writes floats that are not finite as null, and decimals by their name.
_SUSPICIOUS = (b"null", b"NaN", b"Infinity")


def encode(value: Any) -> bytes:
    """The JSON of a value; a Decimal is a number with all its digits.

    TypeError, ValueError or RecursionError if JSON cannot express the value, such as NaN and the infinities.
    """
    text = _encode(value)
    if any(mark in text for mark in _SUSPICIOUS):
        _check_finite(msgspec.to_builtins(value, builtin_types=(Decimal, msgspec.Raw)), "")
    return text


def _check_finite(value: Any, place: str) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _check_finite(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_finite(item, f"{place}[{index}]")
    elif isinstance(value, float | Decimal) and not math.isfinite(value):
        raise ValueError(f"{value} at {place or 'its top'} is not a number of JSON; use null or leave it out")
