"""Another process at a place for files: `files_worker.py <url>`.

See `peers` for how a test calls its methods and the acts below.
"""

from __future__ import annotations

import os
import sys

from peers import say, serve
from strandline.archive.files import Digest, Files, connect
from strandline.errors import Conflict, Unavailable


def stage(files: Files, content: bytes, path: str = "_staging/run/0.part") -> Digest:
    with files.create(path) as file:
        file.write(content)
    return file.digest


def write_for_ever(files: Files, path: str, chunk_bytes: int) -> None:
    """Begin a file and never end it."""
    file = files.create(path)
    while True:
        file.write(b"x" * chunk_bytes)
        say(file.tell())


def publish_for_ever(files: Files, name: str) -> None:
    """File after file, each named after what it holds."""
    number = 0
    while True:
        part, number = f"_staging/{name}/{number}.part", number + 1
        digest = stage(files, f"{name} {number} ".encode() * 20_000, part)
        files.publish(part, f"data/{digest.sha256}.parquet", digest)
        say(number)


def count(files: Files, path: str, times: int) -> int:
    """Add one to the number in a flag, that many times with success; the number of failures."""
    missed = 0
    while times:
        seen = files.look(path)
        number = int(seen.data.split()[0]) if seen else 0
        mine = f"{number + 1} by {os.getpid()}".encode()  # the same content would count as done
        try:
            files.replace(path, mine, seen.version if seen else None)
        except (Conflict, Unavailable):
            missed += 1
        else:
            times -= 1
    return missed


if __name__ == "__main__":
    serve(connect(sys.argv[1]), write_for_ever, publish_for_ever, count)
