"""The rules of a timeline switch: pure functions, so that every interleaving can be tested without I/O.

A switch is a row of the catalog with a token and a state, which changes only by compare-and-set: `preparing` →
`closing` → `done`, or `aborted` from either. The initiator goes through `Step`s. Every node, publisher and reader
derives its action from the row. Locks and versions only keep publishers from running into an undecided switch.
"""

from __future__ import annotations

import enum
from itertools import pairwise


class State(enum.StrEnum):
    """The state of the switch's row."""

    PREPARING = "preparing"
    CLOSING = "closing"
    DONE = "done"
    ABORTED = "aborted"

    @property
    def final(self) -> bool:
        return self in {State.DONE, State.ABORTED}


class Phase(enum.StrEnum):
    """The value of the event type's lock: whether nodes prepare or hold their publishers."""

    WARM = "warm"
    HOLD = "hold"


class Step(enum.StrEnum):
    """The steps of the initiator. There is a failpoint before each step."""

    LOCK = "lock"  # take the event type's lock, phase warm
    RECORD = "record"  # insert the row: preparing, token, storage, topic
    CREATE = "create"  # create the new topic
    WARM = "warm"  # announce; wait until every node has tried to connect to the new topic
    HOLD = "hold"  # lock phase hold, announce; wait until every node holds its publishers and has drained
    CLOSE = "close"  # preparing → closing
    SEAL = "seal"  # make the old topic refuse appends, if the storage can; end unfinished fenced appends
    SNAPSHOT = "snapshot"  # read the last offsets
    COMMIT = "commit"  # closing → done, with last offsets and the new timeline in one transaction
    INSPECT = "inspect"  # the outcome of the commit is unknown: read the row
    ABORT = "abort"  # preparing or closing → aborted, which lets a sweep delete the new topic
    UNSEAL = "unseal"
    DISCARD = "discard"  # let a sweep delete the new topic, even if it was created after another node's abort
    UNLOCK = "unlock"
    ANNOUNCE = "announce"  # every node polls again
    END = "end"


class Outcome(enum.StrEnum):
    """How a step ended. Refused: the state did not allow it. Failed: nothing happened.

    Broken: an error that no adapter maps; the step may or may not have happened, and repeating it may not help.
    """

    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    UNKNOWN = "unknown"
    BROKEN = "broken"


# The steps are declared in the order in which they succeed each other, except that these two skip the cleanup.
_FORWARD = dict(pairwise(Step)) | {Step.COMMIT: Step.UNLOCK, Step.INSPECT: Step.UNLOCK}
# The step after one that did not succeed; ABORT for those that are not listed.
_NOT_OK = {
    (Step.LOCK, Outcome.REFUSED): Step.END,
    (Step.LOCK, Outcome.FAILED): Step.END,
    (Step.LOCK, Outcome.UNKNOWN): Step.UNLOCK,
    (Step.LOCK, Outcome.BROKEN): Step.UNLOCK,
    (Step.RECORD, Outcome.REFUSED): Step.UNLOCK,
    (Step.RECORD, Outcome.FAILED): Step.UNLOCK,
    (Step.COMMIT, Outcome.UNKNOWN): Step.INSPECT,
    (Step.COMMIT, Outcome.FAILED): Step.INSPECT,
    (Step.COMMIT, Outcome.BROKEN): Step.INSPECT,
    (Step.INSPECT, Outcome.FAILED): Step.INSPECT,
    (Step.INSPECT, Outcome.UNKNOWN): Step.INSPECT,
    # The switch is done already.
    (Step.ABORT, Outcome.REFUSED): Step.UNLOCK,
    # A node that finds no lock aborts the switch and cleans up.
    (Step.ABORT, Outcome.FAILED): Step.UNLOCK,
    (Step.ABORT, Outcome.UNKNOWN): Step.UNLOCK,
    (Step.ABORT, Outcome.BROKEN): Step.UNLOCK,
}
# Cleanup continues after a failed step: other nodes do that step.
_CLEANUP = {Step.UNSEAL, Step.DISCARD, Step.UNLOCK, Step.ANNOUNCE}


def next_step(step: Step, outcome: Outcome) -> Step:
    """The step that follows a step with this outcome."""
    if outcome is Outcome.OK or step in _CLEANUP:
        return _FORWARD[step]
    return _NOT_OK.get((step, outcome), Step.ABORT)


class NodeAction(enum.StrEnum):
    WARM = "warm"  # open the new topic's storage; publishers continue
    HOLD = "hold"  # start no new publish, wait for the started ones
    RELEASE = "release"  # the switch is decided: publishers continue
    ABORT = "abort"  # the initiator lost its lock: set the row to aborted, clean up, poll again


def node_action(phase: Phase | None, state: State | None) -> NodeAction:
    """What a node does about an event type, from its lock (None: not locked) and its newest switch's state."""
    if state is None or state.final:
        return NodeAction.HOLD if phase is Phase.HOLD and state is None else NodeAction.RELEASE
    if phase is None:
        return NodeAction.ABORT
    return NodeAction.HOLD if phase is Phase.HOLD else NodeAction.WARM


class PublisherAction(enum.StrEnum):
    """What a publisher does with a record during a switch."""

    ACKNOWLEDGE = "acknowledge"
    WAIT = "wait"  # for the switch to be decided
    MOVE = "move"  # write it (again) to the new timeline
    UNSEAL = "unseal"  # the seal is left over from an aborted switch: remove it and append again


def on_sealed(state: State) -> PublisherAction:
    """The action after a storage refused an append because of a seal, by the state of the seal's switch."""
    if state is State.DONE:
        return PublisherAction.MOVE
    return PublisherAction.UNSEAL if state is State.ABORTED else PublisherAction.WAIT


def after_append(state: State | None, offset: int, last: int | None) -> PublisherAction:
    """The action after a storage that cannot seal stored a record. `state` was read after its answer.

    `last` is the old timeline's last offset once the switch is done; readers never see a record past it.
    """
    if state is State.CLOSING:
        return PublisherAction.WAIT
    if state is State.DONE and last is not None and offset > last:
        return PublisherAction.MOVE
    return PublisherAction.ACKNOWLEDGE


def visible_end(end: int, state: State | None, recorded: int | None, known: int) -> int:
    """The last offset that a reader may read of an open timeline.

    `end` was read from the storage before the state; `known` is the last result of this function (−1 at first).
    """
    if state is State.CLOSING:
        return min(end, known)
    if state is State.DONE and recorded is not None:
        return min(end, recorded)
    return end
