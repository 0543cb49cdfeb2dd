"""The journal's client on a connection that breaks."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

import strandline
from lossy_proxy import LossyProxy
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
def test_changes_are_sent_again(lossy, proxy, lose):
    """An append whose answer was lost is not stored twice, and is no conflict."""
    getattr(proxy, lose)(b"append-me")
    assert lossy.append("one", ["append-me", "b"], expected=0).seq_nr == 2
    assert proxy.lost.is_set()
    assert [event.payload.data for event in lossy.read("one")] == [b'"append-me"', b'"b"']
    getattr(proxy, lose)(b"/snapshots/2")
    lossy.save_snapshot("one", 2, "state")
    assert proxy.lost.is_set()
    getattr(proxy, lose)(b"DELETE")
    lossy.delete("one", 1)
    assert proxy.lost.is_set()
    assert lossy.pointer("one").delete_to == 1
    getattr(proxy, lose)(b"DELETE")
    lossy.purge("one")
    assert proxy.lost.is_set()
    assert lossy.pointer("one") == Pointer()
