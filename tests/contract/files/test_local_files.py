"""Local directories only: syncs, errors of the system, and leftovers of crashes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from files_worker import stage

from strandline.archive.files.local import LocalFiles
from strandline.errors import Conflict, Forbidden, Invalid, StorageFull, Unavailable

FLAG = "hour/_READY"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file and directory that was synced, in order, under its name at that time."""
    found: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_closed_file_is_on_the_disk(tmp_path, synced):
    """A close syncs the file and the entries of its new directories."""
    stage(LocalFiles(str(tmp_path)), b"x", "_staging/run/0.part")
    run = tmp_path / "_staging" / "run"
    assert synced == [tmp_path, run.parent, run / "0.part", run]


def test_a_published_file_is_on_the_disk(tmp_path, synced):
    """A publish syncs the name; the content is already synced."""
    files = LocalFiles(str(tmp_path))
    digest = stage(files, b"x")
    synced.clear()
    files.publish("_staging/run/0.part", "hour/0.parquet", digest)
    assert synced == [tmp_path, tmp_path / "hour"]


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_flag_is_on_the_disk(tmp_path, synced, before):
    """A replace syncs the content before the name."""
    files = LocalFiles(str(tmp_path))
    if before:
        files.replace(FLAG, before, None)
    seen = files.look(FLAG)
    synced.clear()
    files.replace(FLAG, b"new", seen.version if seen else None)
    assert [path.suffix for path in synced if path.name.startswith("._READY.")] == [".next"]
    assert synced[-1] == tmp_path / "hour"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EROFS, Forbidden),
        (errno.EACCES, Forbidden),
        (errno.EIO, Unavailable),
    ],
)
def test_the_systems_errors_become_ours(tmp_path, monkeypatch, number, kind):
    """A failed sync raises our error and leaves no file."""
    files = LocalFiles(str(tmp_path))
    file = files.create("a/0.part")
    file.write(b"x")

    def failing(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(kind, match=os.strerror(number)) as caught:
        file.close()
    assert isinstance(caught.value.__cause__, OSError)
    assert files.entries("a") == []


def test_a_file_in_the_way_of_a_directory_is_invalid(tmp_path):
    """A path that cannot exist is Invalid, because a retry cannot succeed."""
    files = LocalFiles(str(tmp_path))
    stage(files, b"x", "a")
    with pytest.raises((Invalid, Conflict)):
        files.create("a/b/c")
    with pytest.raises(Invalid):
        files.create("x" * 300)


def test_a_staged_file_may_stay_after_a_crash(tmp_path):
    """After a crash both names may link to one file; publishing again succeeds."""
    files = LocalFiles(str(tmp_path))
    digest = stage(files, b"x")
    (tmp_path / "hour").mkdir()
    (tmp_path / "hour" / "0.parquet").hardlink_to(tmp_path / "_staging/run/0.part")
    files.publish("_staging/run/0.part", "hour/0.parquet", digest)
    assert files.read("hour/0.parquet") == b"x"


def test_hidden_files_that_others_left_are_cleared_away(tmp_path):
    """The next replace of a flag deletes the leftovers of this flag only."""
    files = LocalFiles(str(tmp_path))
    for name in ("._READY.1.next", "._LATE.1.next", "_READY.1.next"):
        stage(files, b"left", f"hour/{name}")
    files.replace(FLAG, b"1", None)
    assert [entry.name for entry in files.entries("hour")] == ["._LATE.1.next", "_READY", "_READY.1.next"]
