"""The events of all rows: orders of a shop, the same in every run."""

from __future__ import annotations

import random
import uuid
from typing import Any

import msgspec

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string", "minLength": 8},
        "customer": {"type": "string"},
        "amount": {"type": "number", "minimum": 0},
        "currency": {"enum": ["EUR", "USD", "GBP"]},
        "placed_at": {"type": "string"},
    },
    "required": ["order_id", "customer", "amount"],
}


def orders(count: int) -> list[dict[str, Any]]:
    dice = random.Random(7)
    return [
        {
            "order_id": str(uuid.UUID(int=dice.getrandbits(128))),
            "customer": f"c-{dice.randrange(1_000_000)}",
            "amount": dice.randrange(50_000) / 100,
            "currency": dice.choice(["EUR", "USD", "GBP"]),
            "placed_at": f"2024-05-01T12:{dice.randrange(60):02d}:00.{dice.randrange(1000):03d}Z",
        }
        for _ in range(count)
    ]


def values(count: int) -> list[bytes]:
    """About 140 bytes of JSON each."""
    return [msgspec.json.encode(order) for order in orders(count)]


def business(count: int) -> list[bytes]:
    """The same events with the metadata of a business event, about 250 bytes each."""
    return [
        msgspec.json.encode({"metadata": metadata, **order})
        for metadata, order in zip(_metadata(count), orders(count), strict=True)
    ]


def changes(count: int) -> list[bytes]:
    """The same orders as `data` events, about 300 bytes each."""
    return [
        msgspec.json.encode({"metadata": metadata, "data_type": "order", "data_op": "C", "data": order})
        for metadata, order in zip(_metadata(count), orders(count), strict=True)
    ]


def _metadata(count: int) -> list[dict[str, str]]:
    dice = random.Random(8)
    return [
        {
            "eid": str(uuid.UUID(int=dice.getrandbits(128), version=4)),
            "occurred_at": "2024-05-01T12:00:00.000Z",
        }
        for _ in range(count)
    ]


def arrays(items: list[bytes], size: int) -> list[bytes]:
    """JSON arrays of `size` events each."""
    return [b"[" + b",".join(items[at : at + size]) + b"]" for at in range(0, len(items), size)]


def mean_size(items: list[bytes]) -> int:
    return round(sum(map(len, items)) / len(items))
