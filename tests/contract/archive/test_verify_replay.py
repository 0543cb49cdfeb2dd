"""Hours compared with their flags, and published again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow.parquet as pq
import pytest
from archive_place import GRACE, NOON, ArchivePlace

from strandline.archive import replay
from strandline.archive.model import HOUR_MS
from strandline.archive.replay import as_sent
from strandline.archive.verify import verify
from strandline.errors import Conflict

ONE = NOON + HOUR_MS


@pytest.fixture
def ready(place: ArchivePlace) -> ArchivePlace:
    """An archive with a flagged hour of five events in two partitions, one of them late."""
    archiver = place.working()
    place.publish(NOON + 1, NOON + 2)
    place.publish(NOON + 3, NOON + 4, partition=1)
    place.live_through(archiver, ONE + GRACE)
    place.publish(NOON + 5)
    place.live_through(archiver, ONE + HOUR_MS + GRACE)
    return place


def problems(place: ArchivePlace, hour_ms: int = NOON) -> Sequence[str]:
    return verify(place.files, place.ledger, place.layout("orders"), hour_ms).problems


def test_an_hour_in_order_has_no_problems(ready: ArchivePlace):
    """A complete hour and an hour without data have no problems."""
    check = verify(ready.files, ready.ledger, ready.layout("orders"), NOON)
    assert check.ok
    assert (check.hour, check.revision, check.files, check.rows) == ("2024-05-01T12", 2, 3, 5)
    assert problems(ready, ONE) == ()


def test_an_hour_that_is_not_flagged_is_not_in_order(ready: ArchivePlace):
    """An hour without a flag has problems, even if it will be flagged later."""
    assert problems(ready, ONE + HOUR_MS) == (
        "the ledger has no flag for this hour",
        "there is no flag in the data directory",
        "there is no flag in the directory above",
    )


def test_missing_changed_and_strange_files_are_found(ready: ArchivePlace):
    """Each problem names the file."""
    folder = ready.root / "2024-05-01/12/orders/data"
    first, second, third = sorted(folder.glob("*.parquet"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    (folder / "strange.parquet").write_bytes(b"")
    assert problems(ready) == (
        f"{first.name} is missing",
        f"{second.name} is not the file that was published: its size or checksum differs",
        "strange.parquet is not listed in the flag",
    )
    assert third.exists()


def test_flags_that_are_not_the_ledgers_are_found(ready: ArchivePlace):
    """A missing flag, one of an earlier revision and an edited one are found."""
    beside, above = (ready.root / path for path in ready.layout("orders").flags(NOON))
    content = msgspec.json.decode(above.read_bytes())
    beside.unlink()
    above.write_bytes(msgspec.json.encode({**content, "revision": 1, "rows": 4}))
    assert problems(ready) == (
        "there is no flag in the data directory",
        "the flag in the directory above (revision 1) differs from the ledger's (revision 2)",
        "row count mismatch: the files listed in the flag do not add up to its total",
    )


def test_the_rows_of_a_file_are_counted(ready: ArchivePlace):
    """Rows are counted even if the checksum matches; an invalid Parquet file is found."""
    folder = ready.root / "2024-05-01/12/orders/data"
    first, second, _ = sorted(folder.glob("*.parquet"))
    pq.write_table(pq.read_table(first, partitioning=None).slice(0, 0), first)
    second.write_bytes(b"garbage")
    flags = [ready.root / path for path in ready.layout("orders").flags(NOON)]
    content = msgspec.json.decode(flags[0].read_bytes())
    for listed in content["files"]:
        digest = ready.files.digest(f"2024-05-01/12/orders/data/{listed['name']}")
        listed["bytes"], listed["sha256"] = digest.size, digest.sha256
    for flag in flags:
        flag.write_bytes(msgspec.json.encode(content))
    found = problems(ready)
    assert f"{first.name} has 0 rows, not 1" in found
    assert any(one.startswith(f"{second.name} is not Parquet") for one in found)


# -- replay


def test_ready_hours_are_published_again_in_order(ready: ArchivePlace):
    """Every event of the manifest is published once, with late ones in order, partition by partition."""
    sent: list[bytes] = []
    done = [*replay.replay(ready.files, ready.layout("orders"), [NOON, ONE], sent.extend)]
    assert [(one.hour, one.revision, one.events) for one in done] == [
        ("2024-05-01T12", 2, 5),
        ("2024-05-01T13", 1, 0),
    ]
    times = [msgspec.json.decode(value)["metadata"]["occurred_at"][-4:] for value in sent]
    assert times == ["001Z", "002Z", "005Z", "003Z", "004Z"]


def test_hours_that_are_not_ready_are_not_published(ready: ArchivePlace):
    """No event of an hour that is not ready is published."""
    sent: list[bytes] = []
    with pytest.raises(Conflict, match="2024-05-01T14 of event type 'orders' is not ready"):
        [*replay.replay(ready.files, ready.layout("orders"), [ONE + HOUR_MS], sent.extend)]
    assert sent == []


def test_events_are_published_in_batches_of_bounded_size(ready: ArchivePlace, monkeypatch):
    """A batch is limited by number and by bytes."""
    sent: list[int] = []
    monkeypatch.setattr(replay, "_EVENTS", 2)
    layout = ready.layout("orders")
    [*replay.replay(ready.files, layout, [NOON], lambda events: sent.append(len(events)))]
    assert sent == [2, 2, 1]
    monkeypatch.setattr(replay, "_BYTES", 10)
    sent.clear()
    [*replay.replay(ready.files, layout, [NOON], lambda events: sent.append(len(events)))]
    assert sent == [1] * 5


def test_what_was_added_on_reception_is_taken_away():
    """Added metadata is removed; all other bytes and other events are unchanged."""
    sent = b'{"metadata":{"eid":"x","occurred_at":"t","flow_id":"f","partition":"0"},"n":1.50,"s":"\xc3\xbc"}'
    stored = sent.replace(b'"f",', b'"f","received_at":"r","version":"1","event_type":"e","published_by":"p",')
    assert as_sent(stored) == sent
    for value in (sent, b'{"a": 1}', b'{"metadata":7}', b'{"metadata": {}}'):
        assert as_sent(value) == value
