"""Every step of a switch, once with its process killed there and once asleep past its session.

Either the switch happened completely or not at all; publishers go on within seconds; no lock, topic or
undecided switch stays; nothing acknowledged is lost.
"""

import os
import signal
import threading
from pathlib import Path

import httpx
import pytest
from ledger import Ledger
from load import Publisher, start_publishers, stop_publishers, stored

from services import start_server, until
from strandline.log.switching import Step

SESSION_MS = 1500
INITIATOR = [f"initiator.{step}" for step in Step if step not in {Step.END, Step.INSPECT}]
# These are reached only when something went wrong before; the random kills of test_switching get there.
INITIATOR = [name for name in INITIATOR if name.split(".")[1] not in {"abort", "unseal", "discard"}]
NODE = ["node.look", "node.hold", "node.confirm", "node.release"]
#: Those that also run in the short form.
SHORT = {("initiator.close", "kill"), ("initiator.commit", "stop"), ("node.hold", "stop")}


def cases():
    for name in [*INITIATOR, *NODE]:
        for how in ("kill", "stop"):
            marks = [] if (name, how) in SHORT else [pytest.mark.slow]
            yield pytest.param(name, how, id=f"{name}-{how}", marks=marks)


def node(data, failpoint: str = ""):
    env = {"STRANDLINE_TEST_FAILPOINT": failpoint} if failpoint else {}
    return start_server(data, env=env, coordination_session_timeout_ms=SESSION_MS, log_purge_interval_ms=1000)


def state(url: str) -> str:
    answer = httpx.get(f"{url}/event-types/chaos/timelines/switch")
    return answer.json()["state"] if answer.status_code == 200 else "none"


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "T"


@pytest.mark.parametrize(("failpoint", "how"), [*cases()])
def test_a_process_fails_at_a_step(tmp_path, failpoint, how):
    """The others notice, decide and go on; whoever wakes up late does no harm."""
    data = tmp_path / "data"
    healthy, broken = node(data), node(data, f"{failpoint}:{how}")
    other = {"id": "other", "storage_type": "sqlite", "sqlite_configuration": {"directory": "other"}}
    httpx.post(f"{healthy.url}/storages", json=other).raise_for_status()
    httpx.post(f"{healthy.url}/event-types", json={"name": "chaos", "partitions": 2}).raise_for_status()
    ledger = Ledger()
    publishers = start_publishers(2, [healthy.url], ledger, seed=1)
    initiator = broken if failpoint.startswith("initiator") else healthy
    request = threading.Thread(target=switch, args=(initiator.url,), daemon=True)
    try:
        until(lambda: all(publisher.answers > 3 for publisher in publishers), 30, "load")
        request.start()
        gone = broken.process.poll if how == "kill" else lambda: stopped(broken.pid)
        until(lambda: gone() not in {None, False}, 30, "the failpoint")
        before = [publisher.answers for publisher in publishers]
        going = lambda: all(p.answers > b + 3 for p, b in zip(publishers, before, strict=True))  # noqa: E731
        until(going, 20, "publishers going on")
        until(lambda: state(healthy.url) in {"done", "aborted", "none"}, 20, "the decision")
        if how == "stop":
            os.kill(broken.pid, signal.SIGCONT)
            late = Publisher(99, [broken.url], ledger, seed=1)
            with httpx.Client(timeout=60) as client:
                until(lambda: late.publish(client) or late.answers, 30, "the sleeper serving again")
        request.join(60)
        # The next switch works: no lock is left, and every live node takes part.
        until(lambda: switch(healthy.url) == 201, 30, "another switch")
    finally:
        stop_publishers(publishers)
        broken.kill()
    ledger.check(stored(data))
    expected = len(httpx.get(f"{healthy.url}/event-types/chaos/timelines").json())
    until(lambda: len(topics(data)) == expected, 30, "no orphan topic")
    healthy.stop()


def switch(url: str) -> int:
    """To whichever storage it is not on."""
    try:
        timelines = httpx.get(f"{url}/event-types/chaos/timelines", timeout=5).json()
        storage = "default" if timelines[-1]["storage_id"] == "other" else "other"
        answer = httpx.post(f"{url}/event-types/chaos/timelines", json={"storage_id": storage}, timeout=60)
    except httpx.TransportError:
        return 0
    return answer.status_code


def topics(data) -> list[str]:
    return [path.name for folder in ("topics", "other") for path in (data / folder).glob("*.db")]
