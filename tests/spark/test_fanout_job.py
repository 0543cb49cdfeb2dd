"""The job `fanout` on Spark: tasks in parallel, a killed application, the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from services import STRANDLINE, Process, environment, run_cli, until
from social_network import SMALL, Network, create, home, wipe
from strandline.errors import Invalid
from strandline.feeds.fanout.delivery import STORES, DeliveryTask, FanoutPlace
from strandline.feeds.fanout.rebuild import RebuildOptions
from strandline.feeds.fanout.values import FanoutOptions
from strandline.feeds.model import SetFeed
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


def test_ids_of_64_bits_stay_exact_through_tasks(spark, node, network):
    """Of posts as numbers and as texts, in the fan-out, in a follow and in a rebuild."""
    numbers = [2**63 - 1, 2**63 - 2, 2**53 + 1, 2**53, -(2**53) - 1, -(2**63)]
    network.follow("user1", "user0")
    network.publish("posts", *({"author": "user0", "id": number} for number in numbers[::2]))
    network.publish("posts", *({"author": "user0", "id": str(number)} for number in numbers[1::2]))
    process = node.feeds.fanouts.process(FanoutOptions("posts", "follows"), SparkDelivery(spark))
    process.once()
    network.follow("user2", "user0")
    process.once()
    expected = [numbers, numbers, []]
    assert [home(node, user) for user in ("user1", "user2", "user3")] == expected
    wipe(network)
    made = node.feeds.fanouts.rebuild(node.archive.values_before)
    made.run(RebuildOptions("user1,user2,user3"), SparkRestore(spark), threading.Event(), lambda _: None)
    assert [home(node, user) for user in ("user1", "user2", "user3")] == expected


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
    check_rebuild_of_one_user(node, network)


def check_rebuild_of_one_user(node, network):
    """With the command of the feeds, which tells only what it has done."""
    node.feeds.drop("home:user1")
    options = ("--master", "local[2]", "--data", str(node.data), "--json")
    done = run_cli("feeds", "rebuild", "user1", "--keep-authors", *options)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == {"rebuilt": 1, "authors": 0}
    network.check()


@pytest.mark.parametrize(
    ("followers", "ordinary", "options"),
    [
        (600, 60, {"threshold": 300, "chunk": 60, "batch": 60}),
        pytest.param(100_000, 1_000, {}, marks=pytest.mark.slow),
    ],
)
def test_a_post_to_very_many_followers_beside_ordinary_posts(spark, node, followers, ordinary, options):
    """Published at the same moment. The ordinary ones arrive within a few batches, and all arrive once."""
    homes = [f"home:user{number}" for number in range(followers)]
    chosen = FanoutOptions("posts", "follows", **options)
    fill(spark, node, homes, ordinary)
    posts = [{"author": "star", "id": 1}, *({"author": f"author{n}", "id": n + 2} for n in range(ordinary))]
    node.log.publish("posts", posts).raise_for_failed()
    batches = node.feeds.fanouts.process(chosen, SparkDelivery(spark))._batches
    done = [batches.step(batches.look()) for _ in range(_FEW)]
    found = node.feeds.store().read(homes[:ordinary], 0, 10)
    assert [[entry.id for entry in answer.entries][:1] for answer in found] == [[n + 2] for n in range(ordinary)]
    assert batches.lag(batches.look()).queued == 1, "the large author was not slower: nothing is shown"
    while (more := batches.step(batches.look())) is not None:
        done.append(more)
    assert sum(one.entries for one in done) == followers + ordinary
    for first in range(0, followers, _AT_ONCE):
        for number, answer in enumerate(node.feeds.store().read(homes[first : first + _AT_ONCE], 0, 10), first):
            assert [entry.id for entry in answer.entries] == ([number + 2, 1] if number < ordinary else [1])


_FEW, _AT_ONCE = 3, 10_000


def fill(spark, node, homes, ordinary):
    """Everybody follows one author, and some follow one other author each."""
    follows = [{"follower": home.removeprefix("home:"), "author": "star", "action": "follow"} for home in homes]
    follows += [{**follows[number], "author": f"author{number}"} for number in range(ordinary)]
    for first in range(0, len(homes), _AT_ONCE):
        node.feeds.store().apply([SetFeed(0, home, ()) for home in homes[first : first + _AT_ONCE]])
    for first in range(0, len(follows), _AT_ONCE):
        node.log.publish("follows", follows[first : first + _AT_ONCE]).raise_for_failed()
    node.feeds.fanouts.process(FanoutOptions("posts", "follows", batch=_AT_ONCE), SparkDelivery(spark)).once()


def test_files_cannot_be_written_by_another_machine(monkeypatch):
    monkeypatch.setattr("strandline.pipeline.tasks.remote_master", lambda: "spark://elsewhere:7077")
    place = FanoutPlace(FeedSettings(url="redis://feeds:6379/0"), "data", FanoutOptions("posts", "follows"))
    with pytest.raises(Invalid, match=r"set feeds\.database_url"):
        tasks._deliver(DeliveryTask(place, 1))
