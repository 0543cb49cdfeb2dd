"""pyNakadi, unmodified, against a node."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from nakadi_orders import ORDERS
from pyNakadi import NakadiClient, NakadiException

from services import Server, until


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("pynakadi") / "data") as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[NakadiClient]:
    made = NakadiClient("some-token", server.url)
    with closing(made.session):
        yield made


@pytest.fixture
def orders(client: NakadiClient) -> str:
    """An event type of three partitions, defined as Nakadi clients do."""
    name = f"pynakadi.orders-{uuid.uuid4().hex}"
    definition = {
        **ORDERS,
        "name": name,
        "default_statistic": {
            "messages_per_minute": 1, "message_size": 1, "read_parallelism": 3, "write_parallelism": 1,
        },
        "schema": {"type": "json_schema", "schema": json.dumps({"properties": {"order": {"type": "string"}}})},
        "authorization": {"admins": [], "readers": [], "writers": []},
    }  # fmt: skip
    assert client.create_event_type(definition)
    return name


def events(count: int) -> list[dict]:
    return [
        {
            "metadata": {"eid": str(uuid.uuid4()), "occurred_at": "2024-05-01T12:00:00+02:00"},
            "order": str(number),
        }
        for number in range(count)
    ]


def subscribe(client: NakadiClient, name: str, **more) -> dict:
    return client.create_subscription({"owning_application": "billing", "event_types": [name], **more})


def collect(client: NakadiClient, subscription: dict, count: int, *, commit: bool = True) -> list[str]:
    """Read, and by default commit, until `count` events have arrived."""
    found: list[str] = []
    stream = client.get_subscription_events_stream(subscription["id"], batch_limit=2, batch_flush_timeout=1)
    while len(found) < count:
        batch = json.loads(next(stream))
        assert set(batch) <= {"cursor", "events", "info"}
        assert set(batch["cursor"]) == {"event_type", "partition", "offset", "cursor_token"}
        found += [event["order"] for event in batch.get("events", [])]
        if commit and "events" in batch:
            assert client.commit_subscription_cursors(
                subscription["id"], stream.get_stream_id(), [batch["cursor"]]
            )
    assert str(uuid.UUID(stream.get_stream_id())) == stream.get_stream_id()
    stream.close()
    return found


def gone(client: NakadiClient, subscription: dict) -> bool:
    """Whether no stream is open."""
    (stats,) = client.get_subscription_stats(subscription["id"])["items"]
    return all(partition["state"] == "unassigned" for partition in stats["partitions"])


def test_from_an_event_type_to_committed_cursors(client, orders):
    """Create, publish, subscribe, read, commit and statistics work with pyNakadi."""
    assert client.get_event_type(orders)["owning_application"] == "shop"
    assert len(client.get_event_type_partitions(orders)) == 3
    subscription = subscribe(client, orders, read_from="begin")
    assert client.get_subscription(subscription["id"]) == subscription
    assert client.post_events(orders, events(9))
    assert sorted(collect(client, subscription, 9)) == sorted(str(n) for n in range(9))
    (stats,) = client.get_subscription_stats(subscription["id"], show_time_lag=True)["items"]
    assert stats["event_type"] == orders
    assert [partition["partition"] for partition in stats["partitions"]] == ["0", "1", "2"]
    assert [partition["unconsumed_events"] for partition in stats["partitions"]] == [0, 0, 0]
    assert [partition["consumer_lag_seconds"] for partition in stats["partitions"]] == [0, 0, 0]
    assert all(isinstance(partition["stream_id"], str) for partition in stats["partitions"])
    cursors = client.get_subscription_cursors(subscription["id"])["items"]
    assert {cursor["partition"] for cursor in cursors} == {"0", "1", "2"}


def test_what_was_not_committed_comes_again(client, orders):
    """Uncommitted events are sent again, committed events are not."""
    subscription = subscribe(client, orders, read_from="begin")
    client.post_events(orders, events(6))
    first = collect(client, subscription, 6, commit=False)
    until(lambda: gone(client, subscription), "the end of the stream")
    assert sorted(collect(client, subscription, 6)) == sorted(first)
    until(lambda: gone(client, subscription), "the end of the stream")
    client.post_events(orders, [*events(1)])
    assert collect(client, subscription, 1) == ["0"]


def test_one_subscription_for_one_key(client, orders):
    """Creating a subscription is 201, and 200 with the same subscription if it exists."""
    asked = {"owning_application": "billing", "event_types": [orders], "consumer_group": "one"}
    assert client.create_subscription_v2(asked)[0] == 201
    status, again = client.create_subscription_v2({**asked, "read_from": "begin"})
    assert status == 200
    assert again["read_from"] == "end"


def test_pages_of_subscriptions_keep_their_filter(client, orders):
    """The `next` and `prev` links keep the filter."""
    made = [subscribe(client, orders, consumer_group=f"g{n}") for n in range(5)]
    page = client.get_subscriptions(owning_application="billing", event_type=[orders], limit=2)
    found = [page["items"]]
    while (page := client.get_next_subscriptions(page)) is not None:
        found.append(page["items"])
        last = page
    assert [one["id"] for items in found for one in items] == [one["id"] for one in reversed(made)]
    assert client.get_prev_subscriptions(last)["items"] == found[-2]


def test_a_reset_goes_back(client, orders):
    """After a reset to BEGIN all events are sent again."""
    subscription = subscribe(client, orders, read_from="begin")
    client.post_events(orders, events(4))
    collect(client, subscription, 4)
    back = [{"event_type": orders, "partition": p, "offset": "BEGIN"} for p in "012"]
    assert client.reset_subscription_cursors(subscription["id"], back)
    assert len(collect(client, subscription, 4)) == 4


def test_a_second_client_of_one_partition_is_refused(client):
    """A second client of one partition gets 409. A subscription can be deleted while it is read."""
    name = f"pynakadi.single-{uuid.uuid4().hex}"
    client.create_event_type({"name": name, "category": "undefined", "schema": {"schema": "{}"}})
    subscription = subscribe(client, name)
    stream = client.get_subscription_events_stream(subscription["id"])
    with pytest.raises(NakadiException, match="no free slots") as error:
        client.get_subscription_events_stream(subscription["id"])
    assert error.value.code == 409
    client.delete_subscription(subscription["id"])
    with pytest.raises(NakadiException) as error:
        client.get_subscription(subscription["id"])
    assert error.value.code == 404
    stream.close()


def test_errors_carry_their_status(client, orders):
    """An unknown event type or stream is 422, an unknown subscription is 404."""
    with pytest.raises(NakadiException) as error:
        subscribe(client, "pynakadi.nothing")
    assert error.value.code == 422
    subscription = subscribe(client, orders)
    with pytest.raises(NakadiException) as error:
        client.commit_subscription_cursors(subscription["id"], str(uuid.uuid4()), [])
    assert error.value.code == 422
    for call in (client.get_subscription, client.get_subscription_stats, client.get_subscription_cursors):
        with pytest.raises(NakadiException) as error:
            call(str(uuid.uuid4()))
        assert error.value.code == 404
