"""Sequences of actions on one journal, and a plain model of what they result in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from strandline.journal import payloads
from strandline.journal.model import Append, Delete, LoggedAction, Mark, NewEvent, Payload, Purge
from strandline.log.cursors import Position

#: What is done to the journal: ("append", number of events), ("mark", 0), ("delete", seqNr) or ("purge", 0).
Step = tuple[str, int]


@dataclass
class PlainJournal:
    """What a user expects of a journal: its events, the newest seqNr, and up to where events were deleted."""

    seq_nr: int | None = None
    delete_to: int | None = None
    events: dict[int, bytes] = field(default_factory=dict)
    written: int = 0

    def take(self, step: Step) -> None:
        kind, number = step
        if kind == "append":
            for _ in range(number):
                self.seq_nr = (self.seq_nr or 0) + 1
                self.written += 1
                self.events[self.seq_nr] = b'{"n":%d}' % self.written
        elif kind == "delete" and self.seq_nr is None:
            self.seq_nr = self.delete_to = number
        elif kind == "delete":
            self.delete_to = max(self.delete_to or 0, min(number, self.seq_nr))
            self.events = {n: event for n, event in self.events.items() if n > self.delete_to}
        elif kind == "purge":
            self.seq_nr = self.delete_to = None
            self.events = {}


def sequences(length: int) -> Iterator[tuple[Step, ...]]:
    """Every sequence of so many steps. Deletes are at every seqNr there is, and one past the newest."""
    return _longer((), PlainJournal(), length)


def _longer(steps: tuple[Step, ...], journal: PlainJournal, left: int) -> Iterator[tuple[Step, ...]]:
    if not left:
        yield steps
        return
    deletes = [("delete", number) for number in range(1, (journal.seq_nr or 0) + 2)]
    for step in [("append", 1), ("append", 2), ("mark", 0), *deletes, ("purge", 0)]:
        after = PlainJournal(journal.seq_nr, journal.delete_to)
        after.take(step)
        yield from _longer((*steps, step), after, left - 1)


def logged(steps: tuple[Step, ...], entity: str = "a") -> list[LoggedAction]:
    """The records of these steps, at offsets 0, 10, 20, … of timeline 1. Appends continue the journal."""
    journal = PlainJournal()
    records = []
    for at, (kind, number) in enumerate(steps):
        before = journal.seq_nr or 0
        journal.take((kind, number))
        value = None
        if kind == "append":
            numbers = range(before + 1, before + 1 + number)
            encoding, value = payloads.encode(
                [NewEvent(Payload("json", journal.events[n]), (f"t{n}",), n) for n in numbers]
            )
            action = Append(numbers[0], numbers[-1], encoding, id=f"id-{at}")
        else:
            action = {"mark": Mark("m"), "delete": Delete(number), "purge": Purge()}[kind]
        records.append(LoggedAction(entity, Position(1, 10 * at), 1000 + at, action, value))
    return records
