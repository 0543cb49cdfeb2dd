"""The rules of a timeline switch: pure functions, so that every interleaving can be tried without I/O.

The catalog alone decides. A switch is a row with a token and a state that only compare-and-set changes:
`preparing` → `closing` → `done`, or `aborted` from either. The initiator goes through `Step`s. Every node,
publisher and reader derives what to do from the row, so that a process that crashed, paused or came late finds the
decision there. Locks and versions (coordination) only keep publishers from waiting for that decision.
"""

from __future__ import annotations

import enum


class State(enum.StrEnum):
    """Of the switch's row."""

    PREPARING = "preparing"
    CLOSING = "closing"
    DONE = "done"
    ABORTED = "aborted"

    @property
    def final(self) -> bool:
        return self in {State.DONE, State.ABORTED}


class Phase(enum.StrEnum):
    """The value of the event type's lock: whether nodes make ready or hold their publishers."""

    WARM = "warm"
    HOLD = "hold"


class Step(enum.StrEnum):
    """What the initiator does next; each has a failpoint before it."""

    LOCK = "lock"  # take the event type's lock, phase warm
    RECORD = "record"  # insert the row: preparing, token, storage, topic; mark the topic for deletion
    CREATE = "create"  # make the new topic
    WARM = "warm"  # announce; wait until every node can write to the new topic
    HOLD = "hold"  # lock phase hold, announce; wait until every node holds its publishers and has drained
    CLOSE = "close"  # preparing → closing
    SEAL = "seal"  # refuse appends inside the old topic, where the storage can
    SNAPSHOT = "snapshot"  # read the last offsets
    COMMIT = "commit"  # closing → done, with last offsets and the new timeline in one transaction
    INSPECT = "inspect"  # the answer to the commit was lost: read the row first
    ABORT = "abort"  # preparing or closing → aborted
    UNSEAL = "unseal"
    DISCARD = "discard"  # delete the new topic
    UNLOCK = "unlock"
    ANNOUNCE = "announce"  # every node looks again
    END = "end"


class Outcome(enum.StrEnum):
    """How a step ended: refused means that the state did not allow it, failed that nothing happened."""

    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    UNKNOWN = "unknown"


_FORWARD = {
    Step.LOCK: Step.RECORD,
    Step.RECORD: Step.CREATE,
    Step.CREATE: Step.WARM,
    Step.WARM: Step.HOLD,
    Step.HOLD: Step.CLOSE,
    Step.CLOSE: Step.SEAL,
    Step.SEAL: Step.SNAPSHOT,
    Step.SNAPSHOT: Step.COMMIT,
    Step.COMMIT: Step.UNLOCK,
    Step.INSPECT: Step.UNLOCK,
    Step.ABORT: Step.UNSEAL,
    Step.UNSEAL: Step.DISCARD,
    Step.DISCARD: Step.UNLOCK,
    Step.UNLOCK: Step.ANNOUNCE,
    Step.ANNOUNCE: Step.END,
}
# The step after one that did not succeed; ABORT for those that are not listed.
_ASIDE = {
    (Step.LOCK, Outcome.REFUSED): Step.END,
    (Step.LOCK, Outcome.FAILED): Step.END,
    (Step.LOCK, Outcome.UNKNOWN): Step.UNLOCK,
    (Step.RECORD, Outcome.REFUSED): Step.UNLOCK,
    (Step.RECORD, Outcome.FAILED): Step.UNLOCK,
    (Step.COMMIT, Outcome.UNKNOWN): Step.INSPECT,
    (Step.COMMIT, Outcome.FAILED): Step.INSPECT,
    (Step.INSPECT, Outcome.FAILED): Step.INSPECT,
    (Step.INSPECT, Outcome.UNKNOWN): Step.INSPECT,
    # The switch is done already.
    (Step.ABORT, Outcome.REFUSED): Step.UNLOCK,
    # The node that finds the lock gone aborts the switch and cleans up.
    (Step.ABORT, Outcome.FAILED): Step.UNLOCK,
    (Step.ABORT, Outcome.UNKNOWN): Step.UNLOCK,
}
# Cleanup continues after a failure: other nodes do what it could not.
_TIDYING = {Step.UNSEAL, Step.DISCARD, Step.UNLOCK, Step.ANNOUNCE}


def next_step(step: Step, outcome: Outcome) -> Step:
    """Where the initiator goes from here."""
    if outcome is Outcome.OK or step in _TIDYING:
        return _FORWARD[step]
    return _ASIDE.get((step, outcome), Step.ABORT)


class NodeAction(enum.StrEnum):
    WARM = "warm"  # open the new topic's storage; publishers continue
    HOLD = "hold"  # let no new publish start, wait for those under way
    RELEASE = "release"  # read the event type again, then let publishers continue
    ABORT = "abort"  # the initiator is gone: set the row to aborted, clean up, look again


def node_action(phase: Phase | None, state: State | None) -> NodeAction:
    """What a node does about an event type, from its lock (None: not locked) and its newest switch's state."""
    if state is None or state.final:
        return NodeAction.HOLD if phase is Phase.HOLD and state is None else NodeAction.RELEASE
    if phase is None:
        return NodeAction.ABORT
    return NodeAction.HOLD if phase is Phase.HOLD else NodeAction.WARM


class PublisherAction(enum.StrEnum):
    """What a publisher does with a record that met a switch."""

    ACKNOWLEDGE = "acknowledge"
    WAIT = "wait"  # for the switch to be decided
    MOVE = "move"  # write it (again) to the new timeline
    UNSEAL = "unseal"  # the seal is left over from an aborted switch: remove it and append again


def on_sealed(state: State) -> PublisherAction:
    """After a storage refused an append because of a seal; `state` is that of the seal's switch."""
    if state is State.DONE:
        return PublisherAction.MOVE
    return PublisherAction.UNSEAL if state is State.ABORTED else PublisherAction.WAIT


def after_append(state: State | None, offset: int, last: int | None) -> PublisherAction:
    """After a storage that cannot seal took a record, with the state read after its answer.

    `last` is the old timeline's last offset once the switch is done; readers never see a record past it.
    """
    if state is State.CLOSING:
        return PublisherAction.WAIT
    if state is State.DONE and last is not None and offset > last:
        return PublisherAction.MOVE
    return PublisherAction.ACKNOWLEDGE


def visible_end(end: int, state: State | None, recorded: int | None, known: int) -> int:
    """How far a reader may read an open timeline.

    `end` was read from the storage before the state; `known` is what this function said last (−1 at first).
    """
    if state is State.CLOSING:
        return min(end, known)
    if state is State.DONE and recorded is not None:
        return min(end, recorded)
    return end
