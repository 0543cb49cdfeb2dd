"""Items and leases of schedules as the JSON of the server, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from strandline.schedule.model import (
    Body,
    ItemAnswer,
    Lease,
    LeaseAct,
    LoadCounts,
    LoadStep,
    Moment,
    NewMessage,
    OwnerAct,
    StoredMessage,
)

_UNKNOWN_BUCKET = -1


class ReceivedLease(msgspec.Struct, frozen=True):
    """A lease, or the answer to a chosen message that could not be leased: `status` is `error` then."""

    id: str
    version: int | None = None
    expires_at_ms: int = 0
    due_at_ms: int = 0
    delivery_count: int = 0
    created_ms: int = 0
    producer_group: str = ""
    body: Raw | UnsetType = UNSET
    body_base64: bytes = b""
    status: str = "ok"

    def to_lease(self, consumer: str) -> Lease:
        message = StoredMessage(
            self.id,
            _UNKNOWN_BUCKET,
            at_ms=self.expires_at_ms,
            due_ms=self.due_at_ms,
            producer_group=self.producer_group,
            consumer=consumer,
            version=self.version or 0,
            delivery_count=self.delivery_count,
            created_ms=self.created_ms,
        )
        return Lease(message, _body(self.body, self.body_base64))


class ReceivedMessage(StoredMessage, frozen=True):
    body: Raw | UnsetType = UNSET
    body_base64: bytes = b""

    def to_lease(self) -> Lease:
        fields = {name: getattr(self, name) for name in StoredMessage.__struct_fields__}
        return Lease(StoredMessage(**fields), _body(self.body, self.body_base64))


class MessagePage(msgspec.Struct, frozen=True):
    items: list[StoredMessage]
    next: str | None = None


class AnswerPage(msgspec.Struct, frozen=True):
    items: list[ItemAnswer]


class LeasePage(msgspec.Struct, frozen=True):
    items: list[Raw]


class _Step(msgspec.Struct, frozen=True, rename={"from_ms": "from"}):
    from_ms: int
    total: int
    waiting: int
    processing: int


class ReceivedCounts(msgspec.Struct, frozen=True):
    total: int
    waiting: int
    processing: int
    available: int
    steps: list[_Step] | None = None

    def to_counts(self, from_ms: int) -> LoadCounts:
        """Without a step in the request, the whole range is one step."""
        whole = [_Step(from_ms, self.total, self.waiting, self.processing)]
        steps = whole if self.steps is None else self.steps
        return LoadCounts(
            self.total,
            self.waiting,
            self.processing,
            self.available,
            [LoadStep(step.from_ms, step.total, step.waiting, step.processing) for step in steps],
        )


def _body(text: Raw | UnsetType, content: bytes) -> Body:
    return Body(content) if text is UNSET else Body(bytes(text), is_json=True)


def new_items(items: Iterable[NewMessage]) -> list[dict[str, Any]]:
    return [
        {
            "id": item.id,
            "producer_group": item.producer_group,
            **_sent_body(item.body),
            **_sent_moment(item.moment),
        }
        for item in items
    ]


def _sent_body(body: Body) -> dict[str, Any]:
    return {"body": Raw(body.content)} if body.is_json else {"body_base64": body.content}


def _sent_moment(moment: Moment) -> dict[str, int]:
    return {"in_ms" if moment.relative else "at_ms": moment.ms}


def acts(items: Iterable[LeaseAct | OwnerAct]) -> list[dict[str, Any]]:
    return [_who(item) for item in items]


def timed_acts(items: Iterable[LeaseAct | OwnerAct]) -> list[dict[str, Any]]:
    """With their moments, which an extend, a release and a move have."""
    return [_who(item) | _sent_moment(item.moment) for item in items]


def _who(item: LeaseAct | OwnerAct) -> dict[str, Any]:
    if isinstance(item, LeaseAct):
        return {"id": item.id, "consumer": item.consumer, "version": item.version}
    version = {} if item.version is None else {"version": item.version}
    return {"id": item.id, "producer_group": item.producer_group} | version


def claim_query(claim: LeaseAct | OwnerAct) -> dict[str, str | int]:
    """The right to the body of a message, as query parameters."""
    if isinstance(claim, LeaseAct):
        return {"consumer": claim.consumer, "version": claim.version}
    return {"producer_group": claim.producer_group}
