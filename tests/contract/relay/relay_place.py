"""A platform with the event types `orders` and `later`, and relays between them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from strandline.platform import Platform
from strandline.schedule.relay.process import RelayProcess
from strandline.schedule.relay.rules import ORIGIN
from strandline.schedule.relay.starting import Relays
from strandline.schedule.relay.values import RelayOptions

WORKER = Path(__file__).with_name("relay_worker.py")
SCHEDULE = "buffer"

#: Opens another node.
Opener = Callable[[], Platform]


def relay(node: Platform, **options: object) -> RelayProcess:
    """A process of the relay from `orders` to `later`."""
    chosen = RelayOptions(**{"source": "orders", "target": "later", "schedule": SCHEDULE, **options})
    return Relays(node.log, node.schedules, node.databases, node.settings).process(chosen)


def publish(node: Platform, *events: object) -> None:
    node.log.publish(
        "orders", [{"n": event} if isinstance(event, int) else event for event in events]
    ).raise_for_failed()


def relayed(node: Platform) -> list[int]:
    """The numbers of the events in the target, in order within each partition."""
    return [event["n"] for batch in node.log.read("later") for event in batch.events]


def origins(node: Platform) -> list[str]:
    """Where the events of the target came from."""
    found = [row for batch in node.log.read("later") for row in batch.records["headers"].to_pylist()]
    return [{one["key"]: one["value"] for one in row}[ORIGIN].decode() for row in found]


def start(node: Platform, failpoint: str = "", *arguments: str) -> subprocess.Popen[str]:
    """A process that runs the relay once."""
    command = [sys.executable, str(WORKER), str(node.data), *arguments]
    variables = {**os.environ, "STRANDLINE_TEST_FAILPOINT": failpoint}
    return subprocess.Popen(command, text=True, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def killed(node: Platform, failpoint: str) -> None:
    """Run the relay until it is killed at the failpoint."""
    with start(node, f"{failpoint}:kill") as process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode == -9, out
