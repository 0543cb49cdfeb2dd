"""What the fan-out stores in a SQL database: its position, the follow graph, the queue, dead letters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from strandline import failpoints
from strandline.engine.database import Database, LeaseClock, Rows, Tables, Transaction
from strandline.engine.process_leases import ProcessLeases
from strandline.errors import Conflict, Invalid, NotFound
from strandline.feeds.fanout.values import (
    BatchOutcome,
    FanoutLetter,
    FanoutPlan,
    FanoutRoute,
    FanoutState,
    PostEdit,
    QueuedPost,
)
from strandline.feeds.model import Entry
from strandline.log import cursors
from strandline.log.cursors import Position

_LEASES = "strandline fan-outs"
#: Begins the names of rebuilds, which are registered beside the processes of the fan-out.
REBUILD = "rebuild:"
_is_place = re.compile(r"([^/\0]+)/([0-9]{1,9})/([0-9a-f-]+)", re.ASCII).fullmatch

_route = msgspec.json.Decoder(FanoutRoute).decode


class _StoredPlan(msgspec.Struct):
    clock: int
    opened_ms: int
    until: dict[str, dict[int, str]]


_plan = msgspec.json.Decoder(_StoredPlan).decode


class FanoutBook:
    """The tables of a fan-out.

    They change only with `begin`, `open`, `raise_clock` and `close`, and with `posted` and `renewed`, which keep
    the feeds of authors alive.

    A batch is opened, its effects are written to the feeds, and it is closed; all of it is idempotent except the
    close, which only the first process succeeds with. Between open and close the tables stay as they are.
    """

    def __init__(self, database: Database) -> None:
        self._tables = Tables(database, "fan-out", "strandline.feeds.fanout", "fanout.sql")

    # -- batches

    def begin(self, route: FanoutRoute) -> None:
        """Store what this database belongs to. Conflict if it belongs to something else."""
        self._tables.store("begin", route=msgspec.json.encode(route).decode())
        known = self.route()
        if known == route:
            return
        if (known.posts, known.follows) == (route.posts, route.follows) and known.home == route.home:
            why = "an event type was deleted and created again, or an option has changed"
        else:
            why = "other event types or prefixes of feeds"
        raise Conflict(
            f"the fan-out in {self._tables.database.where} was begun with {_shown(known)}, not with "
            f"{_shown(route)} ({why}); use another feeds.database_url"
        )

    def route(self) -> FanoutRoute:
        """NotFound if no fan-out was begun here."""
        found = self._tables.fetch("route")
        if not found:
            raise NotFound(
                f"there is no fan-out in {self._tables.database.where} yet; run the job `fanout` first, which "
                "also builds the follow graph"
            )
        return _route(found[0][0])

    def state(self) -> FanoutState:
        with self._tables.snapshot() as own:
            return _state(own)

    def open(self, plan: FanoutPlan) -> None:
        """Begin a batch durably. Conflict if the tables are no longer in the state it was planned from."""
        until = {source: {part: str(at) for part, at in ends.items()} for source, ends in plan.until.items()}
        text = msgspec.json.encode(_StoredPlan(plan.clock, plan.opened_ms, until)).decode()
        if not self._tables.store("open", number=plan.number, clock=plan.clock, plan=text):
            raise Conflict(f"batch {plan.number} of the fan-out was opened or closed by another process")
        failpoints.hit("fanout.opened")

    def check_open(self, number: int) -> None:
        """Conflict if the batch was closed: what was read before belongs to it only if this returns."""
        if self.state_number() != number:
            raise Conflict(f"batch {number} of the fan-out was closed by another process")

    def state_number(self) -> int:
        return int(self._tables.fetch("state")[0][0])

    def raise_clock(self, at_least: int) -> int:
        """A new operation time, earlier than those of all batches that are opened after this call."""
        return int(self._tables.store("raise_clock", clock=at_least)[0][0])

    def close(self, plan: FanoutPlan, outcome: BatchOutcome) -> None:
        """Store the outcome, all at once. Conflict, with nothing stored, if the batch is closed already."""

        def work(own: Transaction) -> None:
            if not own.run("close", number=plan.number, clock=outcome.clock):
                raise Conflict(f"batch {plan.number} of the fan-out was closed by another process")
            self._store(own, plan, outcome)
            failpoints.hit("fanout.closing")

        self._tables.transaction(work)
        failpoints.hit("fanout.closed")

    def _store(self, own: Transaction, plan: FanoutPlan, outcome: BatchOutcome) -> None:
        own.run_many("move", [*_places(outcome.until)])
        pairs = [
            (one.follows, {"author": one.author, "follower": one.follower, "changed": one.time})
            for one in outcome.edges
        ]
        own.run_many("add_edge", [row for follows, row in pairs if follows])
        own.run_many("remove_edge", [_without_time(row) for follows, row in pairs if not follows])
        counts: Counter[str] = Counter()
        for one in outcome.edges:
            counts[one.author] += 1 if one.follows else -1
        own.run_many("count_followers", [{"author": name, "count": counts[name]} for name in sorted(counts)])
        posted = sorted({edit.author for edit in outcome.edits})
        own.run_many("posted", [{"author": name, "now_ms": plan.opened_ms} for name in posted])
        self._store_queue(own, plan.number, outcome)
        own.run_many("add_letter", [*map(_letter_row, outcome.letters)])

    def _store_queue(self, own: Transaction, number: int, outcome: BatchOutcome) -> None:
        for post, reached in sorted(outcome.reached.items()):
            if reached is None:
                own.run("leave_queue", number=post)
            else:
                own.run("reach", number=post, reached=reached, turn=number)
        gone = [edit for edit in outcome.edits if edit.deleted]
        own.run_many("cancel", [{"author": edit.author, "id": edit.entry.id} for edit in gone])
        own.run_many("queue", [_queue_row(edit, number) for edit in outcome.queued])

    # -- the graph

    def sizes(self, authors: Iterable[str]) -> dict[str, int]:
        """How many followers each author has; authors without any may be missing."""
        return dict(self._tables.fetch("sizes", authors=sorted({*authors})))

    def authors_of(self, followers: Iterable[str]) -> set[tuple[str, str]]:
        """The edges of some followers, as (author, follower)."""
        return {(author, name) for author, name in self._tables.fetch("edges_of", followers=[*followers])}

    def followers_of(self, authors: Iterable[str]) -> dict[str, list[str]]:
        """All followers of authors; they must fit into memory."""
        found: dict[str, list[str]] = {}
        for author, follower in self._tables.fetch("followers_of", authors=[*authors]):
            found.setdefault(author, []).append(follower)
        return found

    def followers_after(self, author: str, after: str, limit: int) -> list[str]:
        """Some followers of an author, in order of names."""
        return _names(self._tables.fetch("followers_after", author=author, after=after, limit=limit))

    def users_after(self, after: str, limit: int) -> list[str]:
        """Some of the users who follow anybody, in order of names."""
        return _names(self._tables.fetch("users_after", after=after, limit=limit))

    def authors_after(self, after: str, limit: int) -> list[str]:
        """Some of those who have posted or have ever been followed, in order of names."""
        return _names(self._tables.fetch("authors_after", after=after, limit=limit))

    # -- the queue, the feeds of authors, dead letters

    def chunks(self, limit: int) -> list[QueuedPost]:
        """The posts whose next chunk is delivered, those first that have waited longest."""
        return [
            QueuedPost(
                number,
                PostEdit(
                    time, author, Entry(entry_id, None if metadata is None else bytes(metadata)), bool(deleted)
                ),
                reached,
            )
            for number, author, time, entry_id, metadata, deleted, reached in self._tables.fetch(
                "chunks", limit=limit
            )
        ]

    def waiting_deletions(self, authors: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """The ids of deletions in the queue, by author."""
        found: dict[str, tuple[int, ...]] = {}
        for author, entry_id in self._tables.fetch("waiting_deletions", authors=[*authors]):
            found[author] = (*found.get(author, ()), entry_id)
        return found

    def waiting_posts(self, authors: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
        """The ids of posts in the queue with the last follower that each has reached, by author."""
        found: dict[str, list[tuple[int, str]]] = {}
        for author, entry_id, reached in self._tables.fetch("waiting_posts", authors=[*authors]):
            found.setdefault(author, []).append((entry_id, reached))
        return found

    def queue_length(self) -> int:
        return int(self._tables.fetch("queue_length")[0][0])

    def idle_authors(self, before_ms: int, limit: int) -> list[str]:
        """Authors whose feeds of own entries were not renewed since."""
        return _names(self._tables.fetch("idle_authors", before_ms=before_ms, limit=limit))

    def renewed(self, authors: Sequence[str], now_ms: int) -> None:
        self._tables.store("renewed", authors=[*authors], now_ms=now_ms)

    def posted(self, authors: Sequence[str], now_ms: int) -> None:
        """Keep the feeds of these authors alive."""
        rows = [{"author": author, "now_ms": now_ms} for author in authors]
        self._tables.transaction(lambda own: own.run_many("posted", rows))

    def letters(self, limit: int, after: str = "") -> list[FanoutLetter]:
        """Records that were set aside, in order; `after` is the place of the last one that is known."""
        found = self._tables.fetch("letters", limit=limit, **_place_row(after))
        return [
            FanoutLetter(source, partition, cursors.stored(text), reason, None if value is None else bytes(value))
            for source, partition, text, reason, value in found
        ]

    def is_rebuilding(self) -> bool:
        """Whether a rebuild runs, which may bring entries that a home feed does not show yet."""
        return any(owner.startswith(REBUILD) for owner in self.processes(0).owners())

    def processes(self, lease_ms: int) -> ProcessLeases:
        return ProcessLeases(self._tables, LeaseClock(self._tables.database), lease_ms, _LEASES)


def _state(own: Transaction) -> FanoutState:
    ((number, clock, text),) = own.run("state")
    positions: dict[str, dict[int, Position]] = {}
    for source, partition, cursor in own.run("positions"):
        positions.setdefault(source, {})[partition] = cursors.stored(cursor)
    if text is None:
        return FanoutState(number, clock, None, positions)
    stored = _plan(text)
    until = {
        source: {partition: cursors.stored(cursor) for partition, cursor in ends.items()}
        for source, ends in stored.until.items()
    }
    return FanoutState(number, clock, FanoutPlan(number, stored.clock, stored.opened_ms, until), positions)


def _places(until: Mapping[str, Mapping[int, Position]]) -> Iterable[dict[str, object]]:
    for source, ends in until.items():
        for partition, cursor in ends.items():
            yield {"source": source, "partition": partition, "cursor": str(cursor)}


def _place_row(place: str) -> dict[str, object]:
    """The columns of `FanoutLetter.place`."""
    if not place:
        return {"source": "", "partition": 0, "cursor": ""}
    found = _is_place(place)
    if not found:
        raise Invalid(f"{place!r:.80} is not the place of a record: event type/partition/cursor")
    source, partition, cursor = found.groups()
    return {"source": source, "partition": int(partition), "cursor": cursor}


def _without_time(row: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name != "changed"}


def _letter_row(one: FanoutLetter) -> dict[str, object]:
    reason = one.reason.replace("\0", "\ufffd")
    place = {"source": one.source, "partition": one.partition, "cursor": str(one.cursor)}
    return {**place, "reason": reason, "value": one.value}


def _queue_row(edit: PostEdit, turn: int) -> dict[str, object]:
    entry = {"id": edit.entry.id, "metadata": edit.entry.metadata}
    return {"author": edit.author, "time": edit.time, **entry, "deleted": edit.deleted, "turn": turn}


def _names(rows: Rows) -> list[str]:
    return [name for (name,) in rows]


def _shown(route: FanoutRoute) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in msgspec.structs.asdict(route).items())
