"""JSON texts as publishers may write them: spaces, escapes, repeated keys, unusual numbers, and broken ones."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

NUMBERS = ["1.10", "1E5", "1e-400", "1E400", "-0", "1.0", "12345678901234567890123", "01", "9" * 4400]
_SPACES = st.sampled_from(["", "", "", " ", "\n\t"])
_CHANGES = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 1), st.binary(max_size=2)), max_size=2
) | st.just([])

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=[]), max_size=12)
)
values = st.recursive(
    scalars,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=3),
    max_leaves=6,
)


@st.composite
def texts(draw: st.DrawFn, value: Any) -> bytes:
    """The text of a value, perhaps broken by a changed byte."""
    text = _written(draw, value).encode("utf-8", "surrogatepass")
    for place, length, put in draw(_CHANGES):
        text = text[:place] + put + text[place + length :]
    return text


def _written(draw: st.DrawFn, value: Any) -> str:
    around = draw(_SPACES)
    if isinstance(value, dict):
        pairs = [*value.items()]
        if pairs and not draw(st.integers(0, 9)):
            pairs.insert(0, (draw(st.sampled_from(pairs))[0], draw(scalars)))  # a repeated key
        members = [f"{_string(draw, key)}{around}:{_written(draw, member)}" for key, member in pairs]
        return f"{around}{{{','.join(members)}{around}}}"
    if isinstance(value, list):
        return f"{around}[{','.join(_written(draw, member) for member in value)}]{around}"
    if isinstance(value, str):
        return around + _string(draw, value)
    if isinstance(value, int | float) and not isinstance(value, bool) and not draw(st.integers(0, 19)):
        return around + draw(st.sampled_from(NUMBERS))
    return around + json.dumps(value)


def _string(draw: st.DrawFn, value: str) -> str:
    if value and not draw(st.integers(0, 9)):
        return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 1 << 16 else c for c in value) + '"'
    return json.dumps(value, ensure_ascii=draw(st.booleans()))
