"""A damaged batch in one partition of a running room: everything else goes on, in process and over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from services import until
from strandline.engine.sqlite import SqliteConnection
from strandline.errors import Damaged
from strandline.log import Batch, Log
from strandline.log.subscriptions import Subscription

PARTITIONS = ("0", "1", "2")


@dataclass(frozen=True)
class Damage:
    """What is damaged in partition 1, and which events are not before it."""

    topic: str
    first: int
    last: int
    unreachable: set[int]


def publish(log: Log, name: str, start: int, count: int = 150) -> None:
    """So many at once that every partition gets an Arrow batch of its own, which is never merged."""
    log.publish(name, [{"id": str(number)} for number in range(start, start + count)]).raise_for_failed()


def ids(batches: Iterable[Batch]) -> list[int]:
    return [int(event["id"]) for batch in batches for event in batch.events]


def cursor(offset: int) -> str:
    return f"001-0001-{offset:018d}"


@pytest.fixture
def damage(log: Log, orders: str, data: Path) -> Damage:
    """Of 450 events in three batches per partition, the second batch of partition 1 has a flipped bit."""
    for start in (0, 150, 300):
        publish(log, orders, start)
    topic = log.timelines(orders)[0].topic
    with closing(SqliteConnection(data / "topics" / f"{topic}.db")) as file:
        found = file.execute("SELECT first_offset, records, payload FROM batches WHERE partition = 1 ORDER BY 1")
        first, number, payload = found[1]
        flipped = bytearray(payload)
        flipped[-1] ^= 1
        change = "UPDATE batches SET payload = ? WHERE partition = 1 AND first_offset = ?"
        unreachable = set(ids(log.read(orders, {"1": cursor(first - 1)})))
        file.execute(change, (bytes(flipped), first))
    return Damage(topic, first, first + number - 1, unreachable)


def test_a_read_gives_all_other_events_and_then_the_error(log: Log, orders: str, damage: Damage):
    """The error names the topic and the range."""
    found: list[Batch] = []
    with pytest.raises(Damaged) as caught:
        found.extend(log.read(orders))
    place = {"topic": damage.topic, "partition": 1, "first_offset": damage.first, "last_offset": damage.last}
    assert place.items() <= caught.value.info.items()
    assert f"topic {damage.topic!r}, partition 1: the records {damage.first} to {damage.last}" in str(caught.value)
    assert sorted(ids(found)) == sorted(set(range(450)) - damage.unreachable)


def test_a_read_can_go_on_after_the_damage(log: Log, orders: str, damage: Damage):
    """From the offset that the error names."""
    rest = set(ids(log.read(orders, {"1": cursor(damage.last)})))
    assert rest < damage.unreachable
    assert len(damage.unreachable - rest) == damage.last - damage.first + 1


def test_nothing_can_be_read_from_the_damaged_place(log: Log, orders: str, damage: Damage):
    """A reader that waits for more gets the error, too, every time."""
    for follow in (False, True, True):
        with pytest.raises(Damaged, match=damage.topic):
            list(log.read(orders, {"1": cursor(damage.first)}, follow=follow))


def test_a_follower_gets_new_events_of_the_other_partitions(log: Log, orders: str, damage: Damage):
    """Damage does not stop them."""
    reader = log.read(orders, dict.fromkeys(PARTITIONS, cursor(damage.first)), follow=True)
    found = set(ids([next(reader)]))
    publish(log, orders, 1000)
    reached = set(ids(log.read(orders, dict.fromkeys(("0", "2"), cursor(damage.first)))))
    until(lambda: found.update(ids([next(reader)])) or found == reached, "all events of the other partitions")
    reader.close()


def test_a_subscription_goes_on_in_the_other_partitions(log: Log, orders: str, damage: Damage):
    """Its consumer gets and commits everything else, also what is published later."""
    made, _ = log.subscriptions.create(Subscription("shop", (orders,), read_from="begin"))
    publish(log, orders, 450)
    unreachable = damage.unreachable | set(ids(log.read(orders, {"1": cursor(damage.last)})))
    found: list[int] = []

    with log.subscriptions.consume(str(made.id)) as consumer:

        def complete() -> bool:
            batch = consumer.receive(0.05)
            if batch is not None:
                found.extend(ids([batch]))
                consumer.commit(batch)
            return len(found) >= 600 - len(unreachable)

        until(complete, "all other events")
    assert sorted(found) == sorted(set(range(600)) - unreachable)


def test_damage_is_counted_once(request: pytest.FixtureRequest, log: Log, orders: str, damage: Damage):
    """However often it is read."""
    for _ in range(2):
        with pytest.raises(Damaged):
            list(log.read(orders))
    if request.node.callspec.params["log"] == "http":
        lines = httpx.get(request.getfixturevalue("server_url") + "/metrics").text.splitlines()
        assert f'strandline_damaged_batches_total{{topic="{damage.topic}"}} 1.0' in lines
    else:
        counts = {metric.name: values for metric, values in log.counts().items()}
        assert counts["strandline_damaged_batches"][damage.topic] == 1


@pytest.mark.parametrize("log", ["http"], indirect=True)
def test_a_stream_that_can_send_nothing_is_refused(log: Log, orders: str, damage: Damage, server_url: str):
    """With a problem document instead of an empty stream."""
    at = f'[{{"partition": "1", "offset": "{cursor(damage.first)}"}}]'
    answer = httpx.get(f"{server_url}/event-types/{orders}/events", headers={"X-Nakadi-Cursors": at})
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    problem = answer.json()
    assert (problem["code"], problem["topic"], problem["partition"]) == ("damaged", damage.topic, 1)
    assert (problem["first_offset"], problem["last_offset"]) == (damage.first, damage.last)
