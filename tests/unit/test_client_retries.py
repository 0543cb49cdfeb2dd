"""Requests that are sent again."""

from __future__ import annotations

import httpx
import pytest

from strandline.client import retries
from strandline.errors import Conflict, OutcomeUnknown, StorageFull, StrandlineError, Unavailable


class Answers:
    """Gives the answers in order; the last one again and again."""

    def __init__(self, *answers: StrandlineError | str) -> None:
        self._answers = [*answers]
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, StrandlineError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(retries, "_PAUSES_S", (0.0, 0.0))


def test_it_is_sent_until_it_is_answered():
    send = Answers(Unavailable("away"), OutcomeUnknown("lost"), "done")
    assert retries.persistent(send, 60) == "done"
    assert send.asked == 3


@pytest.mark.parametrize("error", [Conflict("taken"), StorageFull("full")])
def test_other_errors_are_raised_at_once(error):
    send = Answers(error, "done")
    with pytest.raises(type(error)):
        retries.persistent(send, 60)
    assert send.asked == 1


@pytest.mark.parametrize("last", [Unavailable("away"), StorageFull("full")])
def test_what_may_have_happened_stays_unknown(last):
    """Although the last attempt certainly did not take place."""
    with pytest.raises(OutcomeUnknown, match="lost"):
        retries.persistent(Answers(OutcomeUnknown("lost"), last), 60)


def test_what_is_not_repeatable_is_sent_again_only_if_it_was_not_sent():
    """An answer of 503 may come from a gateway that has passed the request on."""
    refused, busy = Unavailable("away"), Unavailable("busy")
    refused.__cause__ = httpx.ConnectError("refused")
    for answers, asked in (((refused, refused, "done"), 3), ((refused, busy), 2), ((OutcomeUnknown("lost"),), 1)):
        send = Answers(*answers, "done")
        if answers[-1] == "done":
            assert retries.persistent(send, 60, repeatable=False) == "done"
        else:
            with pytest.raises(type(answers[-1]), match=answers[-1].detail):
                retries.persistent(send, 60, repeatable=False)
        assert send.asked == asked


def test_it_ends_after_the_timeout():
    send = Answers(Unavailable("away"))
    with pytest.raises(Unavailable):
        retries.persistent(send, -1)
    assert send.asked == 1
