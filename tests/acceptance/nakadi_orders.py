"""A definition of an event type, as Nakadi clients send it."""

from __future__ import annotations

ORDERS = {
    "owning_application": "shop",
    "category": "business",
    "enrichment_strategies": ["metadata_enrichment"],
    "partition_strategy": "hash",
    "partition_key_fields": ["order"],
}
