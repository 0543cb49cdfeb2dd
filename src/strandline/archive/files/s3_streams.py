"""Objects on S3 as files: written as multipart uploads, read in ranges."""

from __future__ import annotations

import io
import os
import uuid
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import BoundedSemaphore

from strandline.archive.files.port import NewFile
from strandline.engine.s3 import Bucket, ObjectHead
from strandline.errors import Conflict, NotFound, StrandlineError

# S3 allows 10,000 parts, so objects can have up to 78 GiB.
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 8
_WRITER = "writer"


class PartSender:
    """Sends the parts of all open files, few at once, to bound the memory that many open files need."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="strandline-s3")
        self._slots = BoundedSemaphore(_PARTS_AT_ONCE)

    def send(self, key: str, upload: str, number: int, data: bytes) -> Future[str]:
        self._slots.acquire()
        sent = self._pool.submit(self._bucket.send_part, key, upload, number, data)
        sent.add_done_callback(lambda _: self._slots.release())
        return sent

    def close(self) -> None:
        self._pool.shutdown()


class ObjectWriter(NewFile):
    """Sends a small object in one request, others by multipart upload. Invisible before it is closed."""

    def __init__(self, bucket: Bucket, sender: PartSender, key: str) -> None:
        super().__init__()
        self._bucket = bucket
        self._sender = sender
        self._key = key
        self._id = uuid.uuid4().hex
        self._pending = bytearray()
        self._upload = ""
        self._parts: list[Future[str]] = []

    def _append(self, data: memoryview) -> None:
        self._pending += data
        while len(self._pending) >= _PART_BYTES:
            self._send()

    def _send(self) -> None:
        if not self._upload:
            self._upload = self._bucket.begin(self._key, {_WRITER: self._id})
        part = bytes(self._pending[:_PART_BYTES])
        del self._pending[:_PART_BYTES]
        self._parts.append(self._sender.send(self._key, self._upload, len(self._parts) + 1, part))

    def _finish(self) -> None:
        try:
            self._complete()
        except (Conflict, NotFound):
            found = self._bucket.head(self._key)
            if found is None or found.metadata.get(_WRITER) != self._id:
                raise  # otherwise this writer completed it and the response was lost

    def _complete(self) -> None:
        if not self._upload:
            self._bucket.put(self._key, bytes(self._pending), etag=None, metadata={_WRITER: self._id})
            return
        if self._pending:
            self._send()
        self._bucket.complete(self._key, self._upload, [part.result() for part in self._parts])

    def _drop(self) -> None:
        if self._upload:
            wait(self._parts)  # a part that arrives after the abort would be stored and billed
            with suppress(StrandlineError):
                self._bucket.abort(self._key, self._upload)


class ObjectReader(io.RawIOBase):
    """Random reads for pyarrow of the object version that was current when it was opened."""

    def __init__(self, bucket: Bucket, key: str, head: ObjectHead) -> None:
        self._bucket = bucket
        self._key = key
        self._head = head
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._head.size}[whence]
        self._position = start + offset
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
