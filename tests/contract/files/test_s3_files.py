"""S3 only: lost answers, unfinished uploads, wrong secrets, a server that does not answer."""

from __future__ import annotations

import hashlib
import pickle
import uuid

import pytest
from files_place import Place
from files_worker import stage

import strandline.archive.files.s3
import strandline.engine.s3
from lossy_proxy import LossyProxy
from services import free_port
from services.s3 import BUCKET, SECRET_KEY
from strandline.archive.files import Digest, FileEntry, connect
from strandline.errors import Conflict, Forbidden, Invalid, NotFound, OutcomeUnknown, Unavailable

FLAG = "hour/_READY"
TARGET = "hour/data/0.parquet"
STAGED = "_staging/run/0.part"
LARGE = b"0123456789abcdef" * 2_200_000  # three parts


@pytest.fixture
def prefix():
    return f"test/{uuid.uuid4().hex}"


@pytest.fixture
def proxy(s3):
    proxy = LossyProxy(s3.port)
    yield proxy
    proxy.close()


@pytest.fixture
def files(s3, proxy, prefix):
    files = connect(s3.url(prefix, port=proxy.port))
    yield files
    files.close()


def uploads(s3, prefix: str) -> list[str]:
    listed = s3.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    return [upload["Key"] for upload in listed if upload["Key"].startswith(prefix)]


class TestLostAnswers:
    """The driver retries by itself and finds the result of its first attempt.

    The marks are in the body, because the request's head alone is sent only to get `100 Continue`.
    """

    def test_a_flag_is_made(self, proxy, files):
        """The retry finds a flag with its own content."""
        proxy.lose_answer_to(b"revision 1")
        files.replace(FLAG, b"revision 1", None)
        assert proxy.lost.is_set()
        assert files.look(FLAG).data == b"revision 1"

    def test_a_flag_is_replaced(self, proxy, files):
        """The retry finds another version than expected, with its own content."""
        files.replace(FLAG, b"revision 1", None)
        seen = files.look(FLAG)
        proxy.lose_answer_to(b"revision 2")
        files.replace(FLAG, b"revision 2", seen.version)
        assert proxy.lost.is_set()
        assert files.look(FLAG).data == b"revision 2"

    def test_a_small_file_is_written(self, proxy, files):
        """The existing object has the writer's own mark."""
        proxy.lose_answer_to(b"some rows")
        assert stage(files, b"some rows").size == 9
        assert proxy.lost.is_set()

    def test_a_large_file_is_written(self, proxy, files):
        """The upload no longer exists, because it was completed."""
        with files.create(STAGED) as file:
            file.write(LARGE)
            proxy.lose_answer_to(b"<CompleteMultipartUpload")
        assert proxy.lost.is_set()
        assert files.digest(STAGED) == file.digest

    def test_a_file_is_published(self, proxy, files):
        """The upload of the copy no longer exists, because it was completed."""
        digest = stage(files, b"rows")
        proxy.lose_answer_to(b"<CompleteMultipartUpload")
        files.publish(STAGED, TARGET, digest)
        assert proxy.lost.is_set()
        assert files.read(TARGET) == b"rows"

    def test_a_file_that_somebody_else_wrote_is_a_conflict(self, files):
        """A name in staging is used once, even for the same content."""
        stage(files, b"rows")
        with pytest.raises(Conflict):
            stage(files, b"rows")


class TestPublishing:
    def test_a_large_object_is_copied_in_parts(self, files, monkeypatch):
        """Each request copies at most the allowed size."""
        monkeypatch.setattr(strandline.archive.files.s3, "_COPY_BYTES", 6 << 20)
        digest = stage(files, LARGE)
        files.publish(STAGED, TARGET, digest)
        assert files.digest(TARGET) == digest

    def test_the_object_carries_its_digest(self, s3, prefix, files):
        """A retry reads the digest instead of the object."""
        digest = stage(files, b"rows")
        files.publish(STAGED, TARGET, digest)
        head = s3.client().head_object(Bucket=BUCKET, Key=f"{prefix}/{TARGET}")
        assert head["Metadata"]["sha256"] == digest.sha256

    def test_an_object_without_a_digest_is_read(self, s3, prefix, files):
        """A file that another tool has copied is compared by its content."""
        s3.client().put_object(Bucket=BUCKET, Key=f"{prefix}/{TARGET}", Body=b"rows")
        files.publish(STAGED, TARGET, Digest(4, hashlib.sha256(b"rows").hexdigest()))
        with pytest.raises(Conflict):
            files.publish(STAGED, TARGET, Digest(4, hashlib.sha256(b"ROWS").hexdigest()))

    def test_no_upload_is_left_when_somebody_was_first(self, s3, prefix, files):
        """A publish that is a Conflict aborts its upload, because unfinished uploads cost money."""
        files.publish(STAGED, TARGET, stage(files, b"rows"))
        other = stage(files, b"ROWS", "_staging/1.part")
        with pytest.raises(Conflict):
            files.publish("_staging/1.part", TARGET, other)
        assert uploads(s3, prefix) == []


class TestUploads:
    def test_clearing_staging_ends_what_the_dead_began(self, s3, prefix, files):
        """`delete_tree` aborts the upload of a writer that was killed."""
        place = Place(s3.url(prefix))
        writer = place.other()
        writer.send("write_for_ever", STAGED, 8_000_000)
        while writer.receive() < 40_000_000:
            pass
        writer.kill()
        assert uploads(s3, prefix) == [f"{prefix}/{STAGED}"]
        assert files.entries("_staging") == [FileEntry("run", None)]
        assert files.entries("_staging/run") == []
        files.delete_tree("_staging/run")
        assert uploads(s3, prefix) == []
        assert files.entries("_staging") == []
        place.close()

    def test_a_discarded_file_ends_its_upload(self, s3, prefix, files):
        """`discard` aborts the upload at once."""
        file = files.create(STAGED)
        file.write(LARGE)
        file.discard()
        assert uploads(s3, prefix) == []
        assert files.size(STAGED) is None


class TestTrouble:
    def test_nobody_at_the_address_is_unavailable(self, s3):
        """Nothing was changed, and the error has `retry_after`."""
        files = connect(s3.url("x", port=free_port()))
        for call in (lambda: files.look(FLAG), lambda: files.replace(FLAG, b"1", None)):
            with pytest.raises(Unavailable) as caught:
                call()
            assert caught.value.retry_after > 0
        files.close()

    def test_a_silent_server_is_not_waited_for_for_ever(self, s3, prefix, monkeypatch):
        """A read is Unavailable; the outcome of a write is unknown."""
        monkeypatch.setattr(strandline.engine.s3, "_ANSWER_SECONDS", 0.3)
        monkeypatch.setattr(strandline.engine.s3, "_ATTEMPTS", 1)
        files = connect(s3.url(prefix))
        files.replace(FLAG, b"1", None)
        seen = files.look(FLAG)
        s3.pause()
        try:
            with pytest.raises(Unavailable):
                files.look(FLAG)
            with pytest.raises(OutcomeUnknown):
                files.replace(FLAG, b"2", seen.version)
        finally:
            s3.resume()
        files.close()

    def test_a_wrong_secret_is_forbidden(self, s3, prefix, monkeypatch):
        """No error shows the secret."""
        if s3.mock:
            pytest.skip("the mock does not check secrets")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
        files = connect(s3.url(prefix))
        with pytest.raises(Forbidden) as caught:
            files.look(FLAG)
        assert "wrong-secret" not in f"{caught.value}{caught.value.info}"
        files.close()

    def test_no_credentials_are_forbidden_with_advice(self, s3, prefix, monkeypatch):
        """The error names the variables of the credentials."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        files = connect(s3.url(prefix))
        with pytest.raises(Forbidden, match="AWS_ACCESS_KEY_ID"):
            files.look(FLAG)
        files.close()

    def test_a_missing_bucket_is_not_found(self, s3):
        """The operator creates the bucket."""
        files = connect(s3.url("x").replace(BUCKET, "no-such-bucket"))
        for call in (files.entries, lambda: files.replace(FLAG, b"1", None)):
            with pytest.raises((NotFound, Conflict)):
                call()
        files.close()

    @pytest.mark.parametrize(
        "url",
        [
            "s3:///prefix",
            "s3://key:secret@bucket/prefix",
            "s3://bucket/prefix?access_key=secret",
            "s3://bucket/prefix?endpoint=no-url",
            "s3://bucket/prefix?profile=no-such-profile",
            "s3://bucket/#secret",
        ],
    )
    @pytest.mark.usefixtures("s3")
    def test_addresses_that_lead_nowhere_are_invalid(self, url):
        """An unusable URL is Invalid, and the error shows no secret."""
        with pytest.raises(Invalid) as caught:
            connect(url)
        assert "secret" not in str(caught.value)

    def test_a_pickle_holds_no_secret(self, files):
        """Workers read their own credentials."""
        assert SECRET_KEY.encode() not in pickle.dumps(files)

    def test_a_place_may_be_a_whole_bucket(self, s3):
        """The prefix is optional."""
        files = connect(f"s3://{BUCKET}?endpoint={s3.endpoint}&region=us-east-1")
        name = uuid.uuid4().hex
        stage(files, b"x", f"{name}/0.part")
        assert name in [entry.name for entry in files.entries()]
        files.delete_tree(name)
        files.close()
