"""The table of operations: every precondition and error, one millisecond before, at and after its boundary."""

from __future__ import annotations

import pytest
from schedule_place import MEGABYTE, NOON, act, created, everything, leased, made, message, own

from strandline.errors import Conflict, Forbidden, NotFound, OutcomeUnknown, Unavailable
from strandline.schedule.model import (
    Body,
    ChosenMessage,
    ItemAnswer,
    Lease,
    LeaseAct,
    ListQuery,
    Moment,
    NewMessage,
    Schedule,
)

MINUTE = 60_000
YEAR = 365 * 86_400_000


def codes(answers):
    return [answer.code or answer.status for answer in answers]


def ids(leases):
    return [lease.message.id for lease in leases]


def stored(store, message_id="a"):
    found = store.messages.get("s", message_id)
    assert found is not None
    return found


# -- create


def test_a_new_message_is_stored(place, store):
    """Every member has its value from the start."""
    (answer,) = store.messages.create("s", [message("a", NOON + 5)])
    first = NOON // 1000 * 2**20
    assert answer == ItemAnswer("a", "ok", version=first, at_ms=NOON + 5)
    found = stored(store)
    assert (found.at_ms, found.due_ms, found.created_ms) == (NOON + 5, NOON + 5, NOON)
    assert (found.consumer, found.version, found.delivery_count, found.producer_group) == (None, first, 0, "shop")


@pytest.mark.parametrize(("late", "available"), [(-1, False), (0, True), (1, True)])
def test_a_message_is_available_from_its_moment_on(place, store, late, available):
    """Never early, not even by a millisecond."""
    created(store, "a", at_ms=NOON + 1000)
    place.now_ms = NOON + 1000 + late
    assert ids(store.due.lease("s", [everything()], MEGABYTE).leases) == (["a"] if available else [])


def test_a_moment_in_the_past_is_allowed(store):
    created(store, "a", at_ms=NOON - YEAR)
    assert ids(store.due.lease("s", [everything()], MEGABYTE).leases) == ["a"]


@pytest.mark.parametrize(("beyond", "code"), [(-1, "ok"), (0, "ok"), (1, "too_far")])
@pytest.mark.parametrize("relative", [False, True])
def test_the_horizon_of_a_new_message(store, beyond, code, relative):
    moment = Moment(YEAR + beyond, relative=True) if relative else Moment(NOON + YEAR + beyond)
    answers = store.messages.create("s", [NewMessage("a", "shop", Body(b"x"), moment)])
    assert codes(answers) == [code]


@pytest.mark.parametrize(("size", "code"), [(9, "ok"), (10, "ok"), (11, "body_too_large")])
def test_the_size_of_a_body(store, size, code):
    made(store, max_body_bytes=10)
    assert codes(store.messages.create("s", [message("a", body=b"x" * size)])) == [code]


def test_a_repeated_create_names_the_version_that_is_there(place, store):
    """A producer that lost the answer knows that it succeeded; others learn nothing."""
    created(store, "a")
    version = store.due.lease("s", [everything()], MEGABYTE).leases[0].message.version
    repeated, other_group, other_body, moved = (
        store.messages.create("s", [message("a")])[0],
        store.messages.create("s", [message("a", group="other")])[0],
        store.messages.create("s", [message("a", body=b"[]")])[0],
        store.messages.create("s", [message("a", NOON + 99 * YEAR)])[0],
    )
    assert codes([repeated, other_group, other_body, moved]) == ["already_exists"] * 4
    assert [repeated.version, other_group.version, other_body.version] == [version, None, None]


def test_json_and_bytes_are_different_bodies(store):
    created(store, "a")
    (answer,) = store.messages.create("s", [NewMessage("a", "shop", Body(b"{}"))])
    assert (answer.code, answer.version) == ("already_exists", None)


@pytest.mark.parametrize(("age", "code"), [(-1, "already_exists"), (0, "ok"), (1, "ok")])
def test_an_id_is_taken_within_the_dedupe_window(place, store, age, code):
    """After it, a create replaces the tombstone, and the version goes on."""
    made(store, dedupe_ms=MINUTE)
    created(store, "a")
    (deleted,) = store.messages.delete("s", [own("a")])
    place.now_ms += MINUTE + age
    (answer,) = store.messages.create("s", [message("a", body=b"[]")])
    assert codes([answer]) == [code]
    if code == "ok":
        assert answer.version > deleted.version
        (lease,) = store.due.lease("s", [everything()], MEGABYTE).leases
        assert lease.body == Body(b"[]", is_json=True)


def test_a_create_repeated_after_the_delete_finds_the_tombstone(store):
    created(store, "a")
    (deleted,) = store.messages.delete("s", [own("a")])
    assert store.messages.create("s", [message("a")])[0].version == deleted.version
    assert store.messages.create("s", [message("a", group="other")])[0].version is None


def test_a_version_never_repeats_even_if_the_clock_goes_back(place, store):
    made(store, dedupe_ms=0)
    created(store, "a")
    (lease,) = store.due.lease("s", [everything()], MEGABYTE).leases
    (deleted,) = store.messages.delete("s", [act(lease)])
    place.now_ms += 1
    (again,) = store.messages.create("s", [message("a")])
    assert again.version > deleted.version > lease.message.version


# -- lease of chosen messages


def chosen(store, *items, consumer="ada", lease_ms=30_000):
    found = store.messages.lease("s", consumer, lease_ms, items)
    return [one.code if isinstance(one, ItemAnswer) else "leased" for one in found]


@pytest.mark.parametrize(("late", "code"), [(-1, "not_available"), (0, "leased"), (1, "leased")])
def test_a_chosen_message_must_be_available(place, store, late, code):
    created(store, "a", at_ms=NOON + 10)
    place.now_ms = NOON + 10 + late
    assert chosen(store, ChosenMessage("a")) == [code]


@pytest.mark.parametrize(("late", "code"), [(-1, "not_available"), (0, "leased"), (1, "leased")])
def test_a_lease_ends_at_its_moment(place, store, late, code):
    """Until then nobody else gets the message; from then on everybody can."""
    leased(store, "a", lease_ms=1000)
    place.now_ms = NOON + 1000 + late
    assert chosen(store, ChosenMessage("a"), consumer="bob") == [code]


@pytest.mark.parametrize(
    ("lease_ms", "code"),
    [(5, "bad_timestamp"), (6, "leased"), (300_000, "leased"), (300_001, "bad_timestamp"), (-1, "bad_timestamp")],
)
def test_the_length_of_a_lease(store, lease_ms, code):
    created(store, "a")
    assert chosen(store, ChosenMessage("a"), lease_ms=lease_ms) == [code]


def test_the_first_broken_precondition_of_a_lease_is_named(store):
    created(store, "a")
    created(store, "later", at_ms=NOON + 1)
    version = stored(store).version
    wrong = [ChosenMessage("b"), ChosenMessage("later", 1), ChosenMessage("a", version + 1)]
    assert chosen(store, *wrong, lease_ms=1) == ["not_found", "not_available", "stale_version"]
    assert chosen(store, ChosenMessage("a", version)) == ["leased"]


def test_a_chosen_lease_has_the_message_and_its_body(store):
    created(store, "a")
    (lease,) = store.messages.lease("s", "ada", 30_000, [ChosenMessage("a")])
    assert isinstance(lease, Lease)
    one = lease.message
    assert (one.at_ms, one.due_ms, one.consumer, one.delivery_count) == (NOON + 30_000, NOON, "ada", 1)
    assert lease.body == Body(b"{}", is_json=True)


# -- what the holder can do


@pytest.mark.parametrize(
    ("in_ms", "code"),
    [(5, "bad_timestamp"), (6, "ok"), (300_000, "ok"), (300_001, "bad_timestamp"), (-7, "bad_timestamp")],
)
@pytest.mark.parametrize("relative", [False, True])
def test_the_moment_of_an_extension(store, in_ms, code, relative):
    (lease,) = leased(store, "a")
    asked = act(lease, in_ms=in_ms) if relative else act(lease, NOON + in_ms)
    (answer,) = store.messages.extend("s", [asked])
    assert codes([answer]) == [code]
    if code == "ok":
        assert (answer.at_ms, answer.version) == (NOON + in_ms, lease.message.version + 1)
        assert (stored(store).consumer, stored(store).due_ms) == ("ada", NOON)


@pytest.mark.parametrize(("in_ms", "code"), [(5, "bad_timestamp"), (6, "ok"), (YEAR, "ok"), (YEAR + 1, "too_far")])
def test_the_moment_of_a_release(store, in_ms, code):
    (lease,) = leased(store, "a")
    (answer,) = store.messages.release("s", [act(lease, in_ms=in_ms)])
    assert codes([answer]) == [code]
    if code == "ok":
        found = stored(store)
        assert (found.at_ms, found.due_ms, found.consumer) == (NOON + in_ms, NOON + in_ms, None)
        assert found.version == answer.version == lease.message.version + 1


HOLDER = ["extend", "release", "delete"]


@pytest.mark.parametrize("verb", HOLDER)
@pytest.mark.parametrize(("late", "code"), [(-1, "ok"), (0, "lease_expired"), (1, "lease_expired")])
def test_a_holder_needs_an_active_lease(place, store, verb, late, code):
    (lease,) = leased(store, "a", lease_ms=1000)
    place.now_ms = NOON + 1000 + late
    assert codes(getattr(store.messages, verb)("s", [act(lease, in_ms=1000)])) == [code]


@pytest.mark.parametrize("verb", HOLDER)
def test_the_first_broken_precondition_of_a_holder_is_named(place, store, verb):
    """Existence, holder, lease, version, moment: in this order."""
    lease, expired = leased(store, "a", "b")
    store.messages.extend("s", [act(lease, in_ms=60_000)])
    place.now_ms += 30_000
    new = stored(store).version
    asked = [
        act(lease, in_ms=1, id="c", consumer="bob"),
        act(expired, in_ms=1, consumer="bob", version=1),
        act(expired, in_ms=1, version=1),
        act(lease, in_ms=1),
        act(lease, in_ms=1, version=new),
    ]
    expected = ["not_found", "not_holder", "lease_expired", "stale_version"]
    last = "ok" if verb == "delete" else "bad_timestamp"
    assert codes(getattr(store.messages, verb)("s", asked)) == [*expected, last]


def test_a_message_without_a_lease_has_no_holder(store):
    created(store, "a")
    asked = LeaseAct("a", "ada", stored(store).version)
    assert codes(store.messages.extend("s", [asked])) == ["not_holder"]


def test_a_repeated_delete_of_a_holder_succeeds(store):
    """Same caller and same version; others do not learn more than before."""
    (lease,) = leased(store, "a")
    first, second = (store.messages.delete("s", [act(lease)])[0] for _ in range(2))
    assert (first.status, first.code) == ("ok", None)
    assert (second.status, second.code, second.version) == ("ok", "already_deleted", first.version)
    others = [act(lease, consumer="bob"), act(lease, version=lease.message.version + 1), own("a")]
    assert codes(store.messages.delete("s", others)) == ["not_found"] * 3
    assert codes(store.messages.extend("s", [act(lease, in_ms=100)])) == ["not_found"]


# -- what the owner can do


@pytest.mark.parametrize("verb", ["delete", "move"])
@pytest.mark.parametrize(("late", "code"), [(-1, "lease_active"), (0, "ok"), (1, "ok")])
def test_an_active_lease_holds_against_the_owner(place, store, verb, late, code):
    leased(store, "a", lease_ms=1000)
    place.now_ms = NOON + 1000 + late
    assert codes(getattr(store.messages, verb)("s", [own("a", NOON + 5000)])) == [code]


@pytest.mark.parametrize("verb", ["delete", "move"])
def test_the_first_broken_precondition_of_an_owner_is_named(store, verb):
    leased(store, "held")
    created(store, "a")
    far = NOON + YEAR + 1
    asked = [
        own("c", far, group="other"),
        own("held", far, group="other", version=1),
        own("held", far, version=1),
        own("a", far, version=1),
        own("a", far),
    ]
    last = "ok" if verb == "delete" else "too_far"
    expected = ["not_found", "not_owner", "lease_active", "stale_version", last]
    assert codes(getattr(store.messages, verb)("s", asked)) == expected


@pytest.mark.parametrize("at_ms", [NOON - 1, NOON + 1, NOON + YEAR])
def test_a_message_is_moved(place, store, at_ms):
    """Into the past is allowed; an expired holder is emptied."""
    (lease,) = leased(store, "a", lease_ms=1000)
    place.now_ms += 1000
    (answer,) = store.messages.move("s", [own("a", at_ms, version=lease.message.version)])
    found = stored(store)
    assert (answer.status, answer.at_ms, answer.version) == ("ok", at_ms, lease.message.version + 1)
    assert (found.at_ms, found.due_ms, found.consumer, found.delivery_count) == (at_ms, at_ms, None, 1)


def test_an_old_holder_cannot_use_its_lease_after_a_move(place, store):
    (lease,) = leased(store, "a", lease_ms=1000)
    place.now_ms += 1000
    store.messages.move("s", [own("a", NOON + 5000)])
    assert codes(store.messages.delete("s", [act(lease)])) == ["not_holder"]


def test_a_repeated_delete_of_an_owner_succeeds(store):
    created(store, "a")
    version = stored(store).version
    assert codes(store.messages.delete("s", [own("a", version=version)])) == ["ok"]
    asked = [own("a", version=version), own("a"), own("a", group="other"), own("a", version=version + 1)]
    assert codes(store.messages.delete("s", asked)) == [
        "already_deleted",
        "already_deleted",
        "not_found",
        "not_found",
    ]
    assert codes(store.messages.move("s", [own("a")])) == ["not_found"]


# -- bodies


def test_who_may_read_a_body(place, store):
    (lease,) = leased(store, "a", lease_ms=1000)
    for claim in (own("a"), act(lease)):
        assert store.messages.read("s", claim).body == Body(b"{}", is_json=True)
    refused = [own("a", group="other"), act(lease, consumer="bob"), act(lease, version=1)]
    place.now_ms += 999
    assert store.messages.read("s", act(lease)) is not None
    place.now_ms += 1
    for claim in (*refused, act(lease)):
        with pytest.raises(Forbidden):
            store.messages.read("s", claim)
    assert store.messages.read("s", own("b")) is None


def test_bodies_are_bytes_of_any_kind(store):
    bodies = [Body(b""), Body(bytes(range(256))), Body(b"x" * 1_048_576), Body(b'{"a": "\xc3\xa4"}', is_json=True)]
    items = [NewMessage(f"m{n}", "shop", body) for n, body in enumerate(bodies)]
    assert codes(store.messages.create("s", items)) == ["ok"] * 4
    assert [store.messages.read("s", own(item.id)).body for item in items] == bodies
    assert [lease.body for lease in store.due.lease("s", [everything()], 10 * MEGABYTE).leases] == bodies


# -- batches


def test_one_bad_item_does_not_fail_the_others(store):
    """A malformed item is `invalid`; the answers have the order of the items."""
    bad = ["", "x" * 256, "nul\0", "\ud800"]
    items = [message("a"), *(message(one) for one in bad), message("b"), message("x" * 255), message("ä" * 255)]
    answers = store.messages.create("s", items)
    assert codes(answers) == ["ok", *["invalid"] * 4, "ok", "ok", "ok"]
    assert [answer.id for answer in answers] == [item.id for item in items]
    strange = [own("a", group=""), own("a", version=-1), own("a", version=2**63), own("a", -1), own("a", NOON + 1)]
    assert codes(store.messages.move("s", strange)) == ["invalid"] * 4 + ["ok"]


@pytest.mark.parametrize("ms", [2**53, 2**63 - 1])
def test_every_moment_of_64_bits_can_be_compared_with_the_horizon(store, ms):
    """Also in a schedule with the furthest horizon. In the past, any moment is possible."""
    store.put(Schedule("s", max_future_ms=2**52, max_lease_ms=2**52))
    ahead = [Moment(ms), Moment(ms, relative=True)]
    items = [NewMessage(f"far{n}", "shop", Body(b"x"), moment) for n, moment in enumerate(ahead)]
    assert codes(store.messages.create("s", items)) == ["too_far"] * 2
    before = NewMessage("before", "shop", Body(b"x"), Moment(-ms, relative=True))
    assert [answer.at_ms for answer in store.messages.create("s", [before])] == [0]
    (lease,) = store.due.lease("s", [everything()], MEGABYTE).leases
    held = [LeaseAct("before", lease.message.consumer, lease.message.version, moment) for moment in ahead]
    assert codes(store.messages.extend("s", held)) == ["bad_timestamp"] * 2
    assert codes(store.messages.release("s", held)) == ["too_far"] * 2


@pytest.mark.parametrize("end", [2**63 - 1, 2**70])
def test_messages_are_counted_in_any_range(store, end):
    """Also one that begins later than any message, or whose numbers a database does not have."""
    created(store, "a")
    for step in (None, 2**62, end):
        assert store.messages.counts("s", 0, end, step).total == 1
        assert store.messages.counts("s", end - 1, end, step).total == 0


def test_a_repeated_id_does_not_split_the_rest_of_a_batch(store, monkeypatch):
    """Only the repetitions need statements of their own; each item keeps its body."""
    writes, sizes = store.messages._tables.writes, []
    run = writes.run
    monkeypatch.setattr(writes, "run", lambda change: sizes.append(len(change.rows)) or run(change))
    items = [NewMessage(f"m{n % 1_200}", "shop", Body(b"%d" % n)) for n in range(1_202)]
    answers = store.messages.create("s", items)
    assert codes(answers) == ["ok"] * 1_200 + ["already_exists"] * 2
    assert sizes == [500, 500, 200, 2]
    assert [store.messages.read("s", own(f"m{n}")).body.content for n in (0, 1, 1_199)] == [b"0", b"1", b"1199"]


def test_a_store_that_is_away_at_first_has_stored_nothing(store, monkeypatch):
    """A malformed item is answered without the store, so it does not count as a part that was stored."""
    writes = store.messages._tables.writes

    def fail(_change):
        raise Unavailable("away")

    monkeypatch.setattr(writes, "run", fail)
    with pytest.raises(Unavailable, match="away"):
        store.messages.create("s", [message(""), message("a")])


def test_items_with_the_same_id_are_done_one_after_the_other(store):
    assert codes(store.messages.create("s", [message("a"), message("a"), message("b")])) == [
        "ok",
        "already_exists",
        "ok",
    ]
    lease, other = store.due.lease("s", [everything()], MEGABYTE).leases
    asked = [act(lease, in_ms=100), act(lease, in_ms=200), act(other, in_ms=100)]
    assert codes(store.messages.extend("s", asked)) == ["ok", "stale_version", "ok"]
    version = lease.message.version + 1
    twice = [act(lease, version=version), act(lease, version=version)]
    assert codes(store.messages.delete("s", twice)) == ["ok", "already_deleted"]


def test_batches_larger_than_a_statement(store):
    names = [f"m{n:05}" for n in range(1_203)]
    created(store, *names)
    assert codes(store.messages.create("s", [message(one) for one in names])) == ["already_exists"] * 1_203
    leases = store.due.lease("s", [everything(credit=2_000)], 10 * MEGABYTE).leases
    assert ids(leases) == names
    assert codes(store.messages.delete("s", [act(lease) for lease in leases])) == ["ok"] * 1_203


def test_no_items(store):
    assert store.messages.create("s", []) == []
    assert store.messages.delete("s", []) == []


@pytest.mark.parametrize("verb", ["create", "extend", "release", "move", "delete"])
def test_an_unknown_schedule(store, verb):
    items = {"create": message("a"), "move": own("a"), "delete": own("a")}
    with pytest.raises(NotFound, match="schedule 'none'"):
        getattr(store.messages, verb)("none", [items.get(verb, LeaseAct("a", "ada", 1))])
    for read in (
        lambda: store.messages.get("none", "a"),
        lambda: store.messages.read("none", own("a")),
        lambda: store.messages.list("none", ListQuery()),
        lambda: store.messages.counts("none", 0, 1),
        lambda: store.sessions.open("none", "ada", "n"),
    ):
        with pytest.raises(NotFound):
            read()


# -- dead messages


def dead(place, store, *names, attempts=2):
    """Let messages be delivered until they are dead."""
    made(store, max_attempts=attempts)
    leased(store, *names, lease_ms=1000)
    for _ in range(attempts):
        place.now_ms += 1000
        found = store.due.lease("s", [everything(lease_ms=1000)], MEGABYTE)
    assert (found.leases, found.dead) == ([], len(names))


def test_a_message_is_dead_after_its_last_attempt(place, store):
    """It is in the view of dead messages instead; its id stays taken."""
    made(store, max_attempts=2)
    created(store, "other", at_ms=NOON + YEAR)
    dead(place, store, "a", "b")
    assert store.messages.get("s", "a") is None
    found = store.messages.get("s.dead", "a")
    assert (found.delivery_count, found.consumer) == (2, "ada")
    assert codes(store.messages.create("s", [message("a")])) == ["already_exists"]
    assert chosen(store, ChosenMessage("a")) == ["not_found"]
    assert codes(store.messages.move("s", [own("a")])) == ["not_found"]
    listed = store.messages.list("s.dead", ListQuery())
    assert [one.id for one in listed] == ["a", "b"]
    assert [one.id for one in store.messages.list("s.dead", ListQuery(producer_group="shop"))] == ["a", "b"]
    assert [one.id for one in store.messages.list("s", ListQuery(producer_group="shop"))] == ["other"]
    assert store.messages.counts("s.dead", 0, NOON * 2).total == 2
    assert store.messages.counts("s", 0, NOON * 2).total == 1
    assert store.messages.read("s.dead", own("a")).body == Body(b"{}", is_json=True)


def test_a_chosen_message_dies_in_its_lease(place, store):
    made(store, max_attempts=1)
    leased(store, "a", lease_ms=1000)
    place.now_ms += 1000
    assert chosen(store, ChosenMessage("a")) == ["not_available"]
    assert store.messages.get("s.dead", "a").delivery_count == 1


def test_dead_messages_are_put_back(place, store):
    """By their owner; then they are available, with no deliveries and a higher version."""
    dead(place, store, "a", "b")
    version = store.messages.get("s.dead", "a").version
    asked = [own("a", group="other"), own("c"), own("a", version=1), own("a", version=version), own("a")]
    answers = store.messages.put_back("s.dead", asked)
    assert codes(answers) == ["not_owner", "not_found", "stale_version", "ok", "not_found"]
    found = stored(store)
    assert (found.at_ms, found.due_ms, found.delivery_count, found.consumer) == (
        place.now_ms,
        place.now_ms,
        0,
        None,
    )
    assert found.version == version + 1
    assert ids(store.due.lease("s", [everything()], MEGABYTE).leases) == ["a"]
    with pytest.raises(Conflict):
        store.messages.put_back("s", [own("b")])


def test_dead_messages_are_deleted(place, store):
    dead(place, store, "a")
    answers = store.messages.delete("s.dead", [own("a", group="other"), own("a")])
    assert codes(answers) == ["not_owner", "ok"]
    assert codes(store.messages.delete("s.dead", [own("a")])) == ["already_deleted"]
    assert store.messages.list("s.dead", ListQuery()) == []


def test_the_view_of_dead_messages_refuses_the_rest(place, store):
    dead(place, store, "a")
    holder = LeaseAct("a", "ada", 1)
    for call in (
        lambda: store.messages.create("s.dead", [message("b")]),
        lambda: store.messages.lease("s.dead", "ada", 1000, [ChosenMessage("a")]),
        lambda: store.messages.extend("s.dead", [holder]),
        lambda: store.messages.release("s.dead", [holder]),
        lambda: store.messages.move("s.dead", [own("a")]),
    ):
        with pytest.raises(Conflict):
            call()


def test_nobody_holds_a_dead_message(place, store):
    """A delete by a holder fails alone, and a list by consumer has those that it held last."""
    dead(place, store, "a", "b")
    asked = [LeaseAct("a", "ada", 1), own("b"), LeaseAct("none", "ada", 1), LeaseAct("", "ada", 1)]
    answers = store.messages.delete("s.dead", asked)
    assert codes(answers) == ["not_holder", "ok", "not_found", "invalid"]
    for consumer, held in (("ada", ["a"]), ("bob", [])):
        assert [one.id for one in store.messages.list("s.dead", ListQuery(consumer=consumer))] == held


# -- lists


def test_lists_by_owner_and_holder(place, store):
    """Ordered by id over all lanes, in pages, by state."""
    names = [f"m{n:02}" for n in range(40)]
    created(store, *names[:20])
    created(store, *names[20:], at_ms=NOON + MINUTE)
    store.messages.create("s", [message("other", group="else")])
    store.messages.lease("s", "ada", 1000, [ChosenMessage(one) for one in names[:10]])

    def listed(**query):
        found = [one.id for one in store.messages.list("s", ListQuery(**{"limit": 1000, **query}))]
        assert found == sorted(found)
        return found

    assert listed(producer_group="shop") == names
    assert listed(producer_group="shop", limit=7, after="m05") == names[6:13]
    assert listed(consumer="ada") == names[:10] == listed(state="processing")
    assert listed(producer_group="shop", state="available") == names[10:20]
    assert listed(producer_group="shop", state="waiting") == names[20:]
    assert listed() == [*names, "other"]
    place.now_ms += 1000
    assert listed(consumer="ada", state="processing") == []
    assert listed(consumer="ada", state="available") == names[:10]
    assert listed(consumer="bob") == listed(producer_group="none") == []


def test_a_batch_of_deletes_keeps_the_order_of_the_acts_on_a_message(store):
    """The owner may not delete what is leased; the holder may, and then it is gone."""
    (lease,) = leased(store, "a")
    created(store, "b", "c")
    items = [own("a"), act(lease), own("a"), own("b"), own("c")]
    assert codes(store.messages.delete("s", items)) == ["lease_active", "ok", "not_found", "ok", "ok"]


def test_an_error_after_a_part_of_a_batch_was_stored_leaves_the_outcome_unknown(store, monkeypatch):
    """`Unavailable` would say that nothing was stored."""
    created(store, "old")
    tables = store.messages._tables

    def fail(*_):
        raise Unavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "look", fail)
        with pytest.raises(Unavailable):
            store.messages.create("s", [message("old")])
        with pytest.raises(OutcomeUnknown, match="a part of the batch"):
            store.messages.create("s", [message("new"), message("old")])
    assert stored(store, "new")
    lease = next(one for one in leased(store, "held") if one.message.id == "held")
    with monkeypatch.context() as patch:
        patch.setattr(tables, "look", fail)
        with pytest.raises(OutcomeUnknown, match="a part of the batch"):
            store.messages.delete("s", [act(lease), own("absent")])
    assert codes(store.messages.delete("s", [act(lease)])) == ["already_deleted"]


@pytest.mark.parametrize("body", [Body("text"), Body(b"x", None), Body(b"x", "yes")])
def test_a_body_of_another_type_is_refused_alone(store, body):
    """Other callers share the statement."""
    item = NewMessage("a", "shop", body, Moment(NOON))
    assert codes(store.messages.create("s", [item, message("b")])) == ["invalid", "ok"]
