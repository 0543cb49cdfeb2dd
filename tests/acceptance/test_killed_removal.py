"""A node is killed while it removes a timeline: another node finishes, and readers see no difference."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from services import CLIENT, Server, run_cli, until

RETENTION_MS = 1_500
#: A removal hits each of these once, in this order.
STEPS = ["upkeep.mark", "upkeep.delete", "upkeep.forget"]


def node(data: Path, failpoint: str = "") -> Server:
    env = {"STRANDLINE_TEST_FAILPOINT": f"{failpoint}:kill"} if failpoint else {}
    return Server(data, env=env, log_purge_interval_ms=100, log_cleanup_delay_ms=300).start()


def switched(server: Server) -> None:
    """Create an event type with three events in a closed timeline, and a subscription that has read one."""
    second = {"id": "second", "storage_type": "sqlite", "sqlite_configuration": {"directory": "second"}}
    definition = {"name": "orders", "options": {"retention_time": 86_400_000}}
    cursors = [{"event_type": "orders", "partition": "0", "offset": "001-0001-000000000000000000"}]
    subscription = {"owning_application": "app", "event_types": ["orders"], "read_from": "cursors"}
    for path, body in (
        ("/storages", second),
        ("/event-types", definition),
        ("/event-types/orders/events", [{"n": n} for n in range(3)]),
        ("/subscriptions", {**subscription, "initial_cursors": cursors}),
        ("/event-types/orders/timelines", {"storage_id": "second"}),
    ):
        answer = CLIENT.post(f"{server.url}{path}", json=body)
        assert answer.is_success, answer.text
    CLIENT.put(f"{server.url}/storages/default/second").raise_for_status()
    expiring = {**definition, "options": {"retention_time": RETENTION_MS}}
    CLIENT.put(f"{server.url}/event-types/orders", json=expiring).raise_for_status()


def streamed(server: Server, offset: str) -> httpx.Response:
    """A stream from the offset, up to its first event."""
    headers = {"X-Nakadi-Cursors": json.dumps([{"partition": "0", "offset": offset}])}
    limits = {"stream_limit": 1, "stream_timeout": 10, "batch_flush_timeout": 1}
    return CLIENT.get(f"{server.url}/event-types/orders/events", params=limits, headers=headers)


def topics(data: Path) -> list[Path]:
    return list((data / "topics").glob("*"))


@pytest.mark.parametrize("step", STEPS)
def test_a_node_dies_while_it_removes_a_timeline(tmp_path, step):
    """If a node is killed before any step of a removal, another node finishes the removal."""
    data = tmp_path / "data"
    broken = node(data, step)
    try:
        switched(broken)
        until(lambda: broken.process.exit_code is not None, f"the failpoint {step}")
    finally:
        broken.kill()
    healthy = node(data)
    try:
        until(lambda: not topics(data), "the topic's end")
        listed = run_cli("timelines", "list", "orders", "--url", healthy.url).stdout.decode().splitlines()
        assert ["removed" in line for line in listed if "default" in line] == [True]
        assert ["open" in line for line in listed if "second" in line] == [True]
        CLIENT.post(f"{healthy.url}/event-types/orders/events", json=[{"n": 3}]).raise_for_status()
        batch = json.loads(streamed(healthy, "001-0001-000000000000000002").text.splitlines()[0])
        assert [event["n"] for event in batch["events"]] == [3]
        refused = streamed(healthy, "001-0001-000000000000000001")
        assert (refused.status_code, refused.json()["reason"]) == (412, "UNAVAILABLE")
        # Nothing refers to the storage any more.
        until(lambda: CLIENT.delete(f"{healthy.url}/storages/default").status_code == 204, "a deleted storage")
    finally:
        assert healthy.stop() == 0
    assert '"level": "error"' not in healthy.log_file.read_text()


def test_two_nodes_remove_a_timeline_once(tmp_path):
    """One of two nodes counts the removal and warns about the two events that a subscription had not read."""
    data = tmp_path / "data"
    nodes = [node(data), node(data)]
    try:
        switched(nodes[0])
        until(lambda: not topics(data), "the topic's end")
        counted = [found for server in nodes if (found := metrics(server))]
        assert counted == [{"removed_timelines": 1.0, "removed_unread_events": 2.0}]
    finally:
        for server in nodes:
            server.stop()
    logs = "".join(server.log_file.read_text() for server in nodes)
    assert "2 events of orders, timeline 1, are removed before the subscription read them" in logs
    assert '"level": "error"' not in logs


def metrics(server: Server) -> dict[str, float]:
    """The node's counters of removed timelines that exist already."""
    lines = CLIENT.get(f"{server.url}/metrics").text.splitlines()
    found = [line.split() for line in lines if line.startswith("strandline_removed_") and "_total{" in line]
    return {name.split("_total{")[0].removeprefix("strandline_"): float(value) for name, value in found}
