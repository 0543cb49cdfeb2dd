"""The administration of a server's log: storages, timeline switches, partition counts."""

from __future__ import annotations

from typing import get_type_hints
from urllib.parse import quote

import msgspec

from strandline.client.transport import Transport, check
from strandline.errors import NotFound
from strandline.log.model import EventType, RunningSwitch, StorageInfo, Switch, Timeline
from strandline.log.room import Admin

_NAME = get_type_hints(EventType, include_extras=True)["name"]


def event_type_path(name: str, *rest: str) -> str:
    # An invalid name such as "../storages" would lead to another resource.
    try:
        msgspec.convert(name, _NAME)
    except msgspec.ValidationError:
        raise NotFound(f"event type {name!r} does not exist") from None
    return "/".join(("/event-types", name, *rest))


class HttpAdmin(Admin):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def add_storage(self, storage: StorageInfo) -> StorageInfo:
        return self._transport.change("POST", "/storages", StorageInfo, storage)

    def set_default_storage(self, storage_id: str) -> StorageInfo:
        return self._transport.change("PUT", f"/storages/default/{quote(storage_id, safe='')}", StorageInfo)

    def remove_storage(self, storage_id: str) -> None:
        check(self._transport.write("DELETE", f"/storages/{quote(storage_id, safe='')}"), writes=True)

    def switch(self, name: str, storage_id: str) -> Timeline:
        path = event_type_path(name, "timelines")
        return self._transport.change("POST", path, Timeline, {"storage_id": storage_id})

    def check_switch(self, name: str, storage_id: str) -> list[Timeline]:
        path = event_type_path(name, "timelines?dry_run=true")
        return self._transport.change("POST", path, list[Timeline], {"storage_id": storage_id})

    def current_switch(self, name: str) -> RunningSwitch | None:
        try:
            return self._transport.get(event_type_path(name, "timelines/switch"), RunningSwitch)
        except NotFound:
            # Either the event type was never switched, or it does not exist: then the next request fails.
            self._transport.get(event_type_path(name, "timelines"), list[Timeline])
            return None

    def abort_switch(self, name: str) -> Switch:
        return self._transport.change("DELETE", event_type_path(name, "timelines/switch"), Switch)

    def grow(self, name: str, partitions: int) -> None:
        body = msgspec.json.encode({"partition_count": partitions})
        check(self._transport.write("PUT", event_type_path(name, "partition-count"), body), writes=True)
