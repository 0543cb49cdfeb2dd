"""The gate without a storage: order, limits and drains."""

from __future__ import annotations

from strandline.errors import Unavailable
from strandline.log.gate import Gate, Waiting


class Scene:
    """A gate, and a record of what happened."""

    def __init__(self, room: int = 10) -> None:
        self.drained = 0
        self.started: list[str] = []
        self.refused: list[str] = []
        self.gate = Gate(room, self._drain)

    def _drain(self) -> None:
        self.drained += 1

    def publish(self, name: str, deadline_ms: int = 100) -> None:
        self.gate.enter(
            Waiting(lambda: self.started.append(name), lambda _: self.refused.append(name), deadline_ms)
        )


def test_an_open_gate_lets_everybody_through():
    """Publishes start at once and in order."""
    scene = Scene()
    scene.publish("a")
    scene.publish("b")
    assert scene.started == ["a", "b"]


def test_a_held_gate_keeps_them_in_order():
    """Queued publishes start in order when the gate opens, before later ones."""
    scene = Scene()
    scene.gate.hold()
    scene.publish("a")
    scene.publish("b")
    assert scene.started == []
    scene.gate.release()
    scene.publish("c")
    assert scene.started == ["a", "b", "c"]


def test_a_held_gate_tells_when_it_is_drained():
    """The gate is drained when the last started publish has its outcome."""
    scene = Scene()
    scene.publish("a")
    scene.publish("b")
    scene.gate.hold()
    assert not scene.gate.drained
    scene.gate.leave()
    assert (scene.gate.drained, scene.drained) == (False, 0)
    scene.gate.leave()
    assert (scene.gate.drained, scene.drained) == (True, 1)


def test_only_so_many_may_wait():
    """A publish past the limit is refused at once."""
    scene = Scene(room=1)
    scene.gate.hold()
    scene.publish("a")
    scene.publish("b")
    assert scene.refused == ["b"]


def test_who_has_waited_too_long_is_refused():
    """A publish past its deadline does not start when the gate opens."""
    scene = Scene()
    scene.gate.hold()
    scene.publish("early", deadline_ms=50)
    scene.publish("late", deadline_ms=200)
    scene.gate.expire(100)
    scene.gate.release()
    assert (scene.refused, scene.started) == (["early"], ["late"])


def test_what_is_parked_goes_first():
    """Later publishes do not overtake a publish that met a seal."""
    scene = Scene()
    scene.publish("a")
    scene.gate.park(lambda: scene.started.append("a again"))
    scene.publish("b")
    assert scene.started == ["a"]
    scene.gate.resume_parked()
    assert scene.started == ["a", "a again", "b"]


def test_what_parks_again_waits_for_the_next_decision():
    """A publish that parks again is not resumed a second time in the same call."""
    scene = Scene()
    scene.publish("a")

    def again() -> None:
        scene.started.append("try")
        scene.gate.park(again)

    scene.gate.park(again)
    scene.gate.resume_parked()
    assert scene.started == ["a", "try"]
    assert scene.gate.parked


def test_parked_publishes_do_not_keep_a_switch_waiting():
    """A drain does not wait for parked publishes, because they wait for the decision of the switch."""
    scene = Scene()
    scene.publish("a")
    scene.gate.park(lambda: None)
    scene.gate.hold()
    assert scene.gate.drained


def test_refusals_name_the_reason():
    """A refused publish gets Unavailable with `retry_after`."""
    errors: list[Unavailable] = []
    gate = Gate(0, lambda: None)
    gate.hold()
    gate.enter(Waiting(lambda: None, errors.append, 0))  # type: ignore[arg-type]
    assert errors[0].retry_after == 1


def test_a_publish_passes_only_an_open_gate():
    """It must not overtake publishes that are queued or parked, and counts as started."""
    scene = Scene()
    assert scene.gate.pass_if_open()
    scene.gate.hold()
    assert not scene.gate.pass_if_open()
    assert not scene.gate.drained
    scene.gate.leave()
    assert scene.gate.drained
    scene.gate.release()
    assert scene.gate.pass_if_open()
    scene.gate.park(lambda: None)
    assert not scene.gate.pass_if_open()
    scene.gate.resume_parked()
    assert scene.gate.pass_if_open()
