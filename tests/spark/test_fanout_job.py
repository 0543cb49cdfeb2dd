"""The job `fanout` on Spark: tasks in parallel, a killed application, the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from services import STRANDLINE, Process, environment, run_cli, until
from social_network import SMALL, Network, create, wipe
from strandline.errors import Invalid
from strandline.feeds.fanout.delivery import STORES, DeliveryTask, FanoutPlace
from strandline.feeds.fanout.rebuild import RebuildOptions
from strandline.feeds.fanout.values import FanoutOptions
from strandline.feeds.settings import FeedSettings
from strandline.pipeline import tasks
from strandline.pipeline.tasks import SparkDelivery, SparkRestore
from strandline.platform import Platform

JOB = (
    *(
        "pipeline",
        "run",
        "fanout",
        "--master",
        "local[2]",
        "--fanout-posts",
        "posts",
        "--fanout-follows",
        "follows",
    ),
    *(f"--fanout-{name}={value}" for name, value in {**SMALL, "batch": 20}.items()),
)


@pytest.fixture(params=["sqlite", "valkey"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Platform]:
    data = tmp_path / "data"
    data.mkdir()
    settings = "[coordination]\nsession_timeout_ms = 2000\n[feeds]\nrecord = false\n"
    if request.param == "valkey":
        valkey = request.getfixturevalue("valkey")
        valkey.flush()
        settings += f'url = "{valkey.url}"\n'
    (data / "strandline.toml").write_text(settings)
    with strandline.open(data) as opened:
        create(opened)
        yield opened
    STORES.close()


@pytest.fixture
def network(node: Platform) -> Network:
    made = Network(node)
    made.join()
    return made


def test_posts_are_delivered_and_feeds_rebuilt_by_tasks(spark, node, network):
    network.live(60, 1)
    done = []
    node.feeds.fanouts.process(FanoutOptions("posts", "follows", **SMALL), SparkDelivery(spark)).once(done.append)
    network.check()
    assert {one.event_type: sum(one.lag.values()) for one in done} == {"posts": 0, "follows": 0}
    wipe(network)
    made = node.feeds.fanouts.rebuild(node.archive.values_before)
    options = RebuildOptions(",".join(network.users))
    assert made.run(options, SparkRestore(spark), threading.Event(), done.append) == len(network.users)
    network.check()
    assert done[-1].details["authors"] > 0


@pytest.mark.parametrize("node", ["sqlite"], indirect=True)
def test_an_application_that_is_killed(node, network, tmp_path):
    """The next one repeats the open batch. Then the store is lost, and another application rebuilds it."""
    network.live(40, 2)
    settings = ("--data", str(node.data), "--json")
    # Spark's JVM would keep a pipe open after the kill.
    failpoint = environment(STRANDLINE_TEST_FAILPOINT="fanout.marked:kill")
    job = Process([STRANDLINE, *JOB, "--once", *settings], tmp_path / "killed.log", env=failpoint)
    try:
        until(lambda: job.exit_code is not None, "the end of the job")
    finally:
        job.kill()
    network.live(10, 3)
    until(lambda: not node.feeds.fanouts.progress(), "the lease of the killed process")
    done = run_cli(*JOB, "--once", *settings)
    assert done.returncode == 0, done.stderr.decode()
    last = json.loads(done.stdout.splitlines()[-1])
    assert last.keys() >= {"job", "event_type", "rows", "lag", "entries", "queued", "dead_letters"}
    network.check()
    wipe(network)
    done = run_cli("pipeline", "run", "rebuild", "--master", "local[2]", *settings)
    assert done.returncode == 0, done.stderr.decode()
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["job"], last["lag"]) == ("rebuild", {"0": 0})
    for user in {*network.users} - {follower for _, follower in network.edges}:
        node.feeds.set(f"home:{user}", [])  # follows nobody
    network.check()


def test_files_cannot_be_written_by_another_machine(monkeypatch):
    monkeypatch.setattr("strandline.pipeline.tasks.remote_master", lambda: "spark://elsewhere:7077")
    place = FanoutPlace(FeedSettings(url="redis://feeds:6379/0"), "data", FanoutOptions("posts", "follows"))
    with pytest.raises(Invalid, match=r"set feeds\.database_url"):
        tasks._deliver(DeliveryTask(place, 1))
