"""Files on S3 and what answers like it: one object each, whole from the moment it is there.

There is no rename. A staged object is copied on the server into a multipart upload of its final name, which is
there when the upload is completed, and only if there was nothing: a condition that is kept even by products
that ignore it on a plain copy. The object carries its SHA-256, so that seeing whether it is done costs no
reading.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from strandline import failpoints
from strandline.archive.files.port import Digest, Entry, Files, NewFile, Seen, checked, checked_no_data
from strandline.archive.files.s3_streams import ObjectReader, ObjectWriter, PartSender
from strandline.engine.s3 import Bucket, Head
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError

_OPTIONS = frozenset({"endpoint", "region", "profile"})
_DIGEST = "sha256"
# One request could copy 5 GiB, but its answer would come too late.
_COPY_BYTES = 1 << 30


class S3Files(Files):
    """`s3://bucket/prefix`, with `?endpoint=https://host:port` for products other than AWS's, `region`, `profile`.

    The product must keep conditions on writes (`If-Match`, `If-None-Match`), as AWS, MinIO and versitygw do.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        if "@" in parts.netloc or not parts.netloc or parts.fragment or options.keys() - _OPTIONS:
            raise Invalid(
                "a place on S3 must look like s3://bucket/prefix, with ?endpoint=https://host:port, region and "
                "profile if need be; credentials are found as AWS's own tools find them, not in the address"
            )
        prefix = unquote(parts.path).strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._bucket = Bucket(
            parts.netloc,
            endpoint=options.get("endpoint"),
            region=options.get("region"),
            profile=options.get("profile"),
        )
        self._sender = PartSender(self._bucket)

    def _key(self, path: str) -> str:
        return self._prefix + checked(path)

    def create(self, path: str) -> NewFile:
        return ObjectWriter(self._bucket, self._sender, self._key(checked_no_data(path)))

    def publish(self, staged: str, target: str, digest: Digest) -> None:
        failpoints.hit("files.publish")
        source, key = self._key(staged), self._key(target)
        found = self._bucket.head(source)
        if found is not None and found.size == digest.size:
            try:
                self._copy(source, found, key, digest)
            except (Conflict, NotFound):
                pass  # somebody was first; or it was us, and the answer got lost
            else:
                return
        self._settle(staged, target, digest)

    def _copy(self, source: str, found: Head, key: str, digest: Digest) -> None:
        upload = self._bucket.begin(key, {_DIGEST: digest.sha256})
        try:
            parts = [
                self._bucket.copy_part(key, upload, number, source, found.etag, span)
                for number, span in enumerate(_spans(found.size), start=1)
            ]
            failpoints.hit("files.copied")
            self._bucket.complete(key, upload, parts)
        except StrandlineError:
            with suppress(StrandlineError):  # the first error is the one to tell
                self._bucket.abort(key, upload)
            raise

    def _present(self, path: str) -> Digest | None:
        found = self._bucket.head(self._key(path))
        if found is None or _DIGEST not in found.metadata:
            return super()._present(path)
        return Digest(found.size, found.metadata[_DIGEST])

    def look(self, path: str) -> Seen | None:
        try:
            data, etag = self._bucket.get(self._key(path))
        except NotFound:
            return None
        return Seen(data, etag)

    def replace(self, path: str, data: bytes, expected: str | None) -> None:
        key = self._key(checked_no_data(path))
        failpoints.hit("files.checked")
        try:
            self._bucket.put(key, data, etag=expected, metadata={})
        except (Conflict, NotFound):
            seen = self.look(path)
            if seen is None or seen.data != data:
                raise Conflict(f"{path} is not what it was expected to be") from None

    def open(self, path: str) -> pa.NativeFile:
        key = self._key(path)
        found = self._bucket.head(key)
        if found is None:
            raise NotFound(f"there is no {path}")
        return pa.PythonFile(ObjectReader(self._bucket, key, found), mode="r")

    def entries(self, path: str = "") -> list[Entry]:
        folder = f"{self._key(path)}/" if path else self._prefix
        objects, deeper = self._bucket.folder(folder)
        # Whoever clears staging must find the directories in which a file was only begun.
        begun = {key[len(folder) :].partition("/") for key, _ in self._bucket.uploads(folder)}
        folders = {prefix[len(folder) : -1] for prefix in deeper} | {name for name, slash, _ in begun if slash}
        found = [Entry(name, None) for name in folders]
        # An object of the folder's own name is how some tools show an empty folder.
        found += [Entry(key[len(folder) :], size) for key, size in objects if key != folder]
        return sorted(found, key=lambda entry: entry.name)

    def size(self, path: str) -> int | None:
        found = self._bucket.head(self._key(path))
        return None if found is None else found.size

    def delete(self, path: str) -> None:
        self._bucket.delete([self._key(path)])

    def delete_tree(self, path: str) -> None:
        folder = f"{self._key(path)}/"
        self._bucket.delete(key for key, _ in self._bucket.objects(folder))
        for key, upload in self._bucket.uploads(folder):
            self._bucket.abort(key, upload)

    def close(self) -> None:
        self._sender.close()
        self._bucket.close()


def _spans(size: int) -> list[str]:
    """The parts in which an object of that size is copied."""
    return [f"bytes={first}-{min(first + _COPY_BYTES, size) - 1}" for first in range(0, size, _COPY_BYTES)]
