"""What an operator sees of a switch while it runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest
from switching_place import Opener, publish

from services import DEADLINE_S, until
from strandline import EventType
from strandline.errors import Conflict, StrandlineError, Unavailable
from strandline.log.model import WaitingNode
from strandline.log.node import MemberValue, Node
from strandline.platform import Platform


def two_nodes(opened: Opener) -> tuple[Platform, Platform]:
    """Two nodes that have published."""
    ours, other = opened(), opened()
    ours.log.create(EventType("orders"))
    for platform in (ours, other):
        publish(platform, 1)
    return ours, other


def never_confirm(platform: Platform, patch: pytest.MonkeyPatch) -> Callable[[Node, int], None]:
    """Keep a node from confirming any version. Returns the method that was replaced."""
    confirm = Node._confirm

    def replaced(node: Node, version: int) -> None:
        if node is not platform.log.node:
            confirm(node, version)

    patch.setattr(Node, "_confirm", replaced)
    return confirm


def test_it_lists_the_nodes_that_have_not_confirmed(opened, monkeypatch):
    """With host and process, until they have confirmed. A decided switch waits for nobody."""
    ours, other = two_nodes(opened)
    admin = opened().log.admin
    assert admin.current_switch("orders") is None
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        confirm = never_confirm(other, patch)
        switching = pool.submit(ours.log.admin.switch, "orders", "second")
        waiting = (WaitingNode(other.log.node.id, socket.gethostname(), os.getpid()),)
        until(lambda: (found := admin.current_switch("orders")) is not None and found.unconfirmed == waiting)
        assert admin.current_switch("orders").state == "preparing"
        patch.setattr(Node, "_confirm", confirm)
        assert switching.result().order == 2
    done = admin.current_switch("orders")
    assert (done.state, done.unconfirmed) == ("done", ())


def test_an_abort_ends_the_wait(opened, monkeypatch):
    """The initiator does not wait for its timeout, during which no other switch could begin."""
    ours, other = two_nodes(opened)
    confirm = never_confirm(other, monkeypatch)
    admin = opened().log.admin
    with ThreadPoolExecutor(1) as pool:
        switching = pool.submit(ours.log.admin.switch, "orders", "second")
        until(lambda: (found := admin.current_switch("orders")) is not None and found.unconfirmed)
        assert admin.abort_switch("orders").state == "aborted"
        with pytest.raises(Unavailable, match="the switch was aborted"):
            switching.result(DEADLINE_S)
    monkeypatch.setattr(Node, "_confirm", confirm)
    assert admin.switch("orders", "second").order == 2


def test_the_error_of_a_switch_names_them(opened, monkeypatch):
    """Also a node of an older release, of which only the id is known."""
    node = opened()
    node.log.create(EventType("orders"))
    publish(node, 1)
    initiator = node.log.admin._initiator
    monkeypatch.setattr(initiator, "_settings", replace(initiator._settings, switch_timeout_ms=0))
    coordination = node.log.node.coordination
    members = {"old": '{"version":0}', "new": msgspec.json.encode(MemberValue(0, host="b", pid=7)).decode()}
    monkeypatch.setattr(coordination, "members", lambda: members)
    with pytest.raises(Unavailable, match=r"did not confirm in time: old, new \(process 7 on b\)"):
        node.log.admin.switch("orders", "second")


def test_a_node_of_another_protocol_refuses_switches_and_is_listed(opened, monkeypatch):
    """An operator reads who it is, also while a switch is under way."""
    ours, other = two_nodes(opened)
    never_confirm(other, monkeypatch)
    admin = opened().log.admin
    with ThreadPoolExecutor(1) as pool:
        switching = pool.submit(ours.log.admin.switch, "orders", "second")
        until(lambda: (found := admin.current_switch("orders")) is not None and found.unconfirmed)
        with monkeypatch.context() as patch:
            patch.setattr(admin._initiator._node.coordination, "members", lambda: {"old": encoded(protocol=0)})
            assert admin.current_switch("orders").unconfirmed == (WaitingNode("old"),)
        admin.abort_switch("orders")
        with pytest.raises(Unavailable):
            switching.result(DEADLINE_S)
    monkeypatch.setattr(ours.log.node.coordination, "members", lambda: {"old": encoded(protocol=0)})
    for attempt in (ours.log.admin.check_switch, ours.log.admin.switch):
        with pytest.raises(Conflict, match="old has protocol 0"):
            attempt("orders", "second")


def encoded(**values: int) -> str:
    return msgspec.json.encode(MemberValue(0, **values)).decode()


def test_a_catalog_that_is_away_for_a_moment_does_not_end_the_wait(opened, monkeypatch):
    """The initiator looks for an abort while it waits for the nodes."""
    ours, other = two_nodes(opened)
    confirm = never_confirm(other, monkeypatch)
    switches = ours.log.admin._initiator._catalog.switches
    look, looks = switches.get, []

    def away(token: str) -> object:
        looks.append(token)
        if len(looks) <= 2:
            raise Unavailable("the catalog is away")
        monkeypatch.setattr(Node, "_confirm", confirm)
        return look(token)

    monkeypatch.setattr(switches, "get", away)
    assert ours.log.admin.switch("orders", "second").order == 2
    assert len(looks) > 2


def test_a_growth_that_ends_with_its_event_type_leaves_the_topic_to_the_sweep(opened, monkeypatch):
    """The event type is deleted while the nodes confirm. The mark for the deletion of its topic stays."""
    ours, other = two_nodes(opened)
    topic = ours.log.timelines("orders")[0].topic
    never_confirm(other, monkeypatch)
    initiator = ours.log.admin._initiator
    monkeypatch.setattr(initiator, "_settings", replace(initiator._settings, switch_timeout_ms=60_000))
    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(ours.log.admin.grow, "orders", 4)
        until(lambda: (found := other.log.admin.current_switch("orders")) is not None and found.unconfirmed)
        catalog = other.log._catalog
        catalog.delete(other.log.types.entry("orders"))
        with pytest.raises(StrandlineError):
            growing.result(DEADLINE_S)
    assert ("first", topic) in catalog.topics_to_delete()
