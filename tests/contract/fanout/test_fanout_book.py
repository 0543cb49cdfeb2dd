"""The tables of the fan-out: batches, the graph, the queue. On SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from databases import open_database
from strandline.errors import Conflict, NotFound
from strandline.feeds.fanout.book import FanoutBook
from strandline.feeds.fanout.values import (
    BatchOutcome,
    FanoutLetter,
    FanoutPlan,
    FanoutRoute,
    FollowEdge,
    PostEdit,
    QueuedPost,
)
from strandline.feeds.model import MAX_ID, Entry
from strandline.log.cursors import Position

ROUTE = FanoutRoute("posts", "1", "follows", "2", "home:", "posts:", "metadata")
AT = {"posts": {0: Position(1, 7), 1: Position(2, -1)}, "follows": {}}


@pytest.fixture
def book(database_url: str) -> Iterator[FanoutBook]:
    database = open_database(database_url)
    yield FanoutBook(database)
    database.close()


@pytest.fixture
def begun(book: FanoutBook) -> FanoutBook:
    book.begin(ROUTE)
    return book


def batch(book: FanoutBook, **outcome: object) -> None:
    """Open and close a batch."""
    state = book.state()
    plan = FanoutPlan(state.number, state.clock, 1_000, AT)
    book.open(plan)
    book.close(plan, BatchOutcome(**{"clock": state.clock + 10, "until": AT, **outcome}))


def follow(author: str, *followers: str, follows: bool = True) -> list[FollowEdge]:
    return [FollowEdge(5, author, name, follows) for name in followers]


def post(number: int, author: str = "ada", metadata: bytes | None = None, *, deleted: bool = False) -> PostEdit:
    return PostEdit(number, author, Entry(number, metadata), deleted)


def test_a_database_has_one_fan_out(book):
    with pytest.raises(NotFound, match="run the job `fanout` first"):
        book.route()
    book.begin(ROUTE)
    book.begin(ROUTE)
    with pytest.raises(Conflict, match="created again"):
        book.begin(msgspec.structs.replace(ROUTE, posts_id="3"))
    assert book.route() == ROUTE


def test_an_open_batch_is_found_again(begun):
    """With its own clock, also if the clock was raised since."""
    plan = FanoutPlan(1, 0, 1_000, AT)
    begun.open(plan)
    assert begun.raise_clock(50) == 50
    assert begun.raise_clock(50) == 51
    assert begun.state().plan == plan
    begun.close(plan, BatchOutcome(20, AT))
    found = begun.state()
    assert (found.number, found.clock, found.plan) == (2, 51, None)
    assert found.positions == {"posts": AT["posts"]}


def test_only_one_process_opens_and_closes_a_batch(begun):
    """The second one changes nothing."""
    plan = FanoutPlan(1, 0, 1_000, AT)
    begun.open(plan)
    with pytest.raises(Conflict):
        begun.open(plan)
    begun.check_open(1)
    begun.close(plan, BatchOutcome(20, AT, follow("ada", "bob")))
    with pytest.raises(Conflict, match="closed by another process"):
        begun.close(plan, BatchOutcome(30, AT, follow("ada", "eve")))
    with pytest.raises(Conflict):
        begun.check_open(1)
    with pytest.raises(Conflict):
        begun.open(FanoutPlan(2, 0, 1_000, AT))  # planned before the clock moved
    assert begun.followers_of(["ada"]) == {"ada": ["bob"]}


def test_the_graph_and_its_sizes(begun):
    batch(begun, edges=[*follow("ada", "bob", "eve", "Zoe"), *follow("bob", "eve")])
    batch(begun, edges=follow("ada", "bob", follows=False))
    assert begun.sizes(["ada", "bob", "eve"]) == {"ada": 2, "bob": 1}
    assert begun.authors_of(["eve", "bob"]) == {("ada", "eve"), ("bob", "eve")}
    assert begun.followers_after("ada", "", 1) == ["Zoe"]  # by bytes, on every engine
    assert begun.followers_after("ada", "Zoe", 9) == ["eve"]
    assert begun.users_after("", 9) == ["Zoe", "eve"]


def test_the_queue_gives_everybody_a_turn(begun):
    first, second = post(1, metadata=b"\0x"), post(MAX_ID, "bob")
    batch(begun, queued=[first, second])
    one, other = begun.chunks(9)
    assert (one, other) == (QueuedPost(one.number, first), QueuedPost(other.number, second))
    batch(begun, reached={one.number: "k"})
    assert begun.chunks(1) == [other]
    batch(begun, reached={other.number: None})
    assert begun.chunks(9) == [QueuedPost(one.number, first, "k")]


def test_a_deletion_ends_the_delivery_of_its_post(begun):
    """It is delivered itself, and known until then."""
    gone = post(1, deleted=True)
    batch(begun, queued=[post(1), post(2), post(1, "bob")])
    batch(begun, edits=[gone], queued=[gone])
    assert [one.edit for one in begun.chunks(9)] == [post(2), post(1, "bob"), gone]
    assert begun.waiting_deletions(["ada", "bob"]) == {"ada": (1,)}
    assert begun.queue_length() == 3


def test_authors_who_have_posted_are_renewed(begun):
    batch(begun, edits=[post(1)], edges=follow("bob", "eve"))
    begun.posted(["zoe"], 3_000)
    batch(begun, edits=[post(2)])
    assert begun.idle_authors(1_001, 9) == ["ada"]
    begun.renewed(["ada"], 5_000)
    assert begun.idle_authors(3_001, 9) == ["zoe"]


def test_dead_letters_are_kept_once(begun):
    letter = FanoutLetter("posts", 0, Position(1, 3), "a\0reason", b"\xff")
    for _ in range(2):
        batch(begun, letters=[letter])
    assert begun.letters(9) == [msgspec.structs.replace(letter, reason="a\ufffdreason")]
