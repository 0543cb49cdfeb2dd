"""A stored batch that is not what was stored is never served: a flipped bit, a lost or a misplaced batch."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from storage_place import DAY_MS, HOUR_MS, NOW_MS, Place, append, compact, read, store_as, values

from strandline.engine.sqlite import SqliteConnection
from strandline.errors import Damaged, StrandlineError
from strandline.log.records import NewRecords
from strandline.log.storage import Bounds, Storage
from strandline.log.storage.sqlite import SqliteStorage

LIMITS = {"max_records": 1000, "max_bytes": 1 << 20}
TOPIC = "orders.1"


@pytest.fixture
def directory(tmp_path) -> Path:
    return tmp_path / "topics"


@pytest.fixture
def place(directory, monkeypatch) -> Iterator[Place]:
    store_as("small batches", monkeypatch)
    made = Place(f"sqlite:{directory}")
    yield made
    made.close()


@pytest.fixture(params=["small", "Arrow", "compacted"])
def filled(request, place, directory) -> Path:
    """The file of a topic with two partitions, each with the records 0 to 29 in batches of three."""
    storage = place.open()
    storage.create_topic(TOPIC, 2, DAY_MS)
    rest = b"." * (9000 if request.param == "Arrow" else 0)
    for number in range(0, 30, 3):
        new = {p: [b"record-%d-%02d" % (p, n) + rest for n in range(number, number + 3)] for p in (0, 1)}
        # Far apart in time, so that compaction does not merge them all.
        append(storage, TOPIC, new, at=NOW_MS + number * HOUR_MS)
    if request.param == "compacted":
        compact(storage, TOPIC)
    storage.close()  # so that everything is in the file itself
    return directory / f"{TOPIC}.db"


def flip(file: Path, at: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)


def flip_record(file: Path, partition: int, offset: int) -> None:
    """Flip a bit of a record's value, and of what deleted rows have left of it."""
    value = b"record-%d-%02d" % (partition, offset)
    while (at := file.read_bytes().find(value)) >= 0:
        flip(file, at + 1)


def change(file: Path, statement: str) -> None:
    with closing(SqliteConnection(file)) as connection:
        connection.execute(statement)


def damage_of(storage: Storage, partition: int, offset: int) -> Damaged:
    with pytest.raises(Damaged) as caught:
        storage.read(TOPIC, partition, offset, **LIMITS)
    return caught.value


def ranges(storage: Storage) -> list[tuple[int, int, int]]:
    """The damage that the search finds: partition, first and last offset."""
    names = ("partition", "first_offset", "last_offset")
    return [tuple(error.info[name] for name in names) for error in storage.find_damage(TOPIC)]


def test_a_flipped_bit_is_found_and_named(place, filled):
    """The error names the topic, the partition and the offsets; everything else can be read."""
    flip_record(filled, 0, 13)
    storage = place.open()
    assert storage.read(TOPIC, 0, 0, **LIMITS)["offset"].to_pylist() == [*range(12)]
    for offset in (12, 13, 14):
        found = damage_of(storage, 0, offset)
        assert found.info == {"topic": TOPIC, "partition": 0, "first_offset": 12, "last_offset": 14}
        for text in (TOPIC, "partition 0", "12 to 14", "after offset 14"):
            assert text in found.detail
    assert [offset for offset, _ in read(storage, TOPIC, 0, 15)] == [*range(15, 30)]
    assert len(read(storage, TOPIC, 1)) == 30


def test_every_damaged_range_is_found(place, filled):
    """The search goes on after each of them, in all partitions, and each is counted once."""
    for partition, offset in ((0, 1), (1, 28), (0, 16)):
        flip_record(filled, partition, offset)
    storage = place.open()
    assert storage.damaged_batches() == {}
    for _ in range(2):
        assert ranges(storage) == [(0, 0, 2), (0, 15, 17), (1, 27, 29)]
        assert storage.damaged_batches() == {TOPIC: 3}


def test_damage_that_a_reader_finds_is_counted_once(place, filled):
    """However often it is read."""
    flip_record(filled, 0, 0)
    storage = place.open()
    for _ in range(3):
        damage_of(storage, 0, 0)
    assert storage.damaged_batches() == {TOPIC: 1}


def test_appends_bounds_and_purges_go_on_beside_damage(place, filled):
    """The damaged batch expires like any other."""
    flip_record(filled, 0, 4)
    storage = place.open()
    assert append(storage, TOPIC, {0: [b"next"]}, at=NOW_MS + DAY_MS)[0].offsets[0] == 30
    assert storage.bounds(TOPIC) == [Bounds(0, 30), Bounds(0, 29)]
    assert storage.purge(TOPIC, NOW_MS + 7 * HOUR_MS) == 2 * 9
    assert ranges(storage) == []
    assert [offset for offset, _ in read(storage, TOPIC, 0)] == [*range(9, 31)]


def test_compaction_keeps_damage_as_it_is(place, filled):
    """It never gives damaged records a valid checksum. The batches around them are compacted."""
    flip_record(filled, 0, 13)
    storage = place.open()
    for _ in range(10):
        append(storage, TOPIC, {0: [b"new"], 1: [b"new"]}, at=NOW_MS + DAY_MS)
    for _ in range(2):
        compact(storage, TOPIC)
        assert ranges(storage) == [(0, 12, 14)]
    storage.close()
    with closing(SqliteConnection(filled)) as file:
        ((left,),) = file.execute("SELECT count(*) FROM small_batches")
    assert left in (0, 1)


@pytest.mark.parametrize(
    ("change_text", "expected"),
    [
        ("DELETE FROM {table} WHERE partition = 0 AND first_offset = 9", [(0, 9, 11)]),
        (
            "UPDATE {table} SET first_offset = first_offset + 2 WHERE partition = 0 AND first_offset = 27",
            [(0, 27, 28)],
        ),
        ("UPDATE {table} SET records = 2 WHERE partition = 0 AND first_offset = 9", [(0, 9, 11)]),
        ("UPDATE {table} SET records = 400 WHERE partition = 1 AND first_offset = 9", [(1, 9, 11)]),
        ("UPDATE {table} SET layout = 'x' WHERE partition = 0 AND first_offset = 9", [(0, 9, 11)]),
        ("UPDATE {table} SET checksum = checksum + 1 WHERE partition = 0 AND first_offset = 27", [(0, 27, 29)]),
    ],
)
def test_a_batch_that_is_lost_or_changed_is_found(place, filled, change_text, expected):
    """The checksum covers what identifies a batch, and offsets have no gaps."""
    change(filled, change_text.format(table=table_of(filled)))
    found = ranges(place.open())
    assert found[: len(expected)] == expected


def test_batches_in_each_others_place_are_found(place, filled):
    """Both are intact, but neither belongs where it is."""
    table = table_of(filled)
    for old, new in ((0, 100), (9, 0), (100, 9)):  # in steps, because offsets are unique
        change(filled, f"UPDATE {table} SET first_offset = {new} WHERE partition = 0 AND first_offset = {old}")  # noqa: S608
    assert ranges(place.open()) == [(0, 0, 2), (0, 9, 11)]


def table_of(file: Path) -> str:
    with closing(SqliteConnection(file)) as connection:
        return "batches" if connection.execute("SELECT 1 FROM batches LIMIT 1") else "small_batches"


@pytest.mark.parametrize("filled", ["Arrow"], indirect=True)
def test_a_batch_from_before_there_were_checksums_is_read(place, filled):
    """It cannot be checked, but bytes that are no Arrow batch are an error, not a crash."""
    change(filled, "UPDATE batches SET checksum = NULL")
    storage = place.open()
    assert ranges(storage) == []
    assert len(values(storage, TOPIC, 0)) == 30
    storage.close()
    change(
        filled, "UPDATE batches SET payload = zeroblob(length(payload)) WHERE partition = 0 AND first_offset = 3"
    )
    change(filled, "UPDATE batches SET payload = substr(payload, 1, 300) WHERE partition = 0 AND first_offset = 9")
    assert ranges(place.open()) == [(0, 3, 5), (0, 9, 11)]


def test_the_error_survives_pickling(place, filled):
    """Spark moves it from a worker to the driver."""
    flip_record(filled, 0, 13)
    (found,) = place.open().find_damage(TOPIC)
    again = pickle.loads(pickle.dumps(found))
    assert (type(again), again.detail, again.info) == (Damaged, found.detail, found.info)


@pytest.fixture
def various(place, directory) -> Path:
    """A topic with all forms of batches: small, packed, with keys and headers, Arrow, and merged ones."""
    storage = place.open()
    storage.create_topic(TOPIC, 1, DAY_MS)
    for number in range(12):
        append(storage, TOPIC, {0: [b"early-%d" % number]}, at=NOW_MS + number)
    compact(storage, TOPIC)
    storage.append(TOPIC, {0: NewRecords(NOW_MS, [b"value"] * 60, [b"key"] * 60, [[("h", b"1")]] * 60)}).result(30)
    storage.append(TOPIC, {0: NewRecords(NOW_MS, [b"packed", b"two"], [b"k", None])}).result(30)
    for number in range(6):
        append(storage, TOPIC, {0: [b"late-%d" % number]}, at=NOW_MS + number)
    storage.close()
    return directory / f"{TOPIC}.db"


def test_no_flipped_bit_of_the_file_is_served_as_data(directory, various):
    """Whichever bit it is, a record that is read is what was stored, or the read fails."""
    content = various.read_bytes()
    stored = collected(directory)
    assert len(stored) == 80
    dice = random.Random(5)
    flips = [(dice.randrange(100, len(content)), dice.randrange(8)) for _ in range(400)]
    outcomes = set()
    for at, bit in flips:
        flip(various, at, bit)
        try:
            found = collected(directory)
        except StrandlineError as error:
            outcomes.add(type(error))
        else:
            assert found.items() <= stored.items(), f"bit {bit} of byte {at}"
            outcomes.add(len(found) == len(stored))
        for beside in ("-wal", "-shm"):
            various.with_name(various.name + beside).unlink(missing_ok=True)
        various.write_bytes(content)
    assert outcomes >= {Damaged, True}


def collected(directory: Path) -> dict[int, object]:
    """Everything that is read of the topic, record by record."""
    found: dict[int, object] = {}
    with closing(SqliteStorage(directory)) as storage:
        offset = 0
        while (batch := storage.read(TOPIC, 0, offset, **LIMITS)).num_rows:
            rows = batch.to_pylist()
            found.update((row["offset"], str(row)) for row in rows)
            assert rows[-1]["offset"] >= offset
            offset = rows[-1]["offset"] + 1
    return found
