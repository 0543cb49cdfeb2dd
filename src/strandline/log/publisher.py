"""Publishing in this process: from events to records in the storage of their timeline, and the report."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from strandline.clock import Clock
from strandline.config import LogSettings
from strandline.errors import OutcomeUnknown
from strandline.log import publishing
from strandline.log.combining import Combiner
from strandline.log.model import PublishReport
from strandline.log.publishing import Events, Plan, Prepared
from strandline.log.storage import Placed, Storage

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Publish = tuple[Events, str | None]

_THREADS = 8
# Of a publish no larger than this, looking at the catalog and waiting for the disk is most of the work.
_SMALL_BYTES = 4096
_SMALL_COUNT = 8
# So many small ones share both, and no more, so that the first does not wait for long.
_TOGETHER = 256


class Publisher:
    def __init__(
        self,
        plan: Callable[[str], Plan],
        storage: Callable[[str], Storage],
        settings: LogSettings,
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="strandline-publisher")
        self._combiners: dict[str, Combiner[_Publish, PublishReport]] = {}

    def submit(self, name: str, events: Events, flow_id: str | None) -> Future[PublishReport]:
        plan = self._plan(name)
        prepared = self._prepare(plan, events, flow_id)
        done: Future[PublishReport] = Future()
        done.set_running_or_notify_cancel()  # what is on its way to the storage cannot be called back
        if isinstance(prepared, PublishReport):
            done.set_result(prepared)
            return done

        def stored(future: Future[dict[int, Placed]]) -> None:
            error = future.exception()
            if error is None:
                done.set_result(publishing.report(prepared, future.result()))
            elif isinstance(error, OutcomeUnknown):
                done.set_result(_unknown(prepared, error))
            else:
                done.set_exception(error)

        self._append(plan, prepared, waits=False).add_done_callback(stored)
        return done

    def publish(self, name: str, events: Events, flow_id: str | None) -> PublishReport:
        if not _is_small(events):
            return self._start(self._plan(name), events, flow_id)()
        job = self._combiner(name).add((events, flow_id), waits=True)
        try:
            return job.result(self._timeout)
        except TimeoutError:
            return publishing.unanswered_report(events)

    def close(self) -> None:
        self._executor.shutdown(wait=True)
        for combiner in self._combiners.values():
            combiner.finish()

    @property
    def _timeout(self) -> float:
        return self._settings.publish_timeout_ms / 1000

    # -- one publish

    def _prepare(self, plan: Plan, events: Events, flow_id: str | None) -> Prepared | PublishReport:
        items = publishing.to_items(events, self._settings.max_batch_events)
        prepared = publishing.prepare(plan, items, self._clock.now_ms(), flow_id or _flow_id(plan))
        return PublishReport(0) if isinstance(prepared, Prepared) and not prepared.count else prepared

    def _append(self, plan: Plan, prepared: Prepared, *, waits: bool) -> Future[dict[int, Placed]]:
        timeline = plan.entry.active
        return self._storage(timeline.storage_id).append(timeline.topic, prepared.batches, waits=waits)

    def _start(self, plan: Plan, events: Events, flow_id: str | None) -> Callable[[], PublishReport]:
        """Check the events and hand them to the storage; what is returned waits for its answer."""
        prepared = self._prepare(plan, events, flow_id)
        if isinstance(prepared, PublishReport):
            return lambda: prepared
        started = self._append(plan, prepared, waits=True)

        def wait() -> PublishReport:
            try:
                return publishing.report(prepared, started.result(self._timeout))
            except (OutcomeUnknown, TimeoutError) as error:
                return _unknown(prepared, error)

        return wait

    # -- many small ones

    def _combiner(self, name: str) -> Combiner[_Publish, PublishReport]:
        found = self._combiners.get(name)
        if found is None:
            self._plan(name)  # names that are none leave nothing behind
            made = Combiner(partial(self._publish_all, name), self._executor, weight=lambda _: 1 / _TOGETHER)
            found = self._combiners.setdefault(name, made)
        return found

    def _publish_all(self, name: str, group: Sequence[_Publish]) -> list[PublishReport | Exception]:
        plan = self._plan(name)
        started = [_outcome(self._start, plan, events, flow_id) for events, flow_id in group]
        return [found if isinstance(found, Exception) else _outcome(found) for found in started]


def _is_small(events: Events) -> bool:
    if isinstance(events, bytes | str):
        return len(events) <= _SMALL_BYTES
    return isinstance(events, list | tuple) and len(events) <= _SMALL_COUNT


def _outcome(act: Callable[..., _T], *arguments: Any) -> _T | Exception:
    try:
        return act(*arguments)
    except Exception as error:  # noqa: BLE001 - one publisher's error is not the others'
        return error


def _flow_id(plan: Plan) -> str:
    """One of our own, where it is written into the events."""
    return "" if plan.entry.event_type.category == "undefined" else uuid.uuid4().hex


def _unknown(prepared: Prepared, error: Exception) -> PublishReport:
    log.warning("a publish ended with unknown outcome: %s", str(error) or "the storage did not answer in time")
    return publishing.unknown_report(prepared.events)
