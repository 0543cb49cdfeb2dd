"""Publishing under a fence: only the newest holder can publish, for the job that must not publish twice.

The catalog decides who holds a fence. A holder raises it in the topic of the active timeline, and checks the
catalog after that. So, when `raise_fence` returns, an older holder is refused by the topic in which it has
published, and by its check of the catalog in every other topic, also after a timeline switch.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from strandline.clock import Clock
from strandline.errors import Fenced, NotFound, OutcomeUnknown, Unavailable
from strandline.log import preparation
from strandline.log.catalog import Catalog
from strandline.log.event_types import EventTypes, refuse_actions
from strandline.log.model import PublishReport
from strandline.log.open_storages import Storages, fencing
from strandline.log.preparation import Prepared
from strandline.log.publisher import Publisher
from strandline.log.records import Headers, NewRecords
from strandline.log.storage import Fence

_ATTEMPTS = 10


class FencedLog:
    """Thread-safe. Every method is NotFound if the event type does not exist."""

    def __init__(
        self, event_types: EventTypes, catalog: Catalog, storages: Storages, publisher: Publisher, clock: Clock
    ) -> None:
        self._event_types = event_types
        self._catalog = catalog
        self._storages = storages
        self._publisher = publisher
        self._clock = clock
        self._held: set[tuple[str, Fence]] = set()

    def raise_fence(self, name: str, fence: str, held: Fence | None = None) -> Fence:
        """Become the holder of a fence of the event type. No other holder can publish after this returns.

        What other holders have published before can be read. With `held`, the caller's own fence, Fenced if there
        is a newer holder.
        """
        entry = self._event_types.entry(name)
        refuse_actions(entry)
        raised = self._catalog.fences.raise_fence(entry.id, fence, None if held is None else held.epoch)
        self.hold(name, raised)
        return raised

    def hold(self, name: str, fence: Fence) -> None:
        """Allow the holder to publish to the timeline that is active now. Fenced if there is a newer holder.

        Needed again after a timeline switch: `publish` is Fenced until then.
        """
        self._held.discard((name, fence))
        for _ in range(_ATTEMPTS):
            entry = self._event_types.entry(name)
            active = entry.active
            try:
                fencing(self._storages.get(active.storage_id)).raise_fence(active.topic, fence)
            except NotFound:
                if self._event_types.entry(name).active == active:
                    raise
                continue  # the timeline was closed and removed meanwhile
            if fence not in self._catalog.fences.all(entry.id):
                raise Fenced(f"the fence {fence.name} of {name!r} has a newer holder than {fence.epoch}")
            if self._event_types.entry(name).active.topic == active.topic:
                self._held.add((name, fence))
                return
        raise Unavailable(f"the storage of {name!r} changes all the time", retry_after=1)

    def publish(
        self,
        name: str,
        items: Sequence[bytes],
        headers: Sequence[Headers],
        fence: Fence,
        *,
        not_before_ms: int = 0,
    ) -> PublishReport:
        """Publish events with headers, in order within each partition.

        The records have the current time, or `not_before_ms` if that is later. Fenced, with nothing stored, if the
        fence was raised since, or if the storage has changed: call `hold`, which knows the difference.
        OutcomeUnknown if the events, or a part of them, may be stored. A report with failures means that these
        events break a rule, and that nothing is stored.
        """
        if (name, fence) not in self._held:
            raise Fenced(f"the fence {fence.name} of {name!r} is not held by {fence.epoch}")
        compiled = self._event_types.compiled(name)
        refuse_actions(compiled.entry)
        now_ms = max(self._clock.now_ms(), not_before_ms)
        prepared = preparation.prepare(compiled, items, now_ms, fence.name)
        if isinstance(prepared, PublishReport):
            return prepared
        records = _with_headers(prepared, headers, fence)
        report = self._publisher.store(name, records, lambda: compiled.entry)
        if not report.ok:
            raise OutcomeUnknown(f"it is unknown which of {report.count} events are stored in {name!r}")
        return report


def _with_headers(prepared: Prepared, headers: Sequence[Headers], fence: Fence) -> Prepared:
    batches = {
        partition: NewRecords(
            batch.timestamp_ms, batch.values, batch.keys, [headers[n] for n in prepared.members[partition]]
        )
        for partition, batch in prepared.batches.items()
    }
    return msgspec.structs.replace(prepared, batches=batches, fence=fence)
