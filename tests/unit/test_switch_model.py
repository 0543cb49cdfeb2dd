"""Every interleaving of a switch: initiator, two nodes with publishers, a reader, and one failure.

A breadth-first search visits all states of a small model whose processes use the rules of
`strandline.log.switching`. A failure is one of these: the initiator or a node crashes, or its session expires
while it keeps running, at any step; a step ends with an unexpected error; or the answer to the commit is lost.
"""

from collections import deque
from typing import NamedTuple

import pytest

from strandline.log import switching
from strandline.log.switching import (
    NodeAction,
    Outcome,
    Phase,
    PublisherAction,
    State,
    Step,
    after_append,
    next_step,
    node_action,
    on_sealed,
    visible_end,
)


class Node(NamedTuple):
    alive: bool = True
    member: bool = True
    confirmed: int = 0
    seen: int = 0
    held: bool = False
    timeline: int = 1
    doing: str = "idle"  # idle, locks, catalog, drain
    phase: Phase | None = None  # the phase of the lock that the node has read
    # Its publisher: the events left to send, the current action, its timeline and offset.
    left: tuple = ()
    sending: str = ""  # "", append, check
    target: int = 1
    offset: int = -1


class World(NamedTuple):
    seals: bool
    phase: Phase | None = None
    state: State | None = None
    last: int | None = None
    version: int = 0
    sealed: bool = False
    old: tuple = ()
    new: tuple | None = None
    # The initiator.
    step: Step = Step.LOCK
    announced: int | None = None
    snapshot: int | None = None
    dead: bool = False
    session: bool = True
    nodes: tuple = ()
    acknowledged: frozenset = frozenset()
    # The reader: the events it has read, its position in each timeline, the end it has read from the storage.
    read: tuple = ()
    position: int = 0
    position_new: int = 0
    end: int | None = None
    known: int = -1
    troubles: int = 1


def moved(world: World, outcome: Outcome, **changes) -> World:
    return world._replace(step=next_step(world.step, outcome), announced=None, **changes)


def initiator(world: World):
    """All possible next steps of the initiator."""
    if world.dead or world.step is Step.END:
        return
    for after in INITIATOR[world.step](world):
        yield after
        if world.troubles and after.step is not world.step:
            yield broken(world, after)
    if world.troubles and world.step is not Step.UNLOCK:  # the coordination repeats an unlock that failed
        yield broken(world, world)


def broken(world: World, after: World) -> World:
    """The step ends with an unexpected error, after its effects (`after`) or before them."""
    return after._replace(step=next_step(world.step, Outcome.BROKEN), announced=None, troubles=world.troubles - 1)


def lock(world):
    yield moved(world, Outcome.OK, phase=Phase.WARM)


def record(world):
    yield moved(world, Outcome.OK, state=State.PREPARING)


def create(world):
    yield moved(world, Outcome.OK, new=())


def barrier(world, phase):
    if world.announced is None:
        if not world.session:
            yield moved(world, Outcome.FAILED)  # relock raises LeaseLost
        else:
            yield world._replace(phase=phase, version=world.version + 1, announced=world.version + 1)
        return
    if all(node.confirmed >= world.announced for node in world.nodes if node.member):
        yield moved(world, Outcome.OK)
    elif not world.session or any(not node.alive for node in world.nodes):
        yield moved(world, Outcome.FAILED)  # the wait has timed out


def close(world):
    if world.state is State.PREPARING:
        yield moved(world, Outcome.OK, state=State.CLOSING)
    else:
        yield moved(world, Outcome.REFUSED)


def seal(world):
    yield moved(world, Outcome.OK, sealed=world.sealed or world.seals)


def snapshot(world):
    yield moved(world, Outcome.OK, snapshot=len(world.old) - 1)


def commit(world):
    if world.state is not State.CLOSING:
        yield moved(world, Outcome.REFUSED)
        return
    done = {"state": State.DONE, "last": world.snapshot}
    yield moved(world, Outcome.OK, **done)
    if world.troubles:
        yield moved(world, Outcome.UNKNOWN, troubles=world.troubles - 1, **done)
        yield moved(world, Outcome.FAILED, troubles=world.troubles - 1)


def inspect(world):
    yield moved(world, Outcome.OK if world.state is State.DONE else Outcome.REFUSED)


def abort(world):
    if world.state in {State.PREPARING, State.CLOSING, State.ABORTED}:
        yield moved(world, Outcome.OK, state=State.ABORTED)
    else:
        yield moved(world, Outcome.REFUSED)


def unseal(world):
    yield moved(world, Outcome.OK, sealed=False)


def discard(world):
    yield moved(world, Outcome.OK, new=None)


def unlock(world):
    yield moved(world, Outcome.OK, phase=None if world.session else world.phase)


def announce(world):
    yield moved(world, Outcome.OK, version=world.version + 1)


INITIATOR = {
    Step.LOCK: lock,
    Step.RECORD: record,
    Step.CREATE: create,
    Step.WARM: lambda world: barrier(world, Phase.WARM),
    Step.HOLD: lambda world: barrier(world, Phase.HOLD),
    Step.CLOSE: close,
    Step.SEAL: seal,
    Step.SNAPSHOT: snapshot,
    Step.COMMIT: commit,
    Step.INSPECT: inspect,
    Step.ABORT: abort,
    Step.UNSEAL: unseal,
    Step.DISCARD: discard,
    Step.UNLOCK: unlock,
    Step.ANNOUNCE: announce,
}


def with_node(world: World, number: int, node: Node, **changes) -> World:
    nodes = tuple(node if at == number else other for at, other in enumerate(world.nodes))
    return world._replace(nodes=nodes, **changes)


def node_steps(world: World, number: int):
    node = world.nodes[number]
    if not node.alive:
        return
    if node.doing == "idle":
        orphan = world.phase is None and world.state is not None and not world.state.final
        if node.seen != world.version or (node.held and world.phase is None) or orphan:
            yield with_node(world, number, node._replace(doing="locks", seen=world.version))
    elif node.doing == "locks":
        yield with_node(world, number, node._replace(doing="catalog", phase=world.phase))
    elif node.doing == "catalog":
        yield decide(world, number, node)
    elif node.doing == "drain" and not node.sending:
        yield with_node(world, number, confirmed(node))


def confirmed(node: Node) -> Node:
    return node._replace(doing="idle", confirmed=node.seen if node.member else node.confirmed)


def decide(world: World, number: int, node: Node) -> World:
    action = node_action(node.phase, world.state)
    if action is NodeAction.WARM:
        return with_node(world, number, confirmed(node))
    if action is NodeAction.HOLD:
        return with_node(world, number, node._replace(doing="drain", held=True))
    if action is NodeAction.ABORT:
        # Compare-and-set, then clean up, then poll again.
        return with_node(
            world, number, node._replace(doing="catalog"), state=State.ABORTED, sealed=False, new=None
        )
    timeline = 2 if world.state is State.DONE else 1
    return with_node(world, number, confirmed(node._replace(held=False, timeline=timeline)))


def publisher_steps(world: World, number: int):
    node = world.nodes[number]
    if not node.alive:
        return
    if not node.sending:
        if node.left and not node.held:
            yield with_node(world, number, node._replace(sending="append", target=node.timeline))
    elif node.sending == "append":
        yield from append(world, number, node)
    else:
        verdict = after_append(world.state, node.offset, world.last)
        if verdict is PublisherAction.ACKNOWLEDGE:
            yield acknowledged(world, number, node)
        elif verdict is PublisherAction.MOVE:
            yield with_node(world, number, node._replace(sending="append", target=2))


def append(world: World, number: int, node: Node):
    event = node.left[0]
    if node.target == 2:
        assert world.new is not None, "appended to a topic that does not exist"
        yield acknowledged(world, number, node, new=(*world.new, event))
    elif world.seals and world.sealed:
        verdict = on_sealed(world.state)
        if verdict is PublisherAction.MOVE:
            yield with_node(world, number, node._replace(target=2))
        elif verdict is PublisherAction.UNSEAL:
            yield world._replace(sealed=False)
    elif world.seals:
        yield acknowledged(world, number, node, old=(*world.old, event))
    else:
        checking = node._replace(sending="check", offset=len(world.old))
        yield with_node(world, number, checking, old=(*world.old, event))


def acknowledged(world: World, number: int, node: Node, **changes) -> World:
    done = node._replace(sending="", left=node.left[1:], offset=-1)
    return with_node(world, number, done, acknowledged=world.acknowledged | {node.left[0]}, **changes)


def reader_steps(world: World):
    if world.end is None:
        if world.state is State.DONE and world.position > world.last:
            if world.new and world.position_new < len(world.new):
                event = world.new[world.position_new]
                yield world._replace(read=(*world.read, event), position_new=world.position_new + 1)
        elif world.position < len(world.old):
            yield world._replace(end=len(world.old) - 1)
        return
    visible = visible_end(world.end, world.state, world.last, world.known)
    fresh = world.old[world.position : visible + 1]
    yield world._replace(end=None, known=visible, position=world.position + len(fresh), read=(*world.read, *fresh))


def troubles(world: World):
    """The failures that can happen next, while `troubles` is not used up."""
    if not world.troubles:
        return
    less = world._replace(troubles=world.troubles - 1)
    if not world.dead and world.step not in {Step.LOCK, Step.END}:
        yield less._replace(dead=True)  # kill -9; its lock is removed when its session expires
        if world.session:
            yield less._replace(session=False, phase=None)  # paused until its session has expired, then resumed
    node = world.nodes[0]
    if node.alive:
        yield with_node(less, 0, node._replace(alive=False))
        yield with_node(less, 0, node._replace(member=False))


def sweeps(world: World):
    """The sweep deletes the topic of an aborted switch."""
    if world.state is State.ABORTED and world.new is not None:
        yield world._replace(new=None)


def expiries(world: World):
    """Sessions of dead processes expire by themselves."""
    if world.dead and world.session:
        yield world._replace(session=False, phase=None)
    for number, node in enumerate(world.nodes):
        if not node.alive and node.member:
            yield with_node(world, number, node._replace(member=False))


def successors(world: World):
    yield from initiator(world)
    for number in range(len(world.nodes)):
        yield from node_steps(world, number)
        yield from publisher_steps(world, number)
    yield from reader_steps(world)
    yield from troubles(world)
    yield from expiries(world)
    yield from sweeps(world)


def visible(world: World) -> tuple:
    if world.state is State.DONE:
        return world.old[: world.last + 1] + (world.new or ())
    return world.old


def check_always(world: World) -> None:
    """A reader never sees a record that is not visible to all readers in the end."""
    if world.state in {State.DONE, State.ABORTED, None}:
        assert world.read == visible(world)[: len(world.read)], "the reader has read a late append"


def check_end(world: World) -> None:
    """In a final state every acknowledged event is visible once, no publisher is held, nothing is left over."""
    seen = visible(world)
    assert world.read == seen, "the reader did not reach the end"
    for event in world.acknowledged:
        assert seen.count(event) == 1, f"{event} was acknowledged and is stored {seen.count(event)} times"
    assert len(set(seen)) == len(seen), "an event is visible twice"
    for node in world.nodes:
        if node.alive:
            assert not node.held, "a publisher is still held"
            assert not node.left, "a publisher has unsent events"
            mine = [event for event in seen if event[0] == node_name(world, node)]
            assert mine == sorted(mine), "events are out of order"
    assert world.phase is None, "the lock was not released"
    assert world.state is None or world.state.final, "the switch is not decided"
    assert (world.new is not None) == (world.state is State.DONE), "the new topic is an orphan or missing"


def node_name(world: World, node: Node) -> str:
    return "ab"[world.nodes.index(node)]


def explore(start: World) -> int:
    """Visit every state. A correct final state must be reachable from each of them."""
    todo = deque([start])
    before: dict[World, list[World]] = {start: []}
    ends = []
    while todo:
        world = todo.popleft()
        check_always(world)
        following = [after for after in successors(world) if after != world]
        if not following or only_troubles(world, following):
            check_end(world)
            ends.append(world)
        for after in following:
            if after not in before:
                before[after] = []
                todo.append(after)
            before[after].append(world)
    assert len(leading_to(ends, before)) == len(before), "some state never reaches a final state"
    return len(before)


def leading_to(ends: list[World], before: dict[World, list[World]]) -> set[World]:
    found = set(ends)
    todo = deque(ends)
    while todo:
        for world in before[todo.popleft()]:
            if world not in found:
                found.add(world)
                todo.append(world)
    return found


def only_troubles(world: World, following: list) -> bool:
    return all(after.troubles < world.troubles for after in following)


@pytest.mark.parametrize("seals", [True, False], ids=["storage that seals", "storage that cannot"])
@pytest.mark.parametrize("trouble", [0, 1], ids=["undisturbed", "one trouble"])
@pytest.mark.parametrize("publishing", [(("a0", "a1"),), (("a0",), ("b0",))], ids=["one node", "two nodes"])
def test_every_interleaving_keeps_the_promises(seals, trouble, publishing):
    """In all states: acknowledged events once and in order, no late append visible, nothing held or left over."""
    nodes = tuple(Node(left=events) for events in publishing)
    assert explore(World(seals=seals, nodes=nodes, troubles=trouble)) > 100


def hasty(state, offset, last):
    """Acknowledges every record that the storage stored."""
    return PublisherAction.ACKNOWLEDGE


def unfenced_commit(world):
    """Commits without checking the state of the row."""
    yield moved(world, Outcome.OK, state=State.DONE, last=world.snapshot)


def unfenced_close(world):
    yield moved(world, Outcome.OK, state=State.CLOSING)


PLANTED = {
    "acknowledging past the last offset": (False, "after_append", hasty),
    "reading what is still being closed": (False, "visible_end", lambda end, *_: end),
    "leaving an orphan switch alone": (
        True,
        "node_action",
        lambda phase, state: NodeAction.RELEASE if phase is None else switching.node_action(phase, state),
    ),
    "breaking the seal of a switch under way": (
        True,
        "on_sealed",
        lambda state: PublisherAction.MOVE if state is State.DONE else PublisherAction.UNSEAL,
    ),
    "committing without compare-and-set": (True, Step.COMMIT, unfenced_commit),
    "closing without compare-and-set": (True, Step.CLOSE, unfenced_close),
    "ending without a cleanup after an unexpected error": (
        True,
        "next_step",
        lambda step, outcome: Step.END if outcome is Outcome.BROKEN else switching.next_step(step, outcome),
    ),
    "snapshot without a seal": (True, Step.SEAL, lambda world: iter([moved(world, Outcome.OK)])),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_the_search_finds_planted_mistakes(mistake, monkeypatch):
    """Each planted mistake violates a check in some interleaving, so the checks can fail."""
    seals, where, wrong = PLANTED[mistake]
    if isinstance(where, Step):
        monkeypatch.setitem(INITIATOR, where, wrong)
    else:
        monkeypatch.setitem(globals(), where, wrong)
    with pytest.raises(AssertionError):
        explore(World(seals=seals, nodes=(Node(left=("a0", "a1")),)))
