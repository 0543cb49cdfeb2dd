"""A second process that uses a file tree: `files_worker.py <url>`.

A test calls the tree's methods and the functions below through `peers`.
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
    """Write to a file without ever closing it."""
    file = files.create(path)
    while True:
        file.write(b"x" * chunk_bytes)
        say(file.tell())


def publish_for_ever(files: Files, name: str) -> None:
    """Publish files, each named after the hash of its content, without end."""
    number = 0
    while True:
        part, number = f"_staging/{name}/{number}.part", number + 1
        digest = stage(files, f"{name} {number} ".encode() * 20_000, part)
        files.publish(part, f"data/{digest.sha256}.parquet", digest)
        say(number)


def count(files: Files, path: str, times: int) -> int:
    """Increment the number in a flag until that many attempts succeed; return the number of failures."""
    missed = 0
    while times:
        seen = files.look(path)
        number = int(seen.data.split()[0]) if seen else 0
        mine = f"{number + 1} by {os.getpid()}".encode()  # a replace by the same content succeeds
        try:
            files.replace(path, mine, seen.version if seen else None)
        except (Conflict, Unavailable):
            missed += 1
        else:
            times -= 1
    return missed


if __name__ == "__main__":
    serve(connect(sys.argv[1]), write_for_ever, publish_for_ever, count)
