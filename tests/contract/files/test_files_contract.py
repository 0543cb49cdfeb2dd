"""The contract of every file tree."""

from __future__ import annotations

import hashlib
import pickle
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from files_worker import stage

from strandline.archive.files import Digest, FileEntry, connect
from strandline.archive.files.local import LocalFiles
from strandline.errors import Conflict, Invalid, NotFound

STAGED = "_staging/run/0.part"
TARGET = "2024-05-01/13/orders/data/orders-0.parquet"
FLAG = "2024-05-01/13/orders/_READY"


def digest(content: bytes) -> Digest:
    return Digest(len(content), hashlib.sha256(content).hexdigest())


class TestWriting:
    def test_what_was_written_is_there_when_it_is_closed(self, files):
        """A closed file has all its bytes, also if they are more than one request can send."""
        pieces = [b"start", *(bytes([number]) * 3_000_000 for number in range(12)), b"end"]
        with files.create(STAGED) as file:
            for piece in pieces:
                assert file.write(piece) == len(piece)
        content = b"".join(pieces)
        assert file.digest == digest(content)
        assert files.size(STAGED) == len(content)
        assert files.read(STAGED) == content
        assert files.digest(STAGED) == file.digest

    def test_an_empty_file_is_a_file(self, files):
        """A file without content exists and has size 0."""
        assert stage(files, b"") == digest(b"")
        assert files.size(STAGED) == 0
        assert files.read(STAGED) == b""

    def test_parquet_is_written_to_it_and_read_from_it(self, files):
        """Parquet is written and read as tasks and `replay` do it."""
        table = pa.table({"offset": range(50_000), "value": [f'{{"n": {n}}}' for n in range(50_000)]})
        with files.create(STAGED) as file, pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
            for batch in table.to_batches(max_chunksize=10_000):
                writer.write_batch(batch)
        files.publish(STAGED, TARGET, file.digest)
        with files.open(TARGET) as source:
            assert pq.read_table(source).equals(table)
        with files.open(TARGET) as source:
            assert pq.ParquetFile(source).read_row_group(3, columns=["offset"])["offset"][0].as_py() == 30_000

    def test_reads_go_anywhere(self, files):
        """A reader can seek forward, back, from the end and past it."""
        stage(files, b"0123456789")
        with files.open(STAGED) as file:
            assert file.size() == 10
            file.seek(7)
            assert file.read(2) == b"78"
            file.seek(0)
            assert file.read(3) == b"012"
            file.seek(-2, 2)
            assert file.read(100) == b"89"
            assert file.read(1) == b""

    def test_what_an_exception_left_is_gone(self, files):
        """An exception discards the file, also if more than one part was sent."""

        def half_way() -> None:
            with files.create(STAGED) as file:
                file.write(b"x" * 20_000_000)
                raise RuntimeError

        with pytest.raises(RuntimeError):
            half_way()
        assert files.size(STAGED) is None

    def test_what_was_discarded_is_gone(self, files):
        """A discarded file is deleted and has no digest; a later close does not restore it."""
        file = files.create(STAGED)
        file.write(b"x")
        file.discard()
        file.close()
        assert files.size(STAGED) is None
        with pytest.raises(Invalid):
            _ = file.digest

    def test_a_closed_file_stays(self, files):
        """A second close or a discard after `close` has no effect."""
        file = files.create(STAGED)
        file.write(b"x")
        file.close()
        file.close()
        file.discard()
        assert files.read(STAGED) == b"x"

    def test_a_name_is_used_once(self, files):
        """A second file of the same name is a Conflict, and the first is unchanged."""
        stage(files, b"first")
        with pytest.raises(Conflict), files.create(STAGED) as file:
            file.write(b"second")
        assert files.read(STAGED) == b"first"

    @pytest.mark.parametrize("path", ["", "/etc/x", "../x", "a/../../x", "a//b", "a/", "./a", "a\0b"])
    def test_paths_stay_below_the_url(self, files, path):
        """A path outside the tree is Invalid for reads and writes."""
        for call in (files.create, files.open, files.size, files.look, files.delete, files.delete_tree):
            with pytest.raises(Invalid):
                call(path)
        with pytest.raises(Invalid):
            files.replace(path, b"x", None)
        stage(files, b"x")
        with pytest.raises(Invalid):
            files.publish(STAGED, path, digest(b"x"))

    def test_data_files_are_published_only(self, files):
        """A reader of `*.parquet` never finds a file that is being written."""
        with pytest.raises(Invalid, match="published"):
            files.create("data/x.parquet")
        with pytest.raises(Invalid, match="published"):
            files.replace("data/x.parquet", b"x", None)
        assert files.entries("data") == []


class TestPublishing:
    def test_a_published_file_is_what_was_staged(self, files):
        """The published file has the staged content, in a new directory."""
        files.publish(STAGED, TARGET, stage(files, b"rows"))
        assert files.read(TARGET) == b"rows"
        assert files.entries("2024-05-01/13/orders/data") == [FileEntry("orders-0.parquet", 4)]

    def test_publishing_again_is_harmless(self, files):
        """`publish` is idempotent, with the staged file present, deleted or written again."""
        done = stage(files, b"rows")
        files.publish(STAGED, TARGET, done)
        files.publish(STAGED, TARGET, done)
        files.delete_tree("_staging")
        files.publish(STAGED, TARGET, done)
        stage(files, b"rows")
        files.publish(STAGED, TARGET, done)
        assert files.read(TARGET) == b"rows"

    @pytest.mark.parametrize("other", [b"ROWS", b"more rows"])
    def test_another_content_is_a_conflict(self, files, other):
        """Other content is a Conflict, also of the same size, and the first file is unchanged."""
        files.publish(STAGED, TARGET, stage(files, b"rows"))
        new = stage(files, other, "_staging/run/1.part")
        with pytest.raises(Conflict):
            files.publish("_staging/run/1.part", TARGET, new)
        files.delete_tree("_staging")
        with pytest.raises(Conflict):
            files.publish("_staging/run/1.part", TARGET, new)
        assert files.read(TARGET) == b"rows"

    def test_nothing_to_publish_is_not_found(self, files):
        """Without a staged and a published file, `publish` is NotFound."""
        with pytest.raises(NotFound):
            files.publish(STAGED, TARGET, digest(b"rows"))
        assert files.size(TARGET) is None

    def test_a_staged_file_of_another_size_is_not_published(self, files):
        """A staged file that differs from the ledger is a Conflict."""
        stage(files, b"ro")
        with pytest.raises(Conflict):
            files.publish(STAGED, TARGET, digest(b"rows"))
        assert files.size(TARGET) is None


class TestFlags:
    def test_a_missing_flag_is_none(self, files):
        """A directory of the flag's name is not a flag."""
        assert files.look(FLAG) is None
        stage(files, b"x", f"{FLAG}/x")
        assert files.look(FLAG) is None

    def test_a_flag_is_made_and_replaced(self, files):
        """`replace` takes the version that `look` returned."""
        files.replace(FLAG, b"1", None)
        first = files.look(FLAG)
        assert first.data == b"1"
        files.replace(FLAG, b"2", first.version)
        second = files.look(FLAG)
        assert second.data == b"2"
        assert second.version != first.version
        assert files.entries("2024-05-01/13/orders") == [FileEntry("_READY", 1)]

    def test_a_stale_version_is_a_conflict(self, files):
        """A stale version, or None for an existing flag, is a Conflict and overwrites nothing."""
        files.replace(FLAG, b"1", None)
        old = files.look(FLAG).version
        files.replace(FLAG, b"2", old)
        for expected in (old, None):
            with pytest.raises(Conflict):
                files.replace(FLAG, b"3", expected)
        assert files.look(FLAG).data == b"2"
        assert files.entries("2024-05-01/13/orders") == [FileEntry("_READY", 1)]

    def test_a_flag_that_is_gone_is_a_conflict(self, files):
        """A replace of a deleted flag is a Conflict."""
        files.replace(FLAG, b"1", None)
        seen = files.look(FLAG)
        files.delete(FLAG)
        with pytest.raises(Conflict):
            files.replace(FLAG, b"2", seen.version)
        assert files.look(FLAG) is None

    def test_the_same_content_counts_as_done(self, files):
        """A replace by the same content succeeds, so a lost answer can be retried."""
        files.replace(FLAG, b"1", None)
        files.replace(FLAG, b"1", None)
        first = files.look(FLAG).version
        files.replace(FLAG, b"2", first)
        files.replace(FLAG, b"2", first)
        assert files.look(FLAG).data == b"2"

    def test_flags_of_one_directory_do_not_meet(self, files):
        """Flags of one directory are independent, also if one name is a prefix of the other."""
        names = ["d/_READY", "d/_READY.late", "d/_LATE", "_READY"]
        for name in names:
            files.replace(name, name.encode(), None)
        for name in names:
            files.replace(name, b"new", files.look(name).version)
        assert [files.look(name).data for name in names] == [b"new"] * 4


class TestLookingAround:
    def test_a_directory_lists_what_is_in_it(self, files):
        """Entries are sorted by name: files with sizes, directories without, not recursive."""
        for path in ("b.part", "a/x.part", "a/deep/y.part", "c/z.part"):
            stage(files, path.encode(), path)
        assert files.entries() == [FileEntry("a", None), FileEntry("b.part", 6), FileEntry("c", None)]
        assert files.entries("a") == [FileEntry("deep", None), FileEntry("x.part", 8)]

    def test_a_missing_directory_is_empty(self, files):
        """A missing directory and a file have no entries."""
        assert files.entries() == []
        assert files.entries("nowhere/at/all") == []
        stage(files, b"x")
        assert files.entries(STAGED) == []

    def test_many_entries_are_listed(self, files):
        """Thirty entries are listed, each once."""
        for number in range(30):
            stage(files, b"", f"many/{number:03}.part")
        assert [entry.name for entry in files.entries("many")] == [f"{number:03}.part" for number in range(30)]

    def test_only_files_have_a_size(self, files):
        """The size of a directory or a missing path is None, and neither can be read."""
        stage(files, b"12345", "a/b.part")
        assert [files.size(path) for path in ("a/b.part", "a", "a/c", "a/b.part/c")] == [5, None, None, None]
        for path in ("a", "a/c"):
            with pytest.raises(NotFound):
                files.read(path)
            with pytest.raises(NotFound):
                files.digest(path)

    def test_what_is_deleted_is_gone(self, files):
        """`delete` is idempotent and deletes only its path."""
        stage(files, b"x")
        stage(files, b"y", "_staging/other/0.part")
        files.delete(STAGED)
        files.delete(STAGED)
        assert files.size(STAGED) is None
        assert files.read("_staging/other/0.part") == b"y"

    def test_a_tree_is_deleted(self, files):
        """`delete_tree` is idempotent and deletes only what is below its path."""
        for path in ("_staging/run/a/0.part", "_staging/run/1.part", "_staging/run2/2.part"):
            stage(files, b"x", path)
        files.delete_tree("_staging/run")
        files.delete_tree("_staging/run")
        assert files.entries("_staging") == [FileEntry("run2", None)]

    def test_a_file_has_a_time_of_its_file_system(self, files):
        """The time when it was written, also for an empty file."""
        stage(files, b"", "clock.part")
        assert abs(files.modified_ms("clock.part") - time.time() * 1000) < 10_000

    def test_a_pickle_opens_the_same_place(self, files):
        """Workers get the tree as a pickle."""
        stage(files, b"x")
        again = pickle.loads(pickle.dumps(files))
        assert type(again) is type(files)
        assert again.read(STAGED) == b"x"
        again.close()


def test_a_path_and_a_file_url_are_the_same_place(tmp_path, monkeypatch):
    """A relative path is resolved once, so a new working directory does not change it."""
    monkeypatch.chdir(tmp_path)
    relative = connect("some files")
    stage(relative, b"x")
    monkeypatch.chdir("/")
    assert relative.read(STAGED) == b"x"
    assert connect(f"file://{tmp_path}/some%20files").read(STAGED) == b"x"
    assert isinstance(pickle.loads(pickle.dumps(relative)), LocalFiles)
    with pytest.raises(Invalid, match="host"):
        connect("file://elsewhere/path")
