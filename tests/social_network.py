"""A platform with posts and follows, the fan-out between them and feeds, and a plain model of the same network."""

from __future__ import annotations

import base64
import os
import random
import subprocess
import sys
from pathlib import Path

from redis import Redis

from services import environment
from strandline import EventType
from strandline.errors import Conflict, Miss
from strandline.feeds.fanout.process import FanoutProcess
from strandline.feeds.fanout.starting import Fanouts
from strandline.feeds.fanout.values import FanoutOptions
from strandline.platform import Platform

WORKER = Path(__file__).parent / "contract" / "fanout" / "fanout_worker.py"
#: Small, so that a few records need several batches and an author with few followers is large.
SMALL = {"batch": 8, "threshold": 3, "chunk": 2}


def fanouts(node: Platform) -> Fanouts:
    return node.feeds.fanouts


def fanout(node: Platform, **options: object) -> FanoutProcess:
    return fanouts(node).process(FanoutOptions("posts", "follows", **{**SMALL, **options}))


def create(node: Platform) -> None:
    """The event types. Users of one author, and follows of one follower, stay in order."""
    for name, key in (("posts", "author"), ("follows", "follower")):
        kind = EventType(name, partitions=2, partition_strategy="hash", partition_key_fields=(key,))
        node.log.create(kind)


class Network:
    """Publishes events, and knows what every home feed must contain after all of them."""

    def __init__(self, node: Platform, users: int = 8) -> None:
        self.node = node
        self.users = [f"user{number}" for number in range(users)]
        self.posts: dict[int, str] = {}
        self.edges: set[tuple[str, str]] = set()
        self.last = 0

    def join(self) -> None:
        for user in self.users:
            self.node.feeds.set(f"home:{user}", [])

    def post(self, author: str) -> int:
        self.last += 1
        self.posts[self.last] = author
        self.publish("posts", {"author": author, "id": str(self.last), "metadata": text(self.last)})
        return self.last

    def delete(self, post: int) -> None:
        author = self.posts.pop(post)
        self.publish("posts", {"author": author, "id": post, "deleted": True})

    def follow(self, follower: str, author: str) -> None:
        self.edges.add((author, follower))
        self.publish("follows", {"follower": follower, "author": author, "action": "follow"})

    def unfollow(self, follower: str, author: str) -> None:
        self.edges.discard((author, follower))
        self.publish("follows", {"follower": follower, "author": author, "action": "unfollow"})

    def publish(self, name: str, *events: object) -> None:
        self.node.log.publish(name, [*events]).raise_for_failed()

    def live(self, rounds: int, seed: int) -> None:
        """Random acts. The first user is followed by everybody, and so is a large author."""
        chance = random.Random(seed)
        for _ in range(rounds):
            one, other = chance.sample(self.users, 2)
            act = chance.random()
            if act < 0.5:
                self.post(chance.choice([self.users[0], one]))
            elif act < 0.75:
                self.follow(one, chance.choice([self.users[0], other]))
            elif act < 0.9 and self.edges:
                author, follower = chance.choice(sorted(self.edges))
                self.unfollow(follower, author)
            elif self.posts:
                self.delete(chance.choice(sorted(self.posts)))

    def expected(self, user: str) -> list[int]:
        followed = {author for author, follower in self.edges if follower == user}
        return sorted((post for post, author in self.posts.items() if author in followed), reverse=True)

    def check(self) -> None:
        """Every home feed is what the plain model says, with the metadata of its posts."""
        found = {user: home(self.node, user) for user in self.users}
        assert found == {user: self.expected(user) for user in self.users}
        for user in self.users:
            for entry in self.node.feeds.get(f"home:{user}", 0, 800):
                assert entry.metadata == f"post {entry.id}".encode()


def text(post: int) -> str:
    return base64.b64encode(f"post {post}".encode()).decode()


def home(node: Platform, user: str) -> list[int] | None:
    try:
        return [entry.id for entry in node.feeds.get(f"home:{user}", 0, 800)]
    except Miss:
        return None


def start(node: Platform, failpoint: str = "", *arguments: str) -> subprocess.Popen[str]:
    """A process that runs the fan-out once."""
    command = [sys.executable, str(WORKER), str(node.data), *arguments]
    variables = environment(PYTHONPATH=os.pathsep.join(sys.path), STRANDLINE_TEST_FAILPOINT=failpoint)
    return subprocess.Popen(command, text=True, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def killed(node: Platform, failpoint: str) -> None:
    """Run the fan-out until it is killed at the failpoint."""
    with start(node, f"{failpoint}") as process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode == -9, out


def tried(node: Platform, **options: object) -> bool:
    """Run the fan-out once; False while the lease of a killed process has not expired."""
    try:
        fanout(node, **options).once()
    except Conflict:
        return False
    return True


def wipe(network: Network) -> None:
    """The store is lost, without any trace of its feeds."""
    node = network.node
    store = node.feeds.store()
    if node.settings.feeds.url:
        with Redis.from_url(node.settings.feeds.url) as server:
            server.flushall()
        return
    for table in ("record", "feed", "position"):
        store._tables.database.change(f"DELETE FROM {table}", {})  # noqa: S608 - names of tables
    assert {home(node, user) for user in network.users} == {None}
