"""What producers and consumers of a schedule saw, checked afterwards: never early, never two leases, never lost.

The lines of a history are

- `asked` and `answered`, with the same `ref`: a change of one message by its producer (`create`, `move`, `cancel`)
  or by the holder of its lease (`extend`, `release`, `delete`). A change without an answer may be stored or not.
- `lease`: a lease that a consumer received. A pull has `asked_ms`, the moment at which the consumer asked for it.

Every change raises the version of its message by one, so the versions give the order of the changes of a message,
and a gap is what nobody saw. All times are milliseconds of the machine that runs the database and all consumers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Line = dict[str, Any]
#: Changes that give a message a moment at which it becomes due.
_PLACING = frozenset({"create", "move", "release"})
_BY_HOLDER = frozenset({"extend", "release", "delete"})
_REMOVING = frozenset({"delete", "cancel"})
# The database counts whole milliseconds.
_ROUNDING_MS = 1


@dataclass(frozen=True)
class Act:
    """A change that was asked for. `answer` is None if no answer came."""

    asked: Line
    answer: Line | None

    @property
    def kind(self) -> str:
        return self.asked["kind"]

    @property
    def done(self) -> bool:
        return self.answer is not None and self.answer["status"] == "ok"

    @property
    def unknown(self) -> bool:
        """Whether it may be stored although the caller does not know it.

        A create that is answered with `already_exists` repeats one without an answer.
        """
        return self.answer is None

    @property
    def version(self) -> int:
        """The version that it gave to the message."""
        assert self.answer is not None
        return self.answer["version"]

    def can_have_set(self, due_ms: int) -> bool:
        """Whether an act without an answer can have given the message that moment."""
        if "at_ms" in self.asked:
            return self.asked["at_ms"] == due_ms
        return self.asked["at"] + self.asked["in_ms"] - _ROUNDING_MS <= due_ms


@dataclass
class MessageHistory:
    """All that happened to one message."""

    acts: list[Act] = field(default_factory=list)
    leases: list[Line] = field(default_factory=list)

    def faults(self) -> Iterable[str]:
        self.leases.sort(key=lambda lease: lease["version"])
        yield from self._versions()
        yield from self._deliveries()
        yield from self._leases_in_time()
        yield from self._owners_and_holders()
        yield from self._end()

    @property
    def _done(self) -> list[Act]:
        return [act for act in self.acts if act.done and act.answer.get("code") != "already_deleted"]

    def _unknown(self, *kinds: str) -> list[Act]:
        return [act for act in self.acts if act.unknown and act.kind in kinds]

    def _versions(self) -> Iterable[str]:
        """Each version is the result of one change; that of a holder follows the version of its lease."""
        seen: set[int] = set()
        for version in [lease["version"] for lease in self.leases] + [act.version for act in self._done]:
            if version in seen:
                yield f"version {version} was given twice"
            seen.add(version)
        for act in self._done:
            if act.kind in _BY_HOLDER and act.version != act.asked["version"] + 1:
                yield f"a stale {act.kind} was accepted: {act}"

    def _deliveries(self) -> Iterable[str]:
        for before, lease in zip(self.leases, self.leases[1:], strict=False):
            if lease["delivery_count"] <= before["delivery_count"]:
                yield f"a delivery was not counted: {before}, {lease}"
        bodies = {act.asked["body"] for act in self.acts if act.kind == "create"}
        for lease in self.leases:
            if lease["body"] not in bodies:
                yield f"a body that nobody created: {lease}"

    # -- never early

    def _leases_in_time(self) -> Iterable[str]:
        for lease in self.leases:
            if lease["at"] < lease["due_ms"] or _begin(lease) < lease["due_ms"]:
                yield f"early: {lease}"
            if not self._is_due_moment(lease):
                yield f"due at a moment that nobody asked for: {lease}"
            if not lease.get("asked_ms", 0) - _ROUNDING_MS <= _begin(lease) <= lease["at"]:
                yield f"not by the clock of the database: {lease}"

    def _is_due_moment(self, lease: Line) -> bool:
        """The moment is that of the last change which set one, or of a change without an answer."""
        known = [act for act in self._done if act.kind in _PLACING and act.version < lease["version"]]
        last = max(known, key=lambda act: act.version, default=None)
        if last is not None and last.answer["at_ms"] == lease["due_ms"]:
            return True
        return any(act.can_have_set(lease["due_ms"]) for act in self._unknown(*_PLACING))

    # -- never two active leases

    def _owners_and_holders(self) -> Iterable[str]:
        """Go through all known changes in their order, with the lease that is active after each."""
        steps: list[tuple[int, Line | Act]] = [(lease["version"], lease) for lease in self.leases]
        steps += [(act.version, act) for act in self._done]
        held: Line | None = None
        for _, step in sorted(steps, key=lambda step: step[0]):
            if isinstance(step, Act):
                yield from self._check_act(step, held)
                held = _after(step, held)
            else:
                yield from self._check_lease(step, held)
                held = step

    def _check_lease(self, lease: Line, held: Line | None) -> Iterable[str]:
        if held is None or _begin(lease) >= held["expires_ms"]:
            return
        if _is_handed_back(lease, held) or self._may_have_changed(held, lease["version"], _begin(lease)):
            return
        yield f"two active leases: {held} and {lease}"

    def _may_have_changed(self, held: Line, version: int, before_ms: int) -> bool:
        """Whether the holder changed its lease without getting an answer."""
        return version > held["version"] + 1 and any(
            act.asked["version"] == held["version"] and act.asked["at"] <= before_ms
            for act in self._unknown(*_BY_HOLDER)
        )

    def _check_act(self, act: Act, held: Line | None) -> Iterable[str]:
        if held is None:
            return
        if act.kind in _BY_HOLDER:
            is_held = act.asked["version"] == held["version"]
            if is_held and act.asked["at"] > held["expires_ms"]:
                yield f"{act.kind} after the end of the lease: {held}, {act}"
            if is_held and act.asked["consumer"] != held["consumer"]:
                yield f"{act.kind} by somebody who is not the holder: {held}, {act}"
        elif act.answer["at"] < held["expires_ms"] and not self._may_have_changed(
            held, act.version, act.answer["at"]
        ):
            yield f"{act.kind} by the owner during a lease: {held}, {act}"

    # -- never lost

    def _end(self) -> Iterable[str]:
        """All messages are gone at the end, each because somebody asked for it."""
        creates = [act for act in self.acts if act.kind == "create"]
        if not creates:
            yield f"never created: {self.leases}"
        elif not any(act.answer for act in creates):
            return
        elif not any(act.kind in _REMOVING and (act.done or act.unknown) for act in self.acts):
            yield f"lost: {creates}"
        removed = [act.version for act in self._done if act.kind in _REMOVING]
        for lease in self.leases:
            if removed and lease["version"] > min(removed):
                yield f"leased after its deletion: {lease}"


def _begin(lease: Line) -> int:
    """When the lease was given, by the database's clock; for a lease that was extended, a later moment."""
    return lease["expires_ms"] - lease["lease_ms"]


def _is_handed_back(lease: Line, held: Line) -> bool:
    """A push session first gets the active leases of its consumer back; they keep their end."""
    same = ("consumer", "expires_ms")
    return "asked_ms" not in lease and all(lease[name] == held[name] for name in same)


def _after(act: Act, held: Line | None) -> Line | None:
    if act.kind != "extend" or held is None:
        return None
    return {**held, "version": act.version, "expires_ms": act.answer["at_ms"]}


class ScheduleHistory:
    """Lines can be added in any order."""

    def __init__(self, lines: Iterable[Line]) -> None:
        collected = [*lines]
        answers = {line["ref"]: line for line in collected if line["what"] == "answered"}
        self.messages: dict[str, MessageHistory] = defaultdict(MessageHistory)
        self.errors = [line for line in collected if line["what"] == "error"]
        for line in collected:
            if line["what"] == "asked":
                self.messages[line["id"]].acts.append(Act(line, answers.get(line["ref"])))
            elif line["what"] == "lease":
                self.messages[line["id"]].leases.append(line)

    def faults(self) -> list[str]:
        return [str(line) for line in self.errors] + [
            f"{name}: {fault}" for name, message in self.messages.items() for fault in message.faults()
        ]

    def __str__(self) -> str:
        acts = [act for message in self.messages.values() for act in message.acts]
        leases = [lease for message in self.messages.values() for lease in message.leases]
        refused = sum(act.answer is not None and not act.done for act in acts)
        return (
            f"{len(self.messages)} messages, {len(leases)} leases, {len(acts)} changes "
            f"({refused} refused, {sum(act.unknown for act in acts)} without an answer)"
        )
