"""HDFS only: lost answers, and a NameNode that is down, does not answer or refuses."""

from __future__ import annotations

import threading
import uuid

import pytest
from files_place import Place
from files_worker import stage

import strandline.engine.hdfs
from lossy_proxy import LossyProxy
from services import free_port
from strandline.archive.files import Files, connect
from strandline.errors import Forbidden, Invalid, NotFound, OutcomeUnknown, Unavailable

FLAG = "hour/_READY"
TARGET = "hour/data/0.parquet"
STAGED = "_staging/run/0.part"


@pytest.fixture
def proxy(hdfs):
    proxy = LossyProxy(hdfs.port)
    yield proxy
    proxy.close()


@pytest.fixture
def files(proxy):
    files = connect(f"hdfs://127.0.0.1:{proxy.port}/test/{uuid.uuid4().hex}")
    yield files
    files.close()


def test_a_rename_whose_answer_got_lost_is_done(proxy, files):
    """The rename is retried, and the retry finds nothing to rename."""
    digest = stage(files, b"rows")
    proxy.lose_answer_to(b"rename2")
    files.publish(STAGED, TARGET, digest)
    assert proxy.lost.is_set()
    assert files.read(TARGET) == b"rows"


@pytest.mark.parametrize("lose", ["lose_answer_to", "lose_request"])
def test_a_flag_is_replaced_over_a_bad_wire(proxy, files, lose):
    """The replace happens once, whether the request or the answer was lost."""
    getattr(proxy, lose)(b"rename2")
    files.replace(FLAG, b"1", None)
    assert proxy.lost.is_set()
    assert files.look(FLAG).data == b"1"
    getattr(proxy, lose)(b"rename2")
    files.replace(FLAG, b"2", files.look(FLAG).version)
    assert proxy.lost.is_set()
    assert files.look(FLAG).data == b"2"
    assert [entry.name for entry in files.entries("hour")] == ["_READY"]


def test_nobody_at_the_address_is_unavailable(monkeypatch):
    """Nothing was changed, and the error has `retry_after`."""
    monkeypatch.setattr(strandline.engine.hdfs, "_ATTEMPTS", 0)
    files = connect(f"hdfs://127.0.0.1:{free_port()}/x")
    for call in (lambda: files.look(FLAG), lambda: files.create(STAGED), lambda: files.replace(FLAG, b"1", None)):
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value.retry_after > 0
    files.close()


def test_a_silent_namenode_is_not_waited_for_for_ever(hdfs, monkeypatch):
    """A read is Unavailable; the outcome of a write is unknown, because it may still happen."""
    files = connect(f"{hdfs.url}/test/{uuid.uuid4().hex}")
    digest = stage(files, b"rows")
    monkeypatch.setattr(strandline.engine.hdfs, "_ANSWER_SECONDS", 0.5)
    hdfs.pause()
    try:
        with pytest.raises(Unavailable, match="no answer"):
            files.size(STAGED)
        with pytest.raises(OutcomeUnknown, match="no answer"):
            files.delete("x")
    finally:
        hdfs.resume()
    monkeypatch.undo()
    files.publish(STAGED, TARGET, digest)
    assert files.read(TARGET) == b"rows"
    files.close()


def test_a_user_without_rights_is_forbidden(hdfs):
    """HADOOP_USER_NAME decides the user."""
    place = Place(f"{hdfs.url}/private")
    owner = place.open()
    stage(owner, b"x")
    stranger = place.other(HADOOP_USER_NAME="stranger")
    for call in (("replace", FLAG, b"1", None), ("delete_tree", "_staging")):
        with pytest.raises(Forbidden, match="stranger"):
            stranger.call(*call)
    assert owner.read(STAGED) == b"x"
    place.close()


def test_names_that_hdfs_does_not_take_are_invalid(files):
    """A name that HDFS refuses is Invalid, because a retry cannot succeed."""
    with pytest.raises(Invalid, match="InvalidPathException"):
        files.create("a:b/c.part")
    stage(files, b"x")
    with pytest.raises(Invalid):
        files.create(f"{STAGED}/below")


@pytest.mark.parametrize(
    "url", ["hdfs:///path", "hdfs://user:secret@host/path", "hdfs://host/path?x=1", "hdfs://no-such-service/path"]
)
def test_addresses_that_lead_nowhere_are_invalid(url):
    """An unusable URL is Invalid, and the error shows no secret."""
    with pytest.raises(Invalid) as caught:
        connect(url)
    assert "secret" not in str(caught.value)


def test_a_closed_place_is_unavailable(hdfs):
    """A closed tree is Unavailable; close is idempotent."""
    files = connect(f"{hdfs.url}/x")
    files.close()
    files.close()
    with pytest.raises(Unavailable, match="closed"):
        files.size("a")


def test_a_file_under_construction_is_not_published(hdfs):
    """HDFS would rename an open file; its length reveals that it is unfinished."""
    files = connect(f"{hdfs.url}/test/{uuid.uuid4().hex}")
    finished = stage(files, b"x" * 3_000_000, "_staging/other.part")
    writing = files.create(STAGED)
    writing.write(b"x" * 3_000_000)
    with pytest.raises(Exception, match="bytes instead of the"):
        files.publish(STAGED, TARGET, finished)
    writing.discard()
    with pytest.raises(NotFound):
        files.publish(STAGED, TARGET, finished)
    files.close()


def test_threads_share_a_place(hdfs):
    """Each thread gets its own answer."""
    files: Files = connect(f"{hdfs.url}/test/{uuid.uuid4().hex}")
    found: dict[int, bytes] = {}

    def work(number: int) -> None:
        stage(files, str(number).encode(), f"{number}.part")
        found[number] = files.read(f"{number}.part")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: str(number).encode() for number in range(8)}
    files.close()
