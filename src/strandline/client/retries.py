"""Sends a request again while no node answers, such as during a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from strandline.client.transport import was_not_sent
from strandline.errors import OutcomeUnknown, StorageFull, Unavailable

_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
_T = TypeVar("_T")


def persistent(send: Callable[[], _T], timeout: float, *, repeatable: bool = True) -> _T:
    """The result of `send`, which may be called several times, but not after `timeout` seconds.

    It is called again after Unavailable and OutcomeUnknown, so it must be safe to repeat. If the outcome of an
    attempt was unknown, it stays unknown after later attempts that did not take place. What is not `repeatable`
    is called again only if its request was not sent.
    """
    deadline = time.monotonic() + timeout
    doubt: OutcomeUnknown | None = None
    for pause in (*_PAUSES_S, None):
        try:
            return send()
        except StorageFull as error:
            raise doubt or error from error
        except (Unavailable, OutcomeUnknown) as error:
            if not repeatable and not was_not_sent(error):
                raise
            doubt = error if isinstance(error, OutcomeUnknown) else doubt
            if pause is None or time.monotonic() + pause > deadline:
                raise doubt or error from error
        time.sleep(pause)
    raise AssertionError  # the last attempt returns or raises
