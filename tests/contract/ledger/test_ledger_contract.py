"""The contract of every ledger, on SQLite and on PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec
import pytest
from ledger_place import NOON, LedgerPlace, archived, decision, file

from strandline.archive.ledger import Ledger
from strandline.archive.ledger.connect import connect
from strandline.archive.ledger.sql import SqlLedger
from strandline.archive.model import Claim, Counts, Decision, Hour, StoredPartition, Term
from strandline.clock import ManualClock, SystemClock
from strandline.engine.connect import Databases
from strandline.errors import Conflict, Invalid, LeaseLost, NotFound, Unavailable
from strandline.log.cursors import Position
from strandline.log.settings import CatalogSettings
from strandline.settings import Settings


@pytest.fixture
def claim(ledger: Ledger) -> Claim:
    return ledger.claim("orders", "id-1")


# -- claims


def test_every_claim_has_the_next_epoch(ledger):
    """Each event type has its own epochs."""
    assert [ledger.claim("orders", "id-1").epoch for _ in range(3)] == [1, 2, 3]
    assert ledger.claim("other", "id-2") == Claim("other", 1, 1)


def test_whoever_was_replaced_can_change_nothing(ledger, claim):
    """Every change of an event type needs the current epoch."""
    archived(ledger, claim, None, 9, file(0, 9))
    ledger.claim("orders", "id-1")
    changes = [
        lambda: ledger.decide(claim, decision(9, 19, file(10, 19))),
        lambda: ledger.published(claim, ["x"]),
        lambda: ledger.hours.flag(claim, NOON, "p"),
        lambda: ledger.hours.confirm(claim, NOON, 1),
    ]
    before = ledger.standing("orders")
    for change in changes:
        with pytest.raises(LeaseLost, match="another process archives 'orders'"):
            change()
    assert ledger.standing("orders") == before
    assert ledger.publishing("orders") == []
    assert ledger.hours.between(0, 2 * NOON) == [Hour("orders", NOON)]


def test_a_claim_that_was_never_made_is_nobodys(ledger):
    """An invented claim is LeaseLost, also for an unknown event type."""
    with pytest.raises(LeaseLost):
        ledger.published(Claim("nobody", 1), [])


def test_of_many_that_claim_at_once_one_is_last(place: LedgerPlace):
    """Concurrent claims get different epochs, and only the highest one is valid."""
    ledgers = [place.open() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        claims = [*pool.map(lambda one: one.claim("orders", "id-1"), ledgers * 3)]
    assert sorted(claim.epoch for claim in claims) == [*range(1, 13)]
    for claim in claims:
        if claim.epoch == 12:
            ledgers[0].decide(claim, decision(None, 1))
        else:
            with pytest.raises(LeaseLost):
                ledgers[0].decide(claim, decision(1, 2))


def test_an_event_type_that_was_made_anew_starts_over(ledger, claim):
    """A recreated event type loses its positions, keeps files and counts, and gets a new incarnation."""
    archived(ledger, claim, None, 9, file(0, 9))
    again = ledger.claim("orders", "id-2")
    assert again == Claim("orders", 2, 2)
    standing = ledger.standing("orders")
    assert (standing.partitions, standing.read_ms, standing.counts.read) == ({}, -1, 10)
    assert len(ledger.files("orders", NOON)) == 1
    assert ledger.claim("orders", "id-2") == Claim("orders", 3, 2)


# -- decisions


def test_a_decision_lists_files_with_the_new_positions(ledger, claim):
    """A decision stores the files and the positions atomically."""
    step = decision(None, 9, file(0, 9), max_timestamp_ms=7, shift=1, start_ms=2, end_ms=3)
    ledger.decide(claim, step)
    assert ledger.standing("orders").partitions == {0: StoredPartition(Position(1, 9), 7, 1, 2, 3)}
    assert ledger.publishing("orders") == [file(0, 9)]
    assert ledger.files("orders", NOON) == []


def test_published_files_are_those_of_their_hour(ledger, claim):
    """An hour has only its published files; the others stay in `publishing`."""
    ledger.decide(claim, decision(None, 9, file(0, 4), file(5, 9), file(2, 3, hour_ms=NOON + 3_600_000)))
    ledger.published(claim, [file(5, 9).path, file(2, 3, hour_ms=NOON + 3_600_000).path])
    assert ledger.files("orders", NOON) == [file(5, 9)]
    assert ledger.publishing("orders") == [file(0, 4)]


def test_a_step_that_does_not_begin_where_the_last_one_ended_is_refused(ledger, claim):
    """A decision from another position is a Conflict and records nothing."""
    ledger.decide(claim, decision(None, 9))
    for before in (None, 8, 10):
        with pytest.raises(Conflict, match="partition 0 is archived up to"):
            ledger.decide(claim, decision(before, 19, file(10, 19)))
    assert ledger.publishing("orders") == []
    ledger.decide(claim, decision(9, 19, file(10, 19)))
    assert ledger.standing("orders").partitions[0].position == Position(1, 19)


def test_partitions_stand_for_themselves(ledger, claim):
    """A partition that is not in a decision keeps its position."""
    two = Decision({0: None, 1: None}, {n: StoredPartition(Position(1, n)) for n in (0, 1)}, (), Counts(), NOON)
    ledger.decide(claim, two)
    ledger.decide(claim, decision(0, 5))
    assert {n: one.position.offset for n, one in ledger.standing("orders").partitions.items()} == {0: 5, 1: 1}


def test_a_file_is_listed_once(ledger, claim):
    """A decision with a known file is a Conflict and records nothing."""
    archived(ledger, claim, None, 9, file(0, 9))
    with pytest.raises(Conflict, match="listed already"):
        ledger.decide(claim, decision(9, 19, file(10, 19), file(0, 9)))
    assert ledger.publishing("orders") == []


def test_counts_add_up(ledger, claim):
    """Each record read is archived, late, quarantined or dropped; a wrong sum is refused."""
    ledger.decide(claim, decision(None, 9, file(0, 6), file(7, 8, kind="quarantine", hour_ms=-1), dropped=1))
    assert ledger.standing("orders").counts == Counts(10, 7, 0, 2, 1, 0)
    step = decision(9, 19, file(10, 19))
    for wrong in (Counts(9, 9), Counts(10, 9), Counts(10, 9, 1), Counts(11, 10, 0, 0, 0), Counts(0)):
        with pytest.raises(Invalid, match="missing or counted twice"):
            ledger.decide(claim, msgspec.structs.replace(step, counts=wrong))
    ledger.decide(claim, msgspec.structs.replace(step, counts=Counts(10, 10, skipped=3)))
    assert ledger.standing("orders").counts == Counts(20, 17, 0, 2, 1, 3)


def test_when_partitions_were_looked_up_never_goes_back(ledger, claim):
    """`read_ms` is the newest time at which the partitions were read."""
    ledger.decide(claim, decision(None, 1, read_ms=NOON))
    ledger.decide(claim, decision(1, 2, read_ms=NOON - 5))
    assert ledger.standing("orders").read_ms == NOON


def test_publishing_again_is_harmless(ledger, claim):
    """`published` is idempotent, because a crash may hide a confirmation."""
    archived(ledger, claim, None, 9, file(0, 9))
    ledger.published(claim, [file(0, 9).path, "unknown"])
    assert ledger.files("orders", NOON) == [file(0, 9)]


def test_nothing_is_known_of_a_stranger(ledger):
    """An unknown event type has no standing and no files, also with an invalid name."""
    for name in ("nobody", "a\0b", "ü"):
        assert ledger.standing(name) is None
        assert ledger.files(name, NOON) == []
        assert ledger.hours.between(0, NOON, name) == []


def test_what_was_decided_is_there_after_a_restart(place: LedgerPlace):
    """Another process reads the decision."""
    first = place.open()
    claim = first.claim("orders", "id-1")
    first.decide(claim, decision(None, 9, file(0, 9)))
    second = place.open()
    assert second.publishing("orders") == [file(0, 9)]
    assert second.standing("orders") == first.standing("orders")


def test_the_ledger_is_where_the_catalog_is(postgres, tmp_path):
    """The ledger uses the database of the catalog and its clock, unless a test passes another clock."""
    remote = Settings(catalog=CatalogSettings(postgres.url(postgres.new_database())))
    with closing(Databases(tmp_path)) as databases:
        for settings in (Settings(), remote):
            real, fast = (connect(settings, databases, clock) for clock in (SystemClock(), ManualClock(78)))
            assert fast.now_ms() == 78
            assert abs(real.now_ms() - SystemClock().now_ms()) < 60_000
            assert [real.claim("a", "id").epoch, fast.claim("a", "id").epoch] == [1, 2]
    assert (tmp_path / "archive.db").exists()


def test_flags_carry_the_time_of_the_databases_clock(place):
    """A flag's time is the database's clock, also inside a transaction."""
    ledger = SqlLedger(place.database(), lease_ms=6_000)
    before = ledger.now_ms()
    flagged_ms = ledger.hours.flag(ledger.claim("orders", "id-1"), NOON, "p").flagged_ms
    assert before <= flagged_ms <= ledger.now_ms()


def test_a_ledger_of_a_newer_release_is_refused(place, ledger, claim):
    """The error says what to do, and nothing is changed."""
    ledger.decide(claim, decision(None, 9, file(0, 9)))
    place.execute("UPDATE layouts SET version = 99 WHERE room = 'archive'")
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"the archive in .* newer Strandline .*upgrade"):
            place.open()
    assert place.execute("SELECT version FROM layouts WHERE room = 'archive'") == [(99,)]
    assert ledger.publishing("orders") == [file(0, 9)]


# -- terms


def test_a_term_is_open_until_it_is_closed(ledger):
    """Opening a term is idempotent; closing a term that is not open is NotFound."""
    ledger.open_term("b", NOON)
    ledger.open_term("a", NOON)
    ledger.open_term("a", NOON + 5)
    assert ledger.terms() == [Term("a", NOON), Term("b", NOON)]
    ledger.close_term("a", NOON + 9)
    ledger.open_term("a", NOON + 20)
    assert ledger.terms() == [Term("a", NOON, NOON + 9), Term("a", NOON + 20), Term("b", NOON)]
    with pytest.raises(NotFound, match="'c' is not archived"):
        ledger.close_term("c", NOON)


def test_a_term_without_hours_is_none(ledger):
    """A term that is closed at its start is deleted."""
    ledger.open_term("a", NOON)
    ledger.close_term("a", NOON)
    assert ledger.terms() == []


# -- leases


def test_a_lease_has_one_owner(ledger):
    """Other processes cannot take a lease until it is released; taking it again is idempotent."""
    ledger.leases.renew("x")
    ledger.leases.renew("y", "how far it is")
    assert ledger.leases.owners() == {"x": "", "y": "how far it is"}
    assert ledger.leases.take("x", "a")
    assert ledger.leases.take("x", "a")
    assert not ledger.leases.take("y", "a")
    assert ledger.leases.take("y", "b")
    ledger.leases.release("y", "a")
    assert not ledger.leases.take("y", "a")
    ledger.leases.release("x", "a")
    assert ledger.leases.take("y", "a")


def test_a_process_that_is_silent_loses_its_leases(place, ledger):
    """A process that does not renew loses its leases at the exact time and is no longer an owner."""
    ledger.leases.renew("x")
    ledger.leases.renew("y")
    ledger.leases.take("x", "a")
    place.now_ms += 5_999
    assert not ledger.leases.take("y", "a")
    ledger.leases.renew("y")
    place.now_ms += 1
    assert ledger.leases.take("y", "a")
    ledger.leases.renew("y")
    assert [*ledger.leases.owners()] == ["y"]
    assert not ledger.leases.take("x", "a")


def test_a_process_that_nobody_knows_gets_nothing(ledger):
    """A process must renew before it can take a lease."""
    assert not ledger.leases.take("x", "a")


def test_whoever_leaves_lets_go_of_everything(ledger):
    """`leave` releases all leases at once."""
    ledger.leases.renew("x")
    ledger.leases.take("x", "a")
    ledger.leases.leave("x")
    ledger.leases.renew("y")
    assert [*ledger.leases.owners()] == ["y"]
    assert ledger.leases.take("y", "a")


def test_of_many_one_gets_the_lease(place):
    """Of concurrent processes with separate connections, exactly one gets the lease."""
    ledgers = [place.open() for _ in range(4)]

    def attempt(number: int) -> bool:
        ledgers[number].leases.renew(f"p{number}")
        return ledgers[number].leases.take(f"p{number}", "a")

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(attempt, range(4))) == 1
