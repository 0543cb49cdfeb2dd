"""Publishes in this process: each goes through the gate of its event type, and small ones share one append."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from strandline.errors import Invalid
from strandline.log import preparation
from strandline.log.combining import Combiner
from strandline.log.gate import Waiting
from strandline.log.model import PublishReport
from strandline.log.preparation import Events
from strandline.log.publish_attempt import PublishAttempt, PublishContext, PublishFuture
from strandline.log.publish_threads import PublishThreads
from strandline.log.settings import LogSettings

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Publish = tuple[Events, str | None]

# For a publish no larger than this, the catalog lookup and the wait for the disk are most of the work.
_SMALL_BYTES = 4096
_SMALL_COUNT = 8
# At most this many small publishes share one lookup and one wait, so that the first one does not wait long.
_TOGETHER = 256


class Publisher:
    def __init__(self, context: PublishContext, settings: LogSettings) -> None:
        self._context = context
        self._settings = settings
        self._threads = PublishThreads(context.event_types)
        self._combiners: dict[str, Combiner[_Publish, PublishReport]] = {}

    def submit(self, name: str, events: Events, flow_id: str | None, *, waits: bool = False) -> PublishFuture:
        """Start a publish. `waits`: this thread asks for the result next."""
        items = preparation.to_items(events, self._settings.max_batch_events)
        return self._submit(name, items, flow_id, waits=waits)

    def _submit(self, name: str, items: Sequence[bytes], flow_id: str | None, *, waits: bool) -> PublishFuture:
        node = self._context.node
        if not node.has_gate(name):
            self._context.event_types.compiled(name)  # raises NotFound before any state is created for the name
        node.ready_to_publish()
        done = PublishFuture(items, threading.get_ident() if waits else None)
        deadline_ms = self._context.clock.steady_ms() + self._settings.publish_wait_ms
        start = PublishAttempt(self._context, name, flow_id, done).start
        node.gate(name).enter(Waiting(start, done.set_exception, deadline_ms))
        return done

    def publish(self, name: str, events: Events, flow_id: str | None) -> PublishReport:
        if not _is_small(events):
            return self._wait(self.submit(name, events, flow_id, waits=True))
        try:
            return self._combiner(name).do((events, flow_id), self._timeout)
        except TimeoutError:
            return preparation.unanswered_report(events)

    def close(self) -> None:
        self._threads.close()
        for combiner in self._combiners.values():
            combiner.finish()

    @property
    def _timeout(self) -> float:
        return self._settings.publish_deadline_ms / 1000

    def _wait(self, future: PublishFuture) -> PublishReport:
        try:
            return future.result(self._timeout)
        except TimeoutError:
            log.warning("the outcome of a publish is unknown: the storage did not answer in time")
            return preparation.unanswered_report(future.items)

    # -- small publishes

    def _combiner(self, name: str) -> Combiner[_Publish, PublishReport]:
        found = self._combiners.get(name)
        if found is None:
            self._context.event_types.compiled(name)  # raises NotFound before any state is created for the name
            threads = self._threads.of(name)
            made = Combiner(partial(self._publish_all, name), threads, weight=lambda _: 1 / _TOGETHER)
            found = self._combiners.setdefault(name, made)
        return found

    def _publish_all(self, name: str, group: Sequence[_Publish]) -> list[PublishReport | Exception]:
        """Publish the group as one if the reports and records stay the same, else one by one."""
        if len(group) > 1 and self._context.event_types.entry(name).event_type.category == "undefined":
            together = self._as_one(name, group)
            if together is not None:
                return together
        started = [_outcome(partial(self.submit, waits=True), name, *publish) for publish in group]
        return [found if isinstance(found, Exception) else _outcome(self._wait, found) for found in started]

    def _as_one(self, name: str, group: Sequence[_Publish]) -> list[PublishReport | Exception] | None:
        """The reports; None if a publish breaks a rule, because the others must not fail with it."""
        most = self._settings.max_batch_events
        try:
            parts = [preparation.to_items(events, most) for events, _ in group]
        except Invalid:
            return None
        items = [item for part in parts for item in part]
        report = self._wait(self._submit(name, items, None, waits=True))
        if report.rejected:
            return None
        return [*preparation.split_report(report, [len(part) for part in parts])]


def _is_small(events: Events) -> bool:
    if isinstance(events, bytes | str):
        return len(events) <= _SMALL_BYTES
    return isinstance(events, list | tuple) and len(events) <= _SMALL_COUNT


def _outcome(act: Callable[..., _T], *arguments: Any) -> _T | Exception:
    try:
        return act(*arguments)
    except Exception as error:  # noqa: BLE001 - other publishes must not fail with it
        return error
