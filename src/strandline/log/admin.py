"""The operator's commands for storages and timelines, in this process."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TypeVar

import msgspec

from strandline.clock import Clock, to_rfc3339
from strandline.errors import Conflict, NotFound
from strandline.log.catalog import Catalog
from strandline.log.event_types import EventTypes
from strandline.log.initiator import Initiator
from strandline.log.model import CatalogEntry, RunningSwitch, StorageInfo, Switch, Timeline
from strandline.log.node import decided
from strandline.log.open_storages import Storages
from strandline.log.serving import ServedAdmin, Steps, Wake

_T = TypeVar("_T")
# Wake-ups continue a change at once; this interval covers a wake-up that was lost, and the timeout of the change.
_POLL_SECONDS = 0.05


class LocalAdmin(ServedAdmin):
    def __init__(
        self, event_types: EventTypes, catalog: Catalog, storages: Storages, initiator: Initiator, clock: Clock
    ) -> None:
        self._event_types = event_types
        self._catalog = catalog
        self._storages = storages
        self._initiator = initiator
        self._clock = clock

    def add_storage(self, storage: StorageInfo) -> StorageInfo:
        self._storages.check(storage.configuration)
        now = to_rfc3339(self._clock.now_ms())
        self._catalog.storages.add(msgspec.structs.replace(storage, default=False, created_at=now))
        return self._storage(storage.id)

    def set_default_storage(self, storage_id: str) -> StorageInfo:
        self._catalog.storages.set_default(storage_id)
        return self._storage(storage_id)

    def _storage(self, storage_id: str) -> StorageInfo:
        """The storage as stored in the catalog, which makes the first storage the default."""
        for storage in self._catalog.storages.list():
            if storage.id == storage_id:
                return storage
        raise NotFound(f"storage {storage_id!r} does not exist; list the storages to find it")

    def remove_storage(self, storage_id: str) -> None:
        self._catalog.storages.remove(storage_id)

    def switch(self, name: str, storage_id: str) -> Timeline:
        woken = threading.Event()
        return _finished(self.switching(name, storage_id, woken.set), woken)

    def switching(self, name: str, storage_id: str, wake: Wake) -> Steps[Timeline]:
        entry = self._event_types.entry(name)
        _refuse_adopted(entry)
        yield from self._initiator.switch(entry, storage_id, wake)
        return self._event_types.entry(name).active

    def check_switch(self, name: str, storage_id: str) -> list[Timeline]:
        entry = self._event_types.entry(name)
        _refuse_adopted(entry)
        self._initiator.check(entry, storage_id)
        return [*entry.timelines]

    def current_switch(self, name: str) -> RunningSwitch | None:
        switch = self._event_types.entry(name).switch
        if switch is None:
            return None
        return RunningSwitch(**msgspec.structs.asdict(switch), unconfirmed=self._initiator.waits_for(switch))

    def abort_switch(self, name: str) -> Switch:
        entry = self._event_types.entry(name)
        if entry.switch is None or decided(entry.switch):
            raise Conflict(f"no switch of {name!r} is under way; there is nothing to abort")
        if not self._initiator.abort(entry, entry.switch):
            raise Conflict(f"the switch of {name!r} is already done; it cannot be aborted")
        aborted = self._event_types.entry(name).switch
        if aborted is None:
            raise NotFound(f"event type {name!r} does not exist")
        return aborted

    def grow(self, name: str, partitions: int) -> None:
        woken = threading.Event()
        _finished(self.growing(name, partitions, woken.set), woken)

    def growing(self, name: str, partitions: int, wake: Wake) -> Steps[None]:
        entry = self._event_types.entry(name)
        if entry.event_type.journal is not None:
            raise Conflict(
                f"event type {name!r} holds the actions of journals, whose partitions cannot grow: the actions of "
                "one journal would be in two of them; create another topic with more partitions"
            )
        yield from self._initiator.grow(entry, partitions, wake)


def _refuse_adopted(entry: CatalogEntry) -> None:
    if entry.event_type.journal == "adopted":
        raise Conflict(
            f"the topic of {entry.event_type.name!r} is shared with other applications and stays in its storage; "
            "create another topic for journals and copy them"
        )


def _finished(steps: Steps[_T], woken: threading.Event) -> _T:
    """Do all steps in this thread; returns their result."""
    with closing(steps):  # after Ctrl-C they undo what they have done
        while True:
            woken.clear()
            try:
                next(steps)
            except StopIteration as end:
                result: _T = end.value
                return result
            woken.wait(_POLL_SECONDS)
