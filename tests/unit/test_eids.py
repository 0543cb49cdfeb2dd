"""A row gets the same eid in every attempt, and no other row gets that eid."""

import json
import random
from uuid import UUID

from strandline.pipeline.eids import Stamps

ITEMS = [b'{"n": %d, "price": 1.10}' % number for number in range(50)] + [b'{"same": true}'] * 3


def eids(items, write_id="w", task=0) -> dict[bytes, list[str]]:
    """The eids by event, as the event was before."""
    found: dict[bytes, list[str]] = {}
    for item, stamped in zip(items, Stamps(write_id, task).stamp(items), strict=True):
        found.setdefault(item, []).append(json.loads(stamped)["metadata"]["eid"])
    return found


def test_a_task_that_is_repeated_gives_the_same_eids_in_any_order():
    """Spark does not guarantee the order of rows. Equal rows may swap their eids."""
    shuffled = random.Random(1).sample(ITEMS, len(ITEMS))
    assert eids(shuffled) == eids(ITEMS)


def test_no_two_rows_share_an_eid():
    """Eids are unique within a task, for equal rows, and across tasks and writes."""
    all_of_them = [
        eid for write in "ab" for task in (0, 1) for found in eids(ITEMS, write, task).values() for eid in found
    ]
    assert len({*all_of_them}) == len(all_of_them) == 4 * len(ITEMS)
    assert all(str(UUID(eid)) == eid for eid in all_of_them)


def test_an_eid_that_is_there_stays():
    """An event with an eid keeps all its bytes."""
    event = b'{ "metadata" : {"eid": "mine"}, "price": 1.10 }'
    assert Stamps("w", 0).stamp([event]) == [event]


def test_only_metadata_is_touched():
    """Other values keep their bytes. Missing fields of the metadata are added; existing ones are kept."""
    event = b'{"price": 1.10, "big": 123456789012345678901234567890, "metadata": {"flow_id": "f"}}'
    (stamped,) = Stamps("w", 0, "2024-05-01T12:00:00.000Z").stamp([event])
    assert b'"price":1.10,"big":123456789012345678901234567890' in stamped
    metadata = json.loads(stamped)["metadata"]
    assert metadata.keys() == {"flow_id", "eid", "occurred_at"}
    assert metadata["occurred_at"] == "2024-05-01T12:00:00.000Z"


def test_what_is_no_object_is_left_for_the_log_to_refuse():
    """The item is unchanged, and the log refuses it with its own message."""
    broken = [b"[1]", b"nonsense", b'{"metadata": 5}', b"\xff", b""]
    assert Stamps("w", 0).stamp(broken) == broken
