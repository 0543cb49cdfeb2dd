"""Errors: families, default messages and pickling."""

from __future__ import annotations

import pickle
import re

import pytest

from strandline import errors
from strandline.errors import (
    Invalid,
    InvalidCursor,
    PublishFailed,
    Sealed,
    StrandlineError,
    Unavailable,
    families,
)
from strandline.log.model import ItemResult

KINDS = sorted(
    (kind for kind in families().values() if kind.__module__ == StrandlineError.__module__),
    key=lambda kind: kind.__name__,
)


def make(kind: type[StrandlineError], detail: str | None = None, **info: object) -> StrandlineError:
    if kind is InvalidCursor:
        info = {"reason": "UNAVAILABLE", **info}
    return kind(detail, **info)


def every_class() -> list[type[StrandlineError]]:
    found = [StrandlineError]
    for kind in found:
        found.extend(kind.__subclasses__())
    # Other modules define more classes; they are known only after an import.
    return [kind for kind in found if kind.__module__ == StrandlineError.__module__]


def test_every_class_has_a_code_of_its_own():
    """Clients map a code to exactly one class."""
    assert sorted(every_class(), key=lambda kind: kind.__name__) == KINDS
    assert {code: kind.code for code, kind in families().items()} == {code: code for code in families()}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling(kind):
    """Class, message and machine-readable members are the same in another process."""
    error = make(kind, "it broke", token="t-1", retry_after=7, items=[ItemResult("failed", "validating", "no")])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.detail, copy.info, str(copy)) == ("it broke", error.info, "it broke")
    assert (copy.code, copy.status) == (error.code, error.status)


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_message_is_the_docstring(kind):
    """An error without a message has a default message of one sentence."""
    error = make(kind)
    assert str(error) == error.detail == kind.__doc__
    assert re.fullmatch(r"[A-Z][^\n]+\.", error.detail)


@pytest.mark.parametrize("kind", KINDS)
def test_statuses_are_those_of_the_tree_in_the_module_docstring(kind):
    """The tree names every class, and the statuses in it are those of the classes."""
    line = next(row for row in errors.__doc__.splitlines() if re.search(rf"\b{kind.__name__}\b", row))
    stated = re.search(r"\((\d{3})", line)
    assert stated is None or int(stated[1]) == kind.status


def test_members_that_errors_carry():
    """Reason, token, items and retry_after are attributes."""
    assert InvalidCursor("no", reason="NULL_OFFSET").reason == "NULL_OFFSET"
    assert Sealed(token="t-1").token == "t-1"
    assert PublishFailed().items == []
    assert PublishFailed(items=[1]).items == [1]
    assert Unavailable().retry_after == 1
    assert Unavailable(retry_after=0.5).retry_after == 0.5


def test_families_nest_by_what_the_caller_should_do():
    """`except Invalid` catches every error that a changed request can fix."""
    assert issubclass(InvalidCursor, Invalid)
    assert issubclass(errors.StorageFull, Unavailable)
    assert not issubclass(errors.OutcomeUnknown, Unavailable)


def test_the_cause_stays_reachable():
    """The driver's own error is in `__cause__`."""
    cause = OSError("disk")
    with pytest.raises(Unavailable) as caught:
        raise Unavailable from cause
    assert caught.value.__cause__ is cause
