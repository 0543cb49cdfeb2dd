"""Small publishes of callers that do not wait in a thread, such as the requests of a server.

Publishes of one event type that arrive while others are stored form the next group. A group needs one thread, one
look at the catalog and one commit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from strandline.errors import Unavailable
from strandline.log.event_json import Events
from strandline.log.publish_attempt import Done, Outcome
from strandline.log.publish_threads import PublishThreads

log = logging.getLogger(__name__)

# So that the first publish of a group does not wait long for the last one.
_MOST = 256
# After this many groups a thread yields to other event types of the storage.
_TURN_GROUPS = 16


class SmallPublish(NamedTuple):
    events: Events
    flow_id: str | None
    done: Done

    def answer(self, outcome: Outcome) -> None:
        try:
            self.done(outcome)
        except Exception:
            log.exception("the outcome of a publish could not be handed over")


class PublishGroups:
    """`start` starts the publishes of one event type; it must not wait for a timeline switch."""

    def __init__(self, threads: PublishThreads, start: Callable[[str, Sequence[SmallPublish]], None]) -> None:
        self._threads = threads
        self._start = start
        self._lock = threading.Lock()
        # By event type. An event type has an entry while a thread works on its publishes, or will do so next.
        self._waiting: dict[str, list[SmallPublish]] = {}

    def add(self, name: str, publish: SmallPublish) -> None:
        """Publish soon, in the order of the calls. Unavailable after the threads were closed."""
        with self._lock:
            waiting = self._waiting.get(name)
            if waiting is not None:
                waiting.append(publish)
            elif self._called(name):
                self._waiting[name] = [publish]
            else:
                raise Unavailable("this process is closing the log")

    def _called(self, name: str) -> bool:
        """Ask for a thread. False if the threads are closed."""
        try:
            self._threads.submit(name, partial(self._serve, name))
        except RuntimeError:
            return False
        return True

    def _serve(self, name: str) -> None:
        turn = 0
        while group := self._next_group(name):
            self._start_group(name, group)
            turn += 1
            # If the threads are closed, this one serves the rest.
            if turn % _TURN_GROUPS == 0 and self._called(name):
                return

    def _next_group(self, name: str) -> list[SmallPublish]:
        with self._lock:
            waiting = self._waiting[name]
            group = waiting[:_MOST]
            del waiting[:_MOST]
            if not group:
                del self._waiting[name]
        return group

    def _start_group(self, name: str, group: Sequence[SmallPublish]) -> None:
        try:
            self._start(name, group)
        except Exception as error:  # noqa: BLE001 - every caller gets it
            for publish in group:
                publish.answer(error)
