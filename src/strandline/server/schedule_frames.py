"""The JSON frames of a push session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from strandline.errors import Invalid, StrandlineError
from strandline.schedule.model import ItemAnswer, Lease, LeaseAct
from strandline.schedule.room import MAX_CREDIT
from strandline.schedule.rules import MAX_MS
from strandline.server import bodies
from strandline.server import schedule_items as items

ActKind: TypeAlias = Literal["extend", "release", "delete"]
#: What the client calls an act; its results have the same one.
Ref: TypeAlias = str | int | None
_ACTS: tuple[ActKind, ...] = ("extend", "release", "delete")


class ActBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[Raw], Meta(min_length=1, max_length=items.MAX_ITEMS)]
    ref: Ref = None


class PingBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    client_ms: Annotated[int, Meta(ge=0, le=MAX_MS)] | Annotated[float, Meta(ge=0, le=MAX_MS)]


class ClientFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frame of the client: exactly one of these."""

    extend: ActBody | UnsetType = UNSET
    release: ActBody | UnsetType = UNSET
    delete: ActBody | UnsetType = UNSET
    ping: PingBody | UnsetType = UNSET
    credit: Annotated[int, Meta(ge=0, le=MAX_CREDIT)] | UnsetType = UNSET


class Act(msgspec.Struct, frozen=True):
    """What a consumer asks for its leases. `size` is that of the frame."""

    kind: ActKind
    ref: Ref
    batch: items.ItemBatch[LeaseAct]
    size: int


class DeletedLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item of a delete. The consumer is the one of the session, so it may be left out."""

    id: str
    version: int
    consumer: str | None = None


class MovedLease(DeletedLease, frozen=True, forbid_unknown_fields=True):
    """An item of an extend or a release."""

    at_ms: int | None = None
    in_ms: int | None = None


def read(text: str, consumer: str) -> Act | PingBody | int:
    """An act, a ping or a credit. Malformed or Invalid if it is none."""
    frame: ClientFrame = bodies.decode(text.encode(), ClientFrame, "frame")
    given = [
        (name, value) for name in ClientFrame.__struct_fields__ if (value := getattr(frame, name)) is not UNSET
    ]
    if len(given) != 1:
        raise Invalid("a frame must have exactly one of: " + ", ".join(ClientFrame.__struct_fields__))
    name, value = given[0]
    if name not in _ACTS:
        found: PingBody | int = value
        return found

    def convert(item: DeletedLease) -> LeaseAct:
        holder = consumer if item.consumer is None else item.consumer
        if isinstance(item, MovedLease):
            return items.holder_act(items.HolderItem(item.id, item.version, holder, item.at_ms, item.in_ms))
        return LeaseAct(item.id, holder, item.version)

    kind = DeletedLease if name == "delete" else MovedLease
    return Act(name, value.ref, items.read_items(value.items, kind, convert), len(text))


def lease(found: Lease) -> str:
    return _text({"lease": items.lease_view(found)})


def results(ref: Ref, answers: Sequence[ItemAnswer]) -> str:
    return _text({"results": {"ref": ref, "items": answers}})


def pong(ping: PingBody, server_ms: int) -> str:
    return _text({"pong": {"client_ms": ping.client_ms, "server_ms": server_ms}})


def failed(error: StrandlineError, act: Act | None = None) -> str:
    """The frame or the act with that reference has failed. The session goes on."""
    about = {"code": error.code, "detail": error.detail}
    return _text({"error": about | ({"ref": act.ref} if act is not None else {})})


FENCED = '{"fenced":true}'


def _text(frame: dict[str, Any]) -> str:
    return msgspec.json.encode(frame).decode()
