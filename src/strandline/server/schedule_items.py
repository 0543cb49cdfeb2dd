"""The items of schedule requests in JSON, and the answers to them. An item that is malformed fails alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from strandline.errors import Invalid, Malformed
from strandline.log import event_json
from strandline.schedule.model import (
    NOW,
    Body,
    ChosenMessage,
    ItemAnswer,
    Lease,
    LeaseAct,
    Moment,
    NewMessage,
    OwnerAct,
)
from strandline.schedule.rules import MAX_ITEMS
from strandline.server import bodies

_T = TypeVar("_T")
_Item = TypeVar("_Item")
_Given = TypeVar("_Given")
# A body that has items only, as a text.
_ITEMS = re.compile(rb'\s*\{\s*"items"\s*:\s*(\[.*\])\s*\}\s*', re.DOTALL)
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


class ItemList(msgspec.Struct, Generic[_T], frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[_T], Meta(min_length=1, max_length=MAX_ITEMS)]


class AnswerList(msgspec.Struct, frozen=True):
    """The answer to every item, in the order asked."""

    items: list[ItemAnswer]


# -- requests


class CreateItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new message: with `body`, any JSON value, or `body_base64`; without a moment it is due now."""

    producer_group: str
    id: str | None = None
    at_ms: int | None = None
    in_ms: int | None = None
    body: Raw | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET


class HolderItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change by the holder of a lease: the moment is `at_ms`, or `in_ms` from now."""

    id: str
    version: int
    consumer: str
    at_ms: int | None = None
    in_ms: int | None = None


class OwnerItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change by the owner: the moment is `at_ms`, or `in_ms` from now. Without a version the newest is meant."""

    id: str
    producer_group: str
    version: int | None = None
    at_ms: int | None = None
    in_ms: int | None = None


class PutBackItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dead message that its owner makes available, now. Without a version the newest is meant."""

    id: str
    producer_group: str
    version: int | None = None


class ChosenItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to lease. Without a version the newest is meant."""

    id: str
    version: int | None = None


class DeleteItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By the holder with `consumer` and `version`, or by the owner with `producer_group`."""

    id: str
    version: int | None = None
    consumer: str | None = None
    producer_group: str | None = None


def new_message(item: CreateItem) -> NewMessage:
    if item.id is not None and not item.id:  # the room would generate one
        raise Invalid("the id is empty; leave it out to get a new one")
    return NewMessage(item.id or "", item.producer_group, _body(item), _moment(item.at_ms, item.in_ms) or NOW)


def holder_act(item: HolderItem) -> LeaseAct:
    return LeaseAct(item.id, item.consumer, item.version, _required(item))


def put_back(item: PutBackItem) -> OwnerAct:
    return OwnerAct(item.id, item.producer_group, item.version)


def owner_move(item: OwnerItem) -> OwnerAct:
    return OwnerAct(item.id, item.producer_group, item.version, _required(item))


def delete_act(item: DeleteItem) -> LeaseAct | OwnerAct:
    if item.consumer is not None and item.producer_group is None:
        if item.version is None:
            raise Invalid("a delete by the holder of the lease needs a version")
        return LeaseAct(item.id, item.consumer, item.version)
    if item.producer_group is not None and item.consumer is None:
        return OwnerAct(item.id, item.producer_group, item.version)
    raise Invalid("a delete needs either a consumer with a version, or a producer_group")


def chosen(item: ChosenItem) -> ChosenMessage:
    return ChosenMessage(item.id, item.version)


def _body(item: CreateItem) -> Body:
    if isinstance(item.body, Raw) and item.body_base64 is UNSET:
        # Without the whitespace, so that a repeated create has the same body.
        content = msgspec.json.format(item.body, indent=-1)
        content.decode()  # the bytes of JSON strings were not checked before
        return Body(bytes(content), is_json=True)
    if isinstance(item.body_base64, bytes) and item.body is UNSET:
        return Body(item.body_base64)
    raise Invalid("a message needs either a body or a body_base64")


def _required(item: HolderItem | OwnerItem) -> Moment:
    moment = _moment(item.at_ms, item.in_ms)
    if moment is None:
        raise Invalid("the item needs a moment: at_ms or in_ms")
    return moment


def _moment(at_ms: int | None, in_ms: int | None) -> Moment | None:
    if at_ms is not None and in_ms is not None:
        raise Invalid("the item has two moments: leave out at_ms or in_ms")
    if at_ms is not None:
        return Moment(at_ms)
    return None if in_ms is None else Moment(in_ms, relative=True)


class ItemBatch(Generic[_Item]):
    """The items of one request; the malformed ones are answered already."""

    def __init__(self, read: Sequence[_Item | ItemAnswer]) -> None:
        self._read = read
        self.accepted = [item for item in read if not isinstance(item, ItemAnswer)]

    def answers(self, to_accepted: Sequence[_T]) -> list[_T | ItemAnswer]:
        """The answers to all items in the order asked, from those to the accepted ones."""
        rest = iter(to_accepted)
        return [item if isinstance(item, ItemAnswer) else next(rest) for item in self._read]


def read_batch(body: bytes | Raw, kind: type[_Given], convert: Callable[[_Given], _Item]) -> ItemBatch[_Item]:
    """The items of a body. Malformed or Invalid if the body itself cannot be used."""
    try:
        items: Sequence[_Given | Raw] = _decoder(kind).decode(body).items
    except _UNREADABLE:  # find out which item it is
        items = _raw_items(bytes(body))
    return read_items(items, kind, convert)


def _raw_items(body: bytes) -> Sequence[Raw]:
    try:
        items: Sequence[Raw] = bodies.decode(body, ItemList[Raw]).items
    except Malformed:
        found = _ITEMS.fullmatch(body)
        if found is None or not _is_json(body):
            raise
        items = [Raw(text) for text in event_json.to_items(found[1], MAX_ITEMS)]
    return items


def _is_json(body: bytes) -> bool:
    """Whether it is JSON, apart from NaN and half a surrogate pair, as in a text that was cut."""
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def read_items(
    items: Sequence[_Given | Raw], kind: type[_Given], convert: Callable[[_Given], _Item]
) -> ItemBatch[_Item]:
    return ItemBatch([_read(item, kind, convert) for item in items])


def _read(item: _Given | Raw, kind: type[_Given], convert: Callable[[_Given], _Item]) -> _Item | ItemAnswer:
    """The item, or the answer to a malformed one. What the item must keep besides is checked by the room."""
    try:
        return convert(msgspec.json.decode(item, type=kind) if isinstance(item, Raw) else item)
    except (Invalid, *_UNREADABLE) as error:
        return ItemAnswer(_id_of(item), "error", code="invalid", detail=f"the item is not valid: {error}")


def _id_of(item: Any) -> str:
    """The id that a malformed item has; empty if there is none."""
    if not isinstance(item, Raw):
        return str(item.id or "")
    try:  # the standard library reads NaN and half a surrogate pair, too
        found = json.loads(bytes(item))
    except (ValueError, RecursionError):
        return ""
    found = found.get("id") if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(ItemList[kind])
    return found


# -- answers


class LeaseView(msgspec.Struct, frozen=True):
    """A lease and its message. The answers to chosen messages also have a status."""

    id: str
    version: int
    expires_at_ms: int
    due_at_ms: int
    delivery_count: int
    created_ms: int
    producer_group: str
    body: Raw | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    status: Literal["ok"] | UnsetType = UNSET


class LeaseList(msgspec.Struct, frozen=True):
    items: list[LeaseView]


def lease_view(lease: Lease, status: Literal["ok"] | UnsetType = UNSET) -> LeaseView:
    found, body, text = lease.message, lease.body.content, lease.body.is_json
    return LeaseView(
        found.id,
        found.version,
        expires_at_ms=found.at_ms,
        due_at_ms=found.due_ms,
        delivery_count=found.delivery_count,
        created_ms=found.created_ms,
        producer_group=found.producer_group,
        body=Raw(body) if text else UNSET,
        body_base64=UNSET if text else body,
        status=status,
    )


def status_of(answers: Sequence[ItemAnswer | LeaseView]) -> int:
    """200 if all items succeeded, 207 if some did, 422 if none did."""
    succeeded = sum(answer.status == "ok" for answer in answers)
    if succeeded == len(answers):
        return 200
    return 207 if succeeded else 422
