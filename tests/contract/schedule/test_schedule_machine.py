"""The store against a plain model, with a clock that the test advances, on both engines.

Producers and consumers do anything in any order, with old versions, foreign names and moments at the boundaries.
Every answer, every message and every count must be those of the model.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from schedule_place import MEGABYTE, NOON, SchedulePlace, everything

from services.postgres import PostgresServer
from strandline.schedule.model import (
    Body,
    ChosenMessage,
    ItemAnswer,
    LeaseAct,
    ListQuery,
    Moment,
    NewMessage,
    OwnerAct,
    Schedule,
)

FUTURE, LONGEST, DEDUPE, ATTEMPTS = 100_000, 2_000, 5_000, 3
IDS = st.sampled_from(["a", "b", "c", "d", "e"])
GROUPS = st.sampled_from(["shop", "shop", "shop", "mail"])
CONSUMERS = st.sampled_from(["ada", "ada", "ada", "bob"])
BODIES = st.sampled_from([b"1", b"1", b"2"])
#: Relative to now, around every limit.
MOMENTS = st.sampled_from(
    [-1000, -1, 0, 1, 4, 5, 6, 500, 1000, LONGEST - 1, LONGEST, LONGEST + 1, FUTURE - 1, FUTURE, FUTURE + 1]
)
#: What is added to the current version; None: the owner gives none.
VERSIONS = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])


@dataclass
class Row:
    group: str
    body: bytes
    at_ms: int
    due_ms: int
    created_ms: int
    version: int
    consumer: str | None = None
    deliveries: int = 0
    state: str = "live"


class Model:
    """What the specification says, with one dictionary."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.now = NOON

    def live(self, name, state="live"):
        row = self.rows.get(name)
        return row if row is not None and row.state == state else None

    def create(self, name, group, body, at):
        old = self.rows.get(name)
        if old is not None and not (old.state == "deleted" and self.now - old.at_ms >= DEDUPE):
            same = (old.group, old.body) == (group, body)
            return ("already_exists", old.version if same else None)
        if at - self.now > FUTURE:
            return ("too_far", None)
        version = self.now // 1000 * 2**20
        version = version if old is None else max(version, old.version + 1)
        self.rows[name] = Row(group, body, at, at, self.now, version)
        return ("ok", version)

    def lease(self, name, consumer, version, length):
        row = self.live(name)
        if row is None:
            return "not_found"
        if row.at_ms > self.now:
            return "not_available"
        if version is not None and version != row.version:
            return "stale_version"
        if not 5 < length <= LONGEST:
            return "bad_timestamp"
        row.version += 1
        if row.deliveries >= ATTEMPTS:
            row.state = "dead"
            return "not_available"
        row.consumer, row.at_ms = consumer, self.now + length
        row.deliveries += 1
        return "ok"

    def holder(self, name, consumer, version):
        row = self.live(name)
        if row is None:
            return "not_found"
        if row.consumer != consumer:
            return "not_holder"
        if row.at_ms <= self.now:
            return "lease_expired"
        return None if version == row.version else "stale_version"

    def extend(self, name, consumer, version, at):
        code = self.holder(name, consumer, version)
        if code is None and not 5 < at - self.now <= LONGEST:
            code = "bad_timestamp"
        if code is None:
            self.rows[name].at_ms = at
            self.rows[name].version += 1
        return code or "ok"

    def release(self, name, consumer, version, at):
        code = self.holder(name, consumer, version)
        if code is None and at - self.now <= 5:
            code = "bad_timestamp"
        if code is None and at - self.now > FUTURE:
            code = "too_far"
        if code is None:
            row = self.rows[name]
            row.at_ms = row.due_ms = at
            row.consumer = None
            row.version += 1
        return code or "ok"

    def delete_held(self, name, consumer, version):
        row = self.rows.get(name)
        if row and row.state == "deleted" and row.consumer == consumer and row.version == version + 1:
            return "already_deleted"
        code = self.holder(name, consumer, version)
        return code or self._delete(name)

    def owner(self, name, group, version, state="live"):
        row = self.live(name, state)
        if row is None:
            return "not_found"
        if row.group != group:
            return "not_owner"
        if state == "live" and row.consumer is not None and row.at_ms > self.now:
            return "lease_active"
        return None if version in (None, row.version) else "stale_version"

    def delete_owned(self, name, group, version, state="live"):
        row = self.rows.get(name)
        again = row and row.state == "deleted" and row.consumer is None and row.group == group
        if again and (version is None or row.version == version + 1):
            return "already_deleted"
        code = self.owner(name, group, version, state)
        if code is None:
            self.rows[name].consumer = None
        return code or self._delete(name)

    def _delete(self, name):
        row = self.rows[name]
        row.state, row.at_ms = "deleted", self.now
        row.version += 1
        return "ok"

    def move(self, name, group, version, at):
        code = self.owner(name, group, version)
        if code is None and at - self.now > FUTURE:
            code = "too_far"
        if code is None:
            row = self.rows[name]
            row.at_ms = row.due_ms = at
            row.consumer = None
            row.version += 1
        return code or "ok"

    def put_back(self, name, group, version):
        code = self.owner(name, group, version, "dead")
        if code is None:
            row = self.rows[name]
            row.state, row.consumer, row.deliveries = "live", None, 0
            row.at_ms = row.due_ms = self.now
            row.version += 1
        return code or "ok"

    def version(self, name, shift):
        row = self.rows.get(name)
        return max(0, (row.version if row else 0) + shift)


class ScheduleMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.place = SchedulePlace(self.address())
        self.store = self.place.open()
        limits = {"max_future_ms": FUTURE, "max_lease_ms": LONGEST, "dedupe_ms": DEDUPE, "max_attempts": ATTEMPTS}
        self.store.put(Schedule("s", **limits))
        self.model = Model()
        for name in "abcd":
            self.create(name, "shop", b"1", 0, relative=False)
        for _ in range(ATTEMPTS):
            self.choose("a", "ada", None, 1_000)
            self.wait(1_000)
        self.choose("b", "ada", None, 1_000)

    def address(self) -> str:
        return f"sqlite:{self.folder / 'schedule.db'}"

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.place.close()
            shutil.rmtree(self.folder)

    def moment(self, shift: int, *, relative: bool) -> Moment:
        return Moment(shift, relative=True) if relative else Moment(self.model.now + shift)

    def some(self, state: str) -> bool:
        return any(row.state == state for row in self.model.rows.values())

    def is_held(self, row: Row) -> bool:
        return row.state == "live" and row.consumer is not None and row.at_ms > self.model.now

    def likely(self, name: str, wanted: Callable[[Row], bool]) -> str:
        """Mostly the id of a message for which an operation can succeed."""
        fitting = sorted(known for known, row in self.model.rows.items() if wanted(row))
        return name if name == "e" or not fitting else fitting[ord(name) % len(fitting)]

    def check(self, answers: list[ItemAnswer], code: str) -> None:
        (answer,) = answers
        assert (answer.code or answer.status) == code
        assert answer.status == ("ok" if code in {"ok", "already_deleted"} else "error")

    @rule(name=IDS, group=GROUPS, body=BODIES, shift=MOMENTS, relative=st.booleans())
    def create(self, name: str, group: str, body: bytes, shift: int, *, relative: bool) -> None:
        name = self.likely(name, lambda row: row.state == "deleted")
        code, version = self.model.create(name, group, body, self.model.now + shift)
        moment = self.moment(shift, relative=relative)
        answers = self.store.messages.create("s", [NewMessage(name, group, Body(body), moment)])
        self.check(answers, code)
        assert answers[0].version == version

    @precondition(lambda self: self.some("live"))
    @rule(name=IDS, consumer=CONSUMERS, shift=st.none() | VERSIONS, length=MOMENTS)
    def choose(self, name: str, consumer: str, shift: int | None, length: int) -> None:
        name = self.likely(name, lambda row: row.state == "live" and row.at_ms <= self.model.now)
        version = None if shift is None else self.model.version(name, shift)
        code = self.model.lease(name, consumer, version, length)
        (found,) = self.store.messages.lease("s", consumer, length, [ChosenMessage(name, version)])
        assert (found.code if isinstance(found, ItemAnswer) else "ok") == code

    @precondition(lambda self: self.some("live"))
    @rule(consumer=CONSUMERS, credit=st.integers(1, 3))
    def take(self, consumer: str, credit: int) -> None:
        """A node leases what is due; the oldest come first. Dead ones count as taken, too."""
        due = sorted(
            (row.at_ms, name)
            for name, row in self.model.rows.items()
            if row.state == "live" and row.at_ms <= self.model.now
        )
        found = self.store.due.lease("s", [everything(consumer, credit, 1_000)], MEGABYTE)
        taken = {lease.message.id for lease in found.leases}
        oldest = [at_ms for at_ms, _ in due[:credit]]
        expected = {}
        for at_ms, name in due:
            if at_ms in oldest:
                expected[name] = self.model.rows[name].deliveries < ATTEMPTS
        assert taken <= {name for name, lives in expected.items() if lives}
        assert len(taken) + found.dead == min(credit, len(due))
        dead = {one.id for one in self.store.messages.list("s.dead", ListQuery())}
        for name in [name for _, name in due if name in taken or name in dead]:
            self.model.lease(name, consumer, None, 1_000)
        assert [lease.body.content for lease in found.leases] == [
            self.model.rows[one].body for one in (lease.message.id for lease in found.leases)
        ]

    @precondition(lambda self: any(map(self.is_held, self.model.rows.values())))
    @rule(
        name=IDS,
        consumer=CONSUMERS,
        shift=VERSIONS,
        to=MOMENTS,
        relative=st.booleans(),
        verb=st.sampled_from(["extend", "release"]),
    )
    def hold(self, name: str, consumer: str, shift: int, to: int, verb: str, *, relative: bool) -> None:
        name = self.likely(name, self.is_held)
        version = self.model.version(name, shift)
        code = getattr(self.model, verb)(name, consumer, version, self.model.now + to)
        asked = LeaseAct(name, consumer, version, self.moment(to, relative=relative))
        self.check(getattr(self.store.messages, verb)("s", [asked]), code)

    @precondition(lambda self: any(map(self.is_held, self.model.rows.values())) or self.some("deleted"))
    @rule(name=IDS, consumer=CONSUMERS, shift=VERSIONS)
    def delete_held(self, name: str, consumer: str, shift: int) -> None:
        name = self.likely(name, lambda row: self.is_held(row) or row.state == "deleted")
        version = self.model.version(name, shift)
        code = self.model.delete_held(name, consumer, version)
        self.check(self.store.messages.delete("s", [LeaseAct(name, consumer, version)]), code)

    @precondition(lambda self: self.model.rows)
    @rule(name=IDS, group=GROUPS, shift=st.none() | VERSIONS, dead=st.booleans())
    def delete_owned(self, name: str, group: str, shift: int | None, *, dead: bool) -> None:
        state = "dead" if dead else "live"
        name = self.likely(name, lambda row: row.state == state)
        version = None if shift is None else self.model.version(name, shift)
        code = self.model.delete_owned(name, group, version, state)
        view = "s.dead" if dead else "s"
        self.check(self.store.messages.delete(view, [OwnerAct(name, group, version)]), code)

    @precondition(lambda self: self.model.rows)
    @rule(name=IDS, group=GROUPS, shift=st.none() | VERSIONS, to=MOMENTS, relative=st.booleans())
    def move(self, name: str, group: str, shift: int | None, to: int, *, relative: bool) -> None:
        name = self.likely(name, lambda row: row.state == "live" and not self.is_held(row))
        version = None if shift is None else self.model.version(name, shift)
        code = self.model.move(name, group, version, self.model.now + to)
        asked = OwnerAct(name, group, version, self.moment(to, relative=relative))
        self.check(self.store.messages.move("s", [asked]), code)

    @precondition(lambda self: self.some("dead"))
    @rule(name=IDS, group=GROUPS, shift=st.none() | VERSIONS)
    def put_back(self, name: str, group: str, shift: int | None) -> None:
        name = self.likely(name, lambda row: row.state == "dead")
        version = None if shift is None else self.model.version(name, shift)
        code = self.model.put_back(name, group, version)
        self.check(self.store.messages.put_back("s.dead", [OwnerAct(name, group, version)]), code)

    @rule(name=IDS)
    def give_back(self, name: str) -> None:
        row = self.model.live(name)
        if row is None or row.consumer is None:
            return
        self.store.due.give_back("s", [LeaseAct(name, row.consumer, row.version)])
        row.at_ms, row.consumer = row.due_ms, None
        row.version += 1
        row.deliveries -= 1

    @precondition(lambda self: any(map(self.is_held, self.model.rows.values())))
    @rule(consumer=CONSUMERS)
    def return_to(self, consumer: str) -> None:
        """A consumer comes back and gets its active leases."""
        rows = self.model.rows.items()
        mine = {n: r for n, r in rows if r.state == "live" and r.consumer == consumer and r.at_ms > self.model.now}
        handed = {name for name, row in mine.items() if row.deliveries < ATTEMPTS}
        epoch = self.store.sessions.open("s", consumer, "node")
        found = self.store.due.hand_back("s", consumer, epoch, 100)
        assert {lease.message.id for lease in found.leases} == handed
        for name in handed:
            self.model.rows[name].version += 1
            self.model.rows[name].deliveries += 1

    @rule(ms=st.sampled_from([1, 1, 5, 500, 999, 1000, LONGEST, DEDUPE - 1, DEDUPE]))
    def wait(self, ms: int) -> None:
        self.model.now += ms
        self.place.now_ms = self.model.now

    @precondition(lambda self: self.some("deleted"))
    @rule()
    def keep_up(self) -> None:
        """Upkeep removes old tombstones; that makes no difference to anybody."""
        self.store.fold()
        self.store.purge(2)
        stored = {name for (name,) in self.place.execute("SELECT id FROM messages")}
        for name in self.model.rows.keys() - stored:
            row = self.model.rows.pop(name)
            assert row.state == "deleted"
            assert self.model.now - row.at_ms >= DEDUPE

    @invariant()
    def the_messages_agree(self) -> None:
        if not hasattr(self, "folder"):
            return
        for view, state in (("s", "live"), ("s.dead", "dead")):
            stored = {
                one.id: (
                    one.at_ms,
                    one.due_ms,
                    one.version,
                    one.consumer,
                    one.delivery_count,
                    one.created_ms,
                    one.producer_group,
                )
                for one in self.store.messages.list(view, ListQuery(limit=100))
            }
            assert stored == {
                name: (row.at_ms, row.due_ms, row.version, row.consumer, row.deliveries, row.created_ms, row.group)
                for name, row in self.model.rows.items()
                if row.state == state
            }

    @invariant()
    def the_counts_agree(self) -> None:
        if not hasattr(self, "folder"):
            return
        now = self.model.now
        live = [row for row in self.model.rows.values() if row.state == "live"]
        found = self.store.messages.counts("s", NOON - 7_200_000, now + 7_200_000)
        assert found.available == sum(row.at_ms <= now for row in live)
        assert found.waiting == sum(row.at_ms > now and row.consumer is None for row in live)
        assert found.processing == sum(row.at_ms > now and row.consumer is not None for row in live)


def test_the_sqlite_store_agrees_with_the_model():
    run_state_machine_as_test(ScheduleMachine, settings=settings(max_examples=100, stateful_step_count=40))


def test_the_postgresql_store_agrees_with_the_model(postgres: PostgresServer):
    class PostgresMachine(ScheduleMachine):
        def address(self) -> str:
            return postgres.url(postgres.new_database())

    run_state_machine_as_test(PostgresMachine, settings=settings(max_examples=30, stateful_step_count=40))
