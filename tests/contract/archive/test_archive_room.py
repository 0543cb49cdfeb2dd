"""The archive room, in process and over HTTP: every test in this file runs on both."""

from __future__ import annotations

import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from archive_place import NOON

import strandline
from services import CLIENT, DEADLINE_S, Server
from strandline.archive.model import HOUR_MS, Counts
from strandline.archive.room import MAX_WAIT_MS, Archive, HourStatus
from strandline.archive.settings import ArchiveSettings
from strandline.clock import ManualClock, to_rfc3339
from strandline.errors import Conflict, Invalid, NotFound, Unavailable
from strandline.log import EventType
from strandline.platform import Platform
from strandline.settings import Settings

ONE = NOON + HOUR_MS
NOW = ONE + HOUR_MS + 20 * 60_000
READY, DUE, OPEN = "2024-05-01T12", "2024-05-01T13", "2024-05-01T14"
BARRIER = "the barrier is not read yet"

Opened = Iterator[Archive]


@contextmanager
def embedded(data: Path, now_ms: int = NOW) -> Iterator[Platform]:
    settings = Settings(archive=ArchiveSettings(look_back_hours=2))
    with Platform(data, settings, ManualClock(now_ms)) as platform:
        yield platform


@contextmanager
def local_room(data: Path) -> Opened:
    with embedded(data) as platform:
        yield platform.archive


@contextmanager
def http_room(data: Path) -> Opened:
    clock = {"STRANDLINE_TEST_CLOCK": f"{NOW},1"}
    server = Server(data, env=clock, logs_level="warning")
    with server as started, strandline.connect(started.url, timeout=30) as remote:
        yield remote.archive


ROOMS = {"local": local_room, "http": http_room}


def fill(data: Path) -> None:
    """At 14:20, hour 12 is ready with two files, 13 is due and 14 is open; one event type was deleted."""
    with embedded(data, NOON) as platform:
        for name in ("orders", "gone"):
            platform.log.create(
                EventType(name, category="business", partitions=2, partition_strategy="user_defined")
            )
        publish(platform, *range(NOON + 1, NOON + 21))
        platform.clock.advance(HOUR_MS + 60_000)
        platform.archive.process().once()
        platform.log.delete("gone")
        publish(platform, ONE + 1)


def publish(platform: Platform, *times_ms: int) -> None:
    """Publish events with these times, alternating between both partitions."""
    events = [
        {"metadata": {"eid": str(uuid.uuid4()), "occurred_at": to_rfc3339(time_ms), "partition": str(number % 2)}}
        for number, time_ms in enumerate(times_ms)
    ]
    platform.log.publish("orders", events).raise_for_failed()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A data directory for each kind of room."""
    found: dict[str, Path] = {}

    def one(kind: str) -> Path:
        if kind not in found:
            found[kind] = tmp_path_factory.mktemp(kind) / "data"
            fill(found[kind])
        return found[kind]

    return one


@pytest.fixture(scope="module", params=ROOMS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def data(kind: str, filled: Callable[[str], Path]) -> Path:
    return filled(kind)


@pytest.fixture(scope="module")
def archive(kind: str, data: Path) -> Opened:
    with ROOMS[kind](data) as room:
        yield room


def data_files(data: Path) -> list[Path]:
    return sorted((data / "archive" / "2024-05-01/12/orders/data").glob("*.parquet"))


def test_the_status_names_lag_last_ready_hour_and_due_hours(archive: Archive):
    """The status has one entry for every event type, by name."""
    gone, orders = archive.status()
    assert (orders.event_type, orders.retired, orders.counts) == ("orders", False, Counts(20, 20))
    assert (orders.last_ready, orders.lag) == (READY, 1)
    assert (orders.due_hours, orders.due) == (1, (HourStatus(DUE, "due", reason=BARRIER),))
    assert sum(partition.unarchived_events for partition in orders.partitions) == 1
    assert sorted(partition.partition for partition in orders.partitions) == ["0", "1"]
    assert (gone.event_type, gone.lag, gone.last_ready) == ("gone", None, READY)
    assert gone.due == (HourStatus(DUE, "due", reason="the event type does not exist"),)


def test_hours_are_listed_with_their_state(archive: Archive):
    """The list goes from the first configured hour to the current one."""
    everything = [
        HourStatus(READY, "ready", 1),
        HourStatus(DUE, "due", reason=BARRIER),
        HourStatus(OPEN, "open"),
    ]
    assert [*archive.hours("orders")] == everything
    assert [*archive.hours("orders", "1970-01-01T00", "9999-12-31T23")] == everything
    assert [*archive.hours("orders", DUE)] == everything[1:]
    assert [*archive.hours("orders", end=DUE)] == everything[:1]
    assert [*archive.hours("orders", DUE, DUE)] == []
    assert [*archive.hours("orders", "2030-01-01T00")] == []
    assert [[*archive.hours("orders", state=one.state)] for one in everything] == [[one] for one in everything]


def test_an_hour_has_its_state_its_reason_and_its_manifest(archive: Archive, data: Path):
    """The manifest is the content of `_READY`; an hour of the future is open."""
    report = archive.hour("orders", READY)
    assert (report.hour, report.state, report.revision) == (READY, "ready", 1)
    assert [file.name for file in report.manifest.files] == [file.name for file in data_files(data)]
    assert report.manifest == archive.manifest("orders", READY)
    assert (report.manifest.rows, report.manifest.event_type) == (20, "orders")
    due = archive.hour("orders", DUE)
    assert (due.state, due.reason, due.manifest) == ("due", BARRIER, None)
    assert archive.hour("orders", OPEN).state == archive.hour("orders", "2030-01-01T00").state == "open"


def test_hours_can_be_named_by_text_or_datetime(archive: Archive):
    """An hour may be in any time zone if it is the start of an hour in UTC."""
    east = timezone(timedelta(hours=2))
    for hour in (READY, "2024-05-01T12:00:00Z", "2024-05-01T14:00:00.000+02:00"):
        assert archive.is_ready("orders", hour)
    assert archive.is_ready("orders", datetime(2024, 5, 1, 12, tzinfo=UTC))
    assert archive.is_ready("orders", datetime(2024, 5, 1, 14, tzinfo=east))
    assert not archive.is_ready("orders", DUE)


@pytest.mark.parametrize(
    "hour",
    [
        "",
        "noon",
        "2024-05-01",
        "2024-05-01T24",
        "2024-13-01T00",
        "2024-05-01T12\n",
        "2024-05-01T12:30:00Z",
        "../../storages",
        datetime(2024, 5, 1, 12),  # noqa: DTZ001 - that is what is refused
        datetime(2024, 5, 1, 12, 30, tzinfo=UTC),
    ],
)
def test_what_is_not_an_hour_is_refused(archive: Archive, hour):
    """Every method refuses it before it reads anything."""
    for act in (archive.hour, archive.is_ready, archive.manifest, archive.wait, archive.check, archive.hours):
        with pytest.raises(Invalid, match="is not the start of an hour; write it like 2026-11-15T12"):
            act("orders", hour)
    with pytest.raises(Invalid, match="is not the start of an hour"):
        archive.periods(hour, OPEN)


def test_a_span_that_ends_before_it_starts_is_refused(archive: Archive):
    """An inverted span is Invalid, not empty."""
    for act in (lambda: archive.hours("orders", OPEN, DUE), lambda: archive.periods(OPEN, DUE)):
        with pytest.raises(Invalid, match=r"ends .*T13.* before it starts .*T14"):
            [*act()]


@pytest.mark.parametrize("name", ["nothing", "..", "a/b", "orders?state=ready", " "])
def test_an_event_type_that_is_not_archived_is_not_found(archive: Archive, name: str):
    """The call itself raises NotFound, not the first item."""
    for act in (archive.hour, archive.is_ready, archive.manifest, archive.wait, archive.check, archive.hours):
        with pytest.raises(NotFound):
            act(name, READY)
    with pytest.raises(NotFound):
        archive.verify(name)


def test_an_hour_for_which_nothing_is_configured_is_not_found(archive: Archive):
    """The error names the configured hours, because a wait would never end."""
    for act in (archive.hour, archive.is_ready, archive.manifest, archive.wait, archive.check):
        with pytest.raises(NotFound, match="is not archived for 2024-05-01T11, only from 2024-05-01T12"):
            act("orders", "2024-05-01T11")


def test_an_hour_that_is_not_ready_has_no_manifest_and_cannot_be_checked(archive: Archive):
    """The error says why the hour is not ready."""
    with pytest.raises(Conflict, match=f"{DUE} of event type 'orders' is not ready: {BARRIER}"):
        archive.manifest("orders", DUE)
    with pytest.raises(Conflict, match="is not ready: it has not ended yet"):
        archive.manifest("orders", OPEN)
    with pytest.raises(Conflict, match="is not ready"):
        archive.check("orders", DUE)


def test_a_wait_is_over_when_its_time_is(archive: Archive):
    """After the timeout the error says why the hour is not ready; a ready hour needs no wait."""
    with pytest.raises(Unavailable, match=rf"{BARRIER} \(waited 0.1 s\)"):
        archive.wait("orders", DUE, timeout=0.1)
    assert archive.wait("orders", READY, timeout=0).rows == 20
    assert archive.hour("orders", DUE, wait_ms=20).state == "due"
    for wait_ms in (-1, MAX_WAIT_MS + 1):
        with pytest.raises(Invalid, match="wait_ms"):
            archive.hour("orders", DUE, wait_ms)


def test_ready_hours_are_verified(archive: Archive, data: Path):
    """Only ready hours are verified, and a damaged file is named."""
    (check,) = archive.verify("orders")
    assert (check.ok, check.hour, check.revision, check.files, check.rows) == (True, READY, 1, 2, 20)
    assert [*archive.verify("orders", DUE)] == []
    file = data_files(data)[0]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    try:
        (check,) = archive.verify("orders", READY, DUE)
    finally:
        file.write_bytes(whole)
    assert not check.ok
    assert check.problems == (f"{file.name} is not the file that was published: its size or checksum differs",)


def test_a_check_goes_on_after_a_file(archive: Archive, data: Path):
    """A check can start after a given file, so that a long check runs in parts."""
    first, second = (file.name for file in data_files(data))
    assert (archive.check("orders", READY).files, archive.check("orders", READY, first).files) == (2, 1)
    assert archive.check("orders", READY, second).files == 0


def test_flagged_directories_above_are_listed(archive: Archive):
    """Periods are sorted by time, also over more days than one request allows."""
    (period,) = archive.periods(READY, DUE)
    assert (period.path, period.start, period.revision) == ("2024-05-01/12", "2024-05-01T12:00:00.000Z", 1)
    assert [*archive.periods("2023-12-01T00", "2024-12-01T00")] == [period]
    assert [*archive.periods(DUE, OPEN)] == []


@pytest.fixture
def own(kind: str, tmp_path: Path) -> Path:
    """A filled data directory that the test may change."""
    fill(tmp_path / "data")
    return tmp_path / "data"


def test_a_wait_is_over_when_the_hour_is_ready(kind: str, own: Path):
    """A wait ends when another process has flagged the hour."""
    with ROOMS[kind](own) as archive, embedded(own) as platform:
        found = []
        waiting = threading.Thread(target=lambda: found.append(archive.wait("orders", DUE, timeout=DEADLINE_S)))
        waiting.start()
        platform.archive.process().once()
        waiting.join(DEADLINE_S)
    assert [(manifest.hour, manifest.rows) for manifest in found] == [("2024-05-01T13:00:00.000Z", 1)]


def test_an_hour_whose_flag_was_removed_is_not_ready(kind: str, own: Path):
    """Jobs cannot read the missing flag; the next start of an archive process writes it again."""
    flag = own / "archive/2024-05-01/12/orders/_READY"
    flag.unlink()
    with ROOMS[kind](own) as archive:
        report = archive.hour("orders", READY)
        assert (report.state, report.manifest) == ("due", None)
        assert "its flag is missing in the files" in report.reason
        (check,) = archive.verify("orders")
        assert check.problems == ("there is no flag in the directory above",)


def test_a_look_at_an_archive_that_never_ran_makes_no_ledger(kind: str, tmp_path: Path):
    """Reads create no ledger, and the errors say how to start the archive."""
    with embedded(tmp_path / "data") as platform:
        platform.log.create(EventType("orders"))
    with ROOMS[kind](tmp_path / "data") as archive:
        assert archive.status() == [*archive.periods(READY, DUE)] == []
        for act in (archive.hour, archive.is_ready, archive.wait, archive.check, archive.hours):
            with pytest.raises(NotFound, match=r"'orders' is not archived; .* pipeline run archive"):
                act("orders", READY)
    assert not (tmp_path / "data" / "archive.db").exists()


# -- only over HTTP


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("pages") / "data"
    fill(data)
    with Server(data, env={"STRANDLINE_TEST_CLOCK": f"{NOW},1"}, logs_level="warning") as server:
        yield server.url


def test_hours_come_in_pages(url: str):
    """Each page links to the next one with the same filters."""
    page = CLIENT.get(
        f"{url}/archive/orders/hours", params={"limit": 2, "from": READY, "to": "2024-05-01T15"}
    ).json()
    assert [item["hour"] for item in page["items"]] == [READY, DUE]
    following = page["_links"]["next"]["href"]
    assert following == f"/archive/orders/hours?from={OPEN}&to=2024-05-01T15&limit=2"
    assert CLIENT.get(url + following).json() == {"_links": {}, "items": [{"hour": OPEN, "state": "open"}]}


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/archive/orders/hours?from=noon", "does not match regex|matching regex"),
        ("/archive/orders/hours?from=2024-13-01T00", "is not the start of an hour"),
        ("/archive/orders/hours?state=late", "Invalid enum value 'late'"),
        ("/archive/orders/hours?limit=0", "limit"),
        ("/archive/orders/hours/noon", "is not the start of an hour"),
        (f"/archive/orders/hours/{READY}?wait_ms=60001", "wait_ms"),
        ("/archive/periods?from=2024-01-01T00", "missing required field `to`"),
        ("/archive/periods?from=2024-01-01T00&to=2024-03-01T00", "longer than 31 days; request a shorter span"),
    ],
)
def test_bad_parameters_are_named(url: str, path: str, detail: str):
    """A wrong parameter is 422 with its name."""
    answer = CLIENT.get(url + path)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid"
    assert re.search(detail, answer.json()["detail"])


def test_a_wait_does_not_keep_a_server_from_stopping(tmp_path: Path):
    """A stopping server answers a waiting request at once with the current state."""
    fill(tmp_path / "data")
    with (
        Server(tmp_path / "data", env={"STRANDLINE_TEST_CLOCK": f"{NOW},1"}) as server,
        socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as waiting,
    ):
        path = f"/archive/orders/hours/{DUE}?wait_ms={MAX_WAIT_MS}"
        waiting.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        # The answer to a later request shows that the server has received this one.
        assert CLIENT.get(f"{server.url}/health").status_code == 200
        assert server.stop() == 0
        answer = waiting.makefile("rb").read()
    assert b'"state":"due"' in answer
