"""The administration of a server's log: storages, timeline switches, partition counts."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from strandline.client.transport import Transport, check
from strandline.errors import NotFound
from strandline.log.model import StorageInfo, Switch, Timeline
from strandline.log.room import Admin

_T = TypeVar("_T")


class HttpAdmin(Admin):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def add_storage(self, storage: StorageInfo) -> StorageInfo:
        return self._change("POST", "/storages", StorageInfo, storage)

    def set_default_storage(self, storage_id: str) -> StorageInfo:
        return self._change("PUT", f"/storages/default/{quote(storage_id, safe='')}", StorageInfo)

    def remove_storage(self, storage_id: str) -> None:
        check(self._transport.write("DELETE", f"/storages/{quote(storage_id, safe='')}"), writes=True)

    def switch(self, name: str, storage_id: str) -> Timeline:
        return self._change("POST", _path(name, "timelines"), Timeline, {"storage_id": storage_id})

    def check_switch(self, name: str, storage_id: str) -> list[Timeline]:
        path = _path(name, "timelines?dry_run=true")
        return self._change("POST", path, list[Timeline], {"storage_id": storage_id})

    def current_switch(self, name: str) -> Switch | None:
        try:
            return msgspec.json.decode(self._transport.get(_path(name, "timelines/switch")), type=Switch)
        except NotFound:
            # Either the event type was never switched, or it does not exist: then the next request fails.
            self._transport.get(_path(name, "timelines"))
            return None

    def abort_switch(self, name: str) -> Switch:
        return self._change("DELETE", _path(name, "timelines/switch"), Switch)

    def grow(self, name: str, partitions: int) -> None:
        body = msgspec.json.encode({"partition_count": partitions})
        check(self._transport.write("PUT", _path(name, "partition-count"), body), writes=True)

    def _change(self, method: str, path: str, kind: type[_T], body: Any = None) -> _T:
        sent = b"" if body is None else msgspec.json.encode(body)
        response = self._transport.write(method, path, sent)
        check(response, writes=True)
        return msgspec.json.decode(response.content, type=kind)


def _path(name: str, below: str) -> str:
    return f"/event-types/{quote(name, safe='')}/{below}"
