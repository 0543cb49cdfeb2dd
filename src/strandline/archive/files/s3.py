"""Files on S3 and compatible products. Each file is one object, which appears atomically.

S3 has no rename. `publish` copies the staged object on the server, by a multipart upload to the final name. The
upload is completed on the condition that no object exists there; products that ignore this condition on a plain
copy check it here. The object's metadata has its SHA-256, so checking for an existing object needs no download.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from strandline import failpoints
from strandline.archive.files.port import Digest, FileEntry, Files, NewFile, Seen, checked, checked_no_data
from strandline.archive.files.s3_streams import ObjectReader, ObjectWriter, PartSender
from strandline.engine.s3 import Bucket
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError

_OPTIONS = frozenset({"endpoint", "region", "profile"})
_DIGEST = "sha256"
# One request could copy 5 GiB, but would exceed the timeout.
_COPY_BYTES = 1 << 30


class S3Files(Files):
    """`s3://bucket/prefix`, with `?endpoint=https://host:port` for products other than AWS's, `region`, `profile`.

    The product must support conditional writes (`If-Match`, `If-None-Match`), as AWS, MinIO and versitygw do.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        if "@" in parts.netloc or not parts.netloc or parts.fragment or options.keys() - _OPTIONS:
            raise Invalid(
                "an S3 URL must look like s3://bucket/prefix, with the options ?endpoint=https://host:port, "
                "region and profile; credentials are taken from where AWS's own tools find them, not from the URL"
            )
        prefix = unquote(parts.path).strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._bucket = Bucket(parts.netloc, **{name: options.get(name) for name in _OPTIONS})
        self._sender = PartSender(self._bucket)

    def _key(self, path: str) -> str:
        return self._prefix + checked(path)

    def create(self, path: str) -> NewFile:
        return ObjectWriter(self._bucket, self._sender, self._key(checked_no_data(path)))

    def _place(self, staged: str, target: str, digest: Digest) -> bool:
        source, key = self._key(staged), self._key(target)
        found = self._bucket.head(source)
        if found is None or found.size != digest.size:
            return False
        upload = self._bucket.begin(key, {_DIGEST: digest.sha256})
        try:
            parts = [
                self._bucket.copy_part(key, upload, number, source, found.etag, span)
                for number, span in enumerate(_spans(found.size), start=1)
            ]
            failpoints.hit("files.copied")
            self._bucket.complete(key, upload, parts)
        except StrandlineError:
            with suppress(StrandlineError):  # the first error is the one to raise
                self._bucket.abort(key, upload)
            raise
        return True

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
                raise Conflict(f"{path} has changed since it was read") from None

    def open(self, path: str) -> pa.NativeFile:
        key = self._key(path)
        found = self._bucket.head(key)
        if found is None:
            raise NotFound(f"{path} does not exist")
        return pa.PythonFile(ObjectReader(self._bucket, key, found), mode="r")

    def entries(self, path: str = "") -> list[FileEntry]:
        folder = f"{self._key(path)}/" if path else self._prefix
        objects, deeper = self._bucket.folder(folder)
        # Cleaning up staging needs the directories that contain only unfinished uploads, too.
        begun = {key[len(folder) :].partition("/") for key, _ in self._bucket.uploads(folder)}
        folders = {prefix[len(folder) : -1] for prefix in deeper} | {name for name, slash, _ in begun if slash}
        found = [FileEntry(name, None) for name in folders]
        # Some tools represent an empty folder by an object of the folder's own name.
        found += [FileEntry(key[len(folder) :], size) for key, size in objects if key != folder]
        return sorted(found, key=lambda entry: entry.name)

    def size(self, path: str) -> int | None:
        found = self._bucket.head(self._key(path))
        return None if found is None else found.size

    def modified_ms(self, path: str) -> int | None:
        found = self._bucket.head(self._key(path))
        return None if found is None else found.modified_ms

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
    """The byte ranges in which an object of that size is copied."""
    return [f"bytes={first}-{min(first + _COPY_BYTES, size) - 1}" for first in range(0, size, _COPY_BYTES)]
