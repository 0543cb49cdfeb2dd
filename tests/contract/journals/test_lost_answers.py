"""The journal's client on a connection that breaks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

import strandline
from lossy_proxy import LossyProxy
from strandline.client import retries
from strandline.errors import Conflict, OutcomeUnknown
from strandline.journal import Journal, Pointer


@pytest.fixture
def proxy(server_url: str) -> Iterator[LossyProxy]:
    made = LossyProxy(urlsplit(server_url).port)
    yield made
    made.close()


@pytest.fixture
def lossy(proxy: LossyProxy, http, name: str) -> Iterator[Journal]:
    """A topic through the proxy."""
    http.journals.create(name)
    with strandline.connect(f"http://127.0.0.1:{proxy.port}", timeout=30) as remote:
        yield remote.journal(name)


@pytest.mark.parametrize("lose", ["lose_answer_to", "lose_request"])
def test_appends_are_sent_again(lossy, proxy, lose):
    """An append whose answer was lost is not stored twice, and is no conflict."""
    getattr(proxy, lose)(b"append-me")
    assert lossy.append("one", ["append-me", "b"], expected=0).seq_nr == 2
    assert proxy.lost.is_set()
    assert [event.payload.data for event in lossy.read("one")] == [b'"append-me"', b'"b"']


@pytest.mark.parametrize("lose", ["lose_answer_to", "lose_request"])
def test_changes_of_one_life_are_sent_again(lossy, proxy, lose):
    """With `since` a repetition cannot act on another life."""
    since = lossy.append("one", ["a", "b"], expected=0).cursor
    getattr(proxy, lose)(b"/snapshots/2")
    lossy.save_snapshot("one", 2, "state", since=since)
    assert proxy.lost.is_set()
    assert lossy.snapshot("one").payload.data == b'"state"'
    getattr(proxy, lose)(b"DELETE")
    lossy.delete("one", 1, since=since)
    assert proxy.lost.is_set()
    assert lossy.pointer("one").delete_to == 1


def test_a_delete_that_is_repeated_in_another_life_is_a_conflict(lossy, http, proxy, monkeypatch):
    """The events of its life are gone either way, and those of the next life stay."""
    since = lossy.append("one", ["a", "b"], expected=0).cursor
    others = http.journal(lossy.name)

    def purge_meanwhile(_: float) -> None:
        others.purge("one")
        others.append("one", ["c"], expected=0)

    monkeypatch.setattr(retries, "time", SimpleNamespace(sleep=purge_meanwhile, monotonic=time.monotonic))
    proxy.lose_answer_to(b"DELETE")
    with pytest.raises(Conflict):
        lossy.delete("one", 2, since=since)
    assert [event.payload.data for event in lossy.read("one")] == [b'"c"']


CHANGES = {
    "purge": lambda journal: journal.purge("one"),
    "delete": lambda journal: journal.delete("one", 9),
    "save": lambda journal: journal.save_snapshot("one", 1, "old"),
    "delete_snapshot": lambda journal: journal.delete_snapshot("one", 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=[*CHANGES])
def test_other_changes_are_not_sent_again(lossy, http, proxy, change):
    """Another writer may have begun the next life since: its acknowledged events and snapshots stay."""
    lossy.append("one", ["a"], expected=0)
    others = http.journal(lossy.name)
    proxy.lose_answer_to(b" /journals/")
    with pytest.raises(OutcomeUnknown, match=r"check before you retry .*(pointer|snapshot)"):
        change(lossy)
    others.purge("one")
    others.append("one", ["b"], expected=0)
    others.save_snapshot("one", 1, "new")
    assert [event.payload.data for event in lossy.read("one")] == [b'"b"']
    assert lossy.snapshot("one").payload.data == b'"new"'


def test_a_purge_whose_request_was_lost_may_be_repeated_by_the_caller(lossy, proxy):
    lossy.append("one", ["a"], expected=0)
    since = lossy.pointer("one").since
    proxy.lose_request(b"DELETE")
    with pytest.raises(OutcomeUnknown):
        lossy.purge("one")
    assert lossy.pointer("one").since == since
    lossy.purge("one")
    assert lossy.pointer("one") == Pointer()
