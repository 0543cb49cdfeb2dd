"""What the fan-out decides: the meaning of records, operation times, net changes, the newest entries."""

from __future__ import annotations

import random

import pytest

from strandline.errors import Invalid
from strandline.feeds.fanout import rules
from strandline.feeds.fanout.delivery import AuthorPosts, DeliveryTask, FanoutPlace, divided
from strandline.feeds.fanout.rules import AuthorEntries, LogRecord
from strandline.feeds.fanout.values import FanoutOptions, FollowEdge, PostEdit
from strandline.feeds.model import Entry
from strandline.feeds.settings import FeedSettings
from strandline.log.cursors import Position

OPTIONS = FanoutOptions("posts", "follows")
MS = 1 << 20


def edit(entry_id: int, author: str = "ada", metadata: bytes | None = None, *, deleted: bool = False) -> PostEdit:
    return PostEdit(0, author, Entry(entry_id, metadata), deleted)


@pytest.mark.parametrize(
    ("value", "entry"),
    [
        (b'{"author":"ada","id":7}', Entry(7)),
        (b'{"author":"ada","id":"-7","metadata":null}', Entry(-7)),
        (b'{"author":"ada","id":7,"metadata":""}', Entry(7, b"")),
        (b'{"author":"ada","id":7,"metadata":"aGk=","more":1}', Entry(7, b"hi")),
        (b'{"author":"ada","id":7,"metadata":{"a": [1]}}', Entry(7, b'{"a": [1]}')),
    ],
)
def test_a_post(value, entry):
    assert rules.post(value, OPTIONS, 3) == PostEdit(3, "ada", entry)


def test_a_deletion_has_no_metadata():
    assert rules.post(b'{"author":"a","id":1,"deleted":true,"metadata":"?"}', OPTIONS, 3).entry == Entry(1)


def test_the_metadata_can_be_another_field():
    options = FanoutOptions("posts", "follows", metadata="text")
    assert rules.post(b'{"author":"a","id":1,"metadata":1,"text":2}', options, 3).entry == Entry(1, b"2")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value"),
        (b"{", "truncated"),
        (b'{"author":"ada"}', "missing required field `id`"),
        (b'{"author":"ada","id":9223372036854775808}', "must be a number from"),
        (b'{"author":"ada","id":"9223372036854775808"}', "must be a number from"),
        (b'{"author":"ada","id":"x"}', "not a number"),
        (b'{"author":"ada","id":"1_0"}', "not a number"),
        (b'{"author":"ada","id":" 7"}', "not a number"),
        (b'{"author":"","id":1}', "empty"),
        (b'{"author":"a/b","id":1}', "not the name of a feed"),
        (b'{"author":"ada","id":1,"metadata":"?"}', "not base64"),
    ],
)
def test_a_record_that_is_no_post(value, reason):
    with pytest.raises(Invalid, match=reason):
        rules.post(value, OPTIONS, 1)


@pytest.mark.parametrize(("home", "recent"), [("", "posts:"), ("posts:", ""), ("x:", "x:posts:"), ("posts:", "p")])
def test_no_feed_belongs_to_two_users(home, recent):
    """Where one prefix begins with the other, the home feed of one user may be the author feed of another."""
    options = FanoutOptions("posts", "follows", home=home, recent=recent)
    shorter, longer = sorted((home, recent), key=len)
    rest = longer.removeprefix(shorter)
    value = b'{"author":"%bada","id":1}'
    assert rules.post(value % b"", options, 1).author == "ada"
    with pytest.raises(Invalid, match="a feed of another user, too"):
        rules.post(value % rest.encode(), options, 1)


def test_a_follow_and_what_is_none():
    found = rules.edge(b'{"follower":"bob","author":"ada","action":"unfollow"}', OPTIONS, 5)
    assert found == FollowEdge(5, "ada", "bob", follows=False)
    with pytest.raises(Invalid, match="Invalid enum value"):
        rules.edge(b'{"follower":"bob","author":"ada","action":"block"}', OPTIONS, 5)


def test_operation_times_rise_with_the_log():
    """They are the ends of milliseconds. A clock that was set back, or runs ahead, does not matter."""
    records = [LogRecord(0, Position(1, offset), ms, b"") for offset, ms in enumerate([10, 10, 5, 12, 99, -1])]
    found = [time for time, _ in rules.stamps(3 * MS, 20, records)]
    assert found == [11 * MS - 1, 11 * MS, 11 * MS + 1, 13 * MS - 1, 21 * MS - 1, 21 * MS]
    assert found == [time for time, _ in rules.stamps(3 * MS, 20, records)]


def test_a_deleted_post_of_the_same_batch_is_not_delivered():
    gone = edit(1, deleted=True)
    assert rules.settled([edit(1), edit(2), gone, edit(1), edit(1, "bob")]) == [edit(2), gone, edit(1, "bob")]


def test_only_net_changes_of_the_graph_count():
    def change(time: int, follower: str, *, follows: bool) -> FollowEdge:
        return FollowEdge(time, "ada", follower, follows)

    edges = [
        change(1, "new", follows=True),
        change(2, "old", follows=True),  # follows already
        change(3, "short", follows=True),
        change(4, "short", follows=False),
        change(5, "old", follows=False),
        change(6, "stranger", follows=False),  # never followed
        change(7, "back", follows=False),
        change(8, "back", follows=True),
    ]
    existing = {("ada", "old"), ("ada", "back")}
    changes = rules.last_changes(edges, existing)
    assert changes == [edges[0], edges[4], edges[7]]  # a follow brings the history, also a repeated one
    found = rules.net(changes, existing)
    assert found == [edges[0], edges[4]]
    for some in (changes, found):
        assert rules.changed(["old", "back", "x"], rules.by_author(some)["ada"]) == ["back", "x", "new"]


@pytest.mark.parametrize("seed", range(5))
def test_the_newest_entries_in_any_order_and_in_parts(seed):
    """Deleted ids count towards the newest, as in a feed."""
    chance = random.Random(seed)
    edits = [edit(n % 30, metadata=b"%d" % (n % 3), deleted=n > 30 and n % 4 == 0) for n in range(60)]
    gone = {one.entry.id for one in edits if one.deleted}
    expected = [n for n in range(29, 19, -1) if n not in gone]
    for _ in range(20):
        chance.shuffle(edits)
        cut = chance.randrange(60)
        whole = AuthorEntries()
        for part in (edits[:cut], edits[cut:]):
            own = AuthorEntries()
            for one in part:
                own.add(one)
            whole = whole.merge(own.trim(10)).trim(10)
        assert [entry.id for entry in whole.entries(10)] == expected


def test_united_entries():
    lists = [[Entry(5), Entry(3, b"")], [Entry(4), Entry(3)], []]
    assert rules.united(lists, 2) == (Entry(5), Entry(4))
    assert rules.united(lists, 9)[2] == Entry(3, b"")


def test_the_work_of_a_batch_is_divided():
    """Every part is in one task, and no task is empty."""
    place = FanoutPlace(FeedSettings(), "data", OPTIONS)
    posts = tuple(AuthorPosts(f"a{n}", n, (edit(n),), {}) for n in (900, 500, 400))
    edges = tuple(FollowEdge(n, "ada", f"u{n}", follows=True) for n in range(3))
    tasks = divided(DeliveryTask(place, 1, posts, (), edges), 2)
    assert [sorted(one.followers for one in task.posts) for task in tasks] == [[900], [400, 500]]
    assert [len(task.edges) for task in tasks] == [2, 1]
    assert len(divided(DeliveryTask(place, 1, posts[:1]), 8)) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"posts": ""}, "--fanout-posts"),
        ({"follows": "posts"}, "an event type each"),
        ({"home": "posts:"}, "different names"),
        ({"recent": "a/b"}, "not the name of a feed"),
        ({"chunk": 0}, "at least 1"),
        ({"lost": "ignore"}, "stop, skip"),
        ({"metadata": "id"}, "other than author, id, deleted"),
        ({"metadata": 'a"b'}, "without quotes"),
        ({"metadata": "a\nb"}, "without quotes"),
    ],
)
def test_options_that_cannot_work(options, said):
    with pytest.raises(Invalid, match=said):
        FanoutOptions(**{"posts": "posts", "follows": "follows", **options}).check()
