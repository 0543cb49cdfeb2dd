"""Publishes in this process: each goes through the gate of its event type, and small ones share one append."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from strandline.errors import Invalid
from strandline.log import event_json, preparation
from strandline.log.combining import Combiner
from strandline.log.direct_publish import publish_directly, store_directly
from strandline.log.event_json import Events
from strandline.log.model import CatalogEntry, PublishReport
from strandline.log.preparation import Prepared
from strandline.log.publish_attempt import Done, Outcome, PublishAttempt, PublishContext
from strandline.log.publish_groups import PublishGroups, SmallPublish
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
        self._timeout = settings.publish_deadline_ms / 1000
        self._threads = PublishThreads(context.event_types)
        self._combiners: dict[str, Combiner[_Publish, PublishReport]] = {}
        self._groups = PublishGroups(self._threads, self._start_group)

    def submit(self, name: str, events: Events, flow_id: str | None) -> Future[PublishReport]:
        """Start a publish."""
        future: Future[PublishReport] = Future()
        future.set_running_or_notify_cancel()  # a publish cannot be cancelled
        attempt = self._attempt(name, self._items(events), flow_id, partial(_set, future))
        attempt.enter(self._settings.publish_wait_ms)
        return future

    def publish(self, name: str, events: Events, flow_id: str | None) -> PublishReport:
        if not _is_small(events):
            return self._publish(name, self._items(events), flow_id)
        try:
            combiner = self._combiners.get(name) or self._new_combiner(name)
            return combiner.do((events, flow_id), self._timeout)
        except TimeoutError:
            return preparation.unanswered_report(events)

    def submit_small(self, name: str, events: Events, flow_id: str | None, done: Done) -> None:
        """Start a publish, together with others of the event type. `done` gets the outcome, in any thread."""
        self._groups.add(name, SmallPublish(events, flow_id, done))

    def _items(self, events: Events) -> list[bytes]:
        return event_json.to_items(events, self._settings.max_batch_events)

    def _attempt(
        self,
        name: str,
        items: Sequence[bytes],
        flow_id: str | None,
        done: Done | None = None,
        *,
        helps: bool = False,
    ) -> PublishAttempt:
        self._refuse_unready(name)
        return PublishAttempt(self._context, name, items, flow_id, done, helps=helps)

    def _refuse_unready(self, name: str) -> None:
        node = self._context.node
        if not node.has_gate(name):
            self._context.event_types.compiled(name)  # raises NotFound before any state is created for the name
        node.ready_to_publish()

    def _publish(self, name: str, items: Sequence[bytes], flow_id: str | None) -> PublishReport:
        self._refuse_unready(name)
        outcome = publish_directly(self._context, name, items, flow_id)
        if isinstance(outcome, PublishReport):
            return outcome
        return self._attempted(PublishAttempt(self._context, name, items, flow_id, prepared=outcome))

    def store(self, name: str, records: Prepared, entry: Callable[[], CatalogEntry]) -> PublishReport:
        """Store records that were prepared by the caller, for the event type that `entry` returns."""
        self._refuse_unready(name)
        outcome = None
        if records.fence is None:
            outcome = store_directly(self._context, name, lambda: (entry(), records))
        if isinstance(outcome, PublishReport):
            return outcome
        prepared = outcome or (entry().id, records)
        return self._attempted(PublishAttempt(self._context, name, (), None, prepared=prepared))

    def _attempted(self, attempt: PublishAttempt) -> PublishReport:
        try:
            attempt.enter(self._settings.publish_wait_ms)
            return self._wait(attempt, time.monotonic() + self._timeout)
        finally:
            attempt.hand_over()

    def threads(self, name: str) -> Executor:
        """The threads that publish to an event type."""
        return self._threads.of(name)

    def close(self) -> None:
        self._threads.close()
        for combiner in self._combiners.values():
            combiner.finish()

    def _wait(self, attempt: PublishAttempt, deadline: float) -> PublishReport:
        try:
            return attempt.wait(deadline)
        except TimeoutError:
            log.warning("the outcome of a publish is unknown: the storage did not answer in time")
            outcome = attempt.unknown()
            if isinstance(outcome, BaseException):
                raise outcome from None
            return outcome

    # -- small publishes

    def _new_combiner(self, name: str) -> Combiner[_Publish, PublishReport]:
        self._context.event_types.compiled(name)  # raises NotFound before any state is created for the name
        made = Combiner(partial(self._publish_all, name), self.threads(name), weight=lambda _: 1 / _TOGETHER)
        return self._combiners.setdefault(name, made)

    def _publish_all(self, name: str, group: Sequence[_Publish]) -> Sequence[PublishReport | Exception]:
        """Publish the group as one if the reports and records stay the same, else one by one."""
        if len(group) == 1:
            ((events, flow_id),) = group
            try:
                return [self._publish(name, self._items(events), flow_id)]
            except Exception as error:  # noqa: BLE001 - the publisher gets it as it is
                return [error]
        if self._context.event_types.entry(name).event_type.category == "undefined":
            together = self._as_one(name, group)
            if together is not None:
                return together
        return self._one_by_one(name, group)

    def _one_by_one(self, name: str, group: Sequence[_Publish]) -> list[PublishReport | Exception]:
        attempts = [_outcome(self._small_attempt, name, *publish) for publish in group]
        valid = [attempt for attempt in attempts if isinstance(attempt, PublishAttempt)]
        deadline = time.monotonic() + self._timeout
        try:
            for attempt in valid:  # before the first one is stored, so that all of them share a commit
                attempt.enter(self._settings.publish_wait_ms)
            return [
                attempt if isinstance(attempt, Exception) else _outcome(self._wait, attempt, deadline)
                for attempt in attempts
            ]
        finally:
            for attempt in valid:
                attempt.hand_over()

    def _small_attempt(self, name: str, events: Events, flow_id: str | None) -> PublishAttempt:
        return self._attempt(name, self._items(events), flow_id)

    def _as_one(self, name: str, group: Sequence[_Publish]) -> list[PublishReport] | None:
        """The reports; None if a publish breaks a rule, because the others must not fail with it."""
        try:
            parts = [self._items(events) for events, _ in group]
        except Invalid:
            return None
        report = self._publish(name, [item for part in parts for item in part], None)
        if report.rejected:
            return None
        return preparation.split_report(report, [len(part) for part in parts])

    # -- small publishes that no thread waits for

    def _start_group(self, name: str, group: Sequence[SmallPublish]) -> None:
        """Like `_publish_all`, but does not wait for the outcomes."""
        parts: list[list[bytes]] = []
        if len(group) > 1 and self._context.event_types.entry(name).event_type.category == "undefined":
            with suppress(Invalid):  # the other publishes must not fail with this one
                parts = [self._items(publish.events) for publish in group]
        if parts:
            self._start_as_one(name, group, parts)
        else:
            self._start_each(name, group, helps=True)

    def _start_as_one(self, name: str, group: Sequence[SmallPublish], parts: Sequence[Sequence[bytes]]) -> None:
        thread = threading.get_ident()

        def answer(outcome: Outcome) -> None:
            if isinstance(outcome, BaseException):
                each: Sequence[Outcome] = [outcome] * len(group)
            elif outcome.rejected:  # an event breaks a rule, and the other publishes must not fail with it
                # After a switch, this is the node's own thread, which must not wait for a storage.
                self._start_each(name, group, helps=threading.get_ident() == thread)
                return
            else:
                each = preparation.split_report(outcome, [*map(len, parts)])
            for publish, found in zip(group, each, strict=True):
                publish.answer(found)

        attempt = self._attempt(name, [*chain(*parts)], None, answer, helps=True)
        attempt.enter(self._settings.publish_wait_ms)
        attempt.help()

    def _start_each(self, name: str, group: Sequence[SmallPublish], *, helps: bool) -> None:
        attempts: list[PublishAttempt] = []
        for publish in group:
            try:
                items = self._items(publish.events)
                attempts.append(self._attempt(name, items, publish.flow_id, publish.answer, helps=helps))
            except Exception as error:  # noqa: BLE001 - other publishes must not fail with it
                publish.answer(error)
        for attempt in attempts:  # before the first one is stored, so that all of them share a commit
            attempt.enter(self._settings.publish_wait_ms)
        for attempt in attempts:
            attempt.help()


def _is_small(events: Events) -> bool:
    if isinstance(events, bytes | str):
        return len(events) <= _SMALL_BYTES
    return isinstance(events, list | tuple) and len(events) <= _SMALL_COUNT


def _set(future: Future[PublishReport], outcome: Outcome) -> None:
    if isinstance(outcome, PublishReport):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def _outcome(act: Callable[..., _T], *arguments: Any) -> _T | Exception:
    try:
        return act(*arguments)
    except Exception as error:  # noqa: BLE001 - other publishes must not fail with it
        return error
