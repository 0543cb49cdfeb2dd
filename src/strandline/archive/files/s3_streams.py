"""Objects on S3 as files: written in parts while more is coming, read in ranges."""

from __future__ import annotations

import io
import os
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from strandline.archive.files.port import NewFile
from strandline.engine.s3 import Bucket, Head
from strandline.errors import Conflict, NotFound, StrandlineError

# 10,000 parts at most: objects of up to 156 GiB.
_PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 4
_WRITER = "writer"


class ObjectWriter(NewFile):
    """One request for a small object, a multipart upload for others. Nobody sees it before it is closed."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        super().__init__()
        self._bucket = bucket
        self._key = key
        self._id = uuid.uuid4().hex
        self._pending = bytearray()
        self._upload = ""
        self._parts: list[Future[str]] = []
        self._pool: ThreadPoolExecutor | None = None

    def _append(self, data: memoryview) -> None:
        self._pending += data
        while len(self._pending) >= _PART_BYTES:
            self._send()

    def _send(self) -> None:
        if self._pool is None:
            self._upload = self._bucket.begin(self._key, {_WRITER: self._id})
            self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="strandline-s3")
        part = bytes(self._pending[:_PART_BYTES])
        del self._pending[:_PART_BYTES]
        if len(self._parts) >= _PARTS_AT_ONCE:
            self._parts[-_PARTS_AT_ONCE].result()  # no more than these are held in memory
        number = len(self._parts) + 1
        self._parts.append(self._pool.submit(self._bucket.send_part, self._key, self._upload, number, part))

    def _finish(self) -> None:
        try:
            self._complete()
        except (Conflict, NotFound):
            found = self._bucket.head(self._key)
            if found is None or found.metadata.get(_WRITER) != self._id:
                raise  # else it was this one, and the answer got lost
        if self._pool is not None:
            self._pool.shutdown()

    def _complete(self) -> None:
        if self._pool is None:
            self._bucket.put(self._key, bytes(self._pending), etag=None, metadata={_WRITER: self._id})
            return
        if self._pending:
            self._send()
        self._bucket.complete(self._key, self._upload, [part.result() for part in self._parts])

    def _drop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            with suppress(StrandlineError):
                self._bucket.abort(self._key, self._upload)


class ObjectReader(io.RawIOBase):
    """Random reads for pyarrow, of the object as it was when it was opened."""

    def __init__(self, bucket: Bucket, key: str, head: Head) -> None:
        self._bucket = bucket
        self._key = key
        self._head = head
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._head.size}[
            whence
        ] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._head.size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        if not wanted:
            return b""
        content = self._bucket.get_range(self._key, self._head.etag, self._position, wanted)
        self._position += len(content)
        return content
