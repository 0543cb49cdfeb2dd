"""The values of settings for single event types."""

from __future__ import annotations

import pytest

from strandline.archive.layout import Layout
from strandline.archive.model import HOUR_MS
from strandline.archive.options import for_type, template_for

HIVE = "date=%Y-%m-%d/hour=%H/{event_type}"
PLAIN = "%Y-%m-%d/%H/{event_type}"
SHOP = "shop/%Y-%m-%d/%H/{event_type}"


@pytest.mark.parametrize(
    ("text", "of_orders", "of_others"),
    [
        (PLAIN, PLAIN, PLAIN),
        (HIVE, HIVE, HIVE),
        (f"{PLAIN},orders={SHOP}", SHOP, PLAIN),
        (f"orders={SHOP}, {PLAIN}", SHOP, PLAIN),
        (f"{HIVE},orders={SHOP}", SHOP, HIVE),
        (f"{PLAIN},orders={HIVE}", HIVE, PLAIN),
        (f"{HIVE},orders=day=%Y-%m-%d/%H/{{event_type}}", "day=%Y-%m-%d/%H/{event_type}", HIVE),
    ],
)
def test_a_template_may_be_in_the_style_of_hive(text, of_orders, of_others):
    """The equals sign of a directory is not taken for that of an event type."""
    assert (template_for(text, "orders"), template_for(text, "clicks")) == (of_orders, of_others)


def test_the_directories_of_a_hive_template():
    """Hours and days have their own directories, above those of the event types."""
    layout = Layout(HIVE, "orders")
    assert layout.data(11 * HOUR_MS) == "date=1970-01-01/hour=11/orders/data"
    assert (layout.hour_template, layout.day_template) == ("date=%Y-%m-%d/hour=%H", "date=%Y-%m-%d")


def test_other_settings_have_one_general_value():
    """A part with a name is for that event type only."""
    assert for_type("a.b|@timestamp,orders=placed_at", "orders") == "placed_at"
    assert for_type("a.b|@timestamp,orders=placed_at", "clicks") == "a.b|@timestamp"
