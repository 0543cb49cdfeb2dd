"""Another process at a place for files: `files_worker.py <url>`.

A line `["publish", "staged", "target", …]` calls that method, and a line with its answer or its error comes back.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

from strandline.archive.files import Digest, Files, connect
from strandline.errors import Conflict, StrandlineError, Unavailable


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - this is how it answers


def stage(files: Files, content: bytes, path: str = "_staging/run/0.part") -> Digest:
    with files.create(path) as file:
        file.write(content)
    return file.digest


def write_for_ever(files: Files, path: str, chunk_bytes: int) -> None:
    """Begin a file and never end it."""
    file = files.create(path)
    while True:
        file.write(b"x" * chunk_bytes)
        say(answer=file.tell())


def publish_for_ever(files: Files, name: str) -> None:
    """File after file, each named after what it holds."""
    number = 0
    while True:
        part, number = f"_staging/{name}/{number}.part", number + 1
        digest = stage(files, f"{name} {number} ".encode() * 20_000, part)
        files.publish(part, f"data/{digest.sha256}.parquet", digest)
        say(answer=number)


def count(files: Files, path: str, times: int) -> int:
    """Add one to the number in a flag, so often that it came through that often; how often it did not."""
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


ACTS = {act.__name__: act for act in (write_for_ever, publish_for_ever, count)}


def value(plain: Any) -> Any:
    if isinstance(plain, dict) and "bytes" in plain:
        return base64.b64decode(plain["bytes"])
    if isinstance(plain, dict):
        return Digest(*plain["digest"])
    return plain


def main(url: str) -> None:
    files = connect(url)
    say(answer="ready")
    for line in sys.stdin:
        name, *plain = json.loads(line)
        arguments = [value(item) for item in plain]
        try:
            if name in ACTS:
                say(answer=ACTS[name](files, *arguments))
            else:
                say(answer=getattr(files, name)(*arguments))
        except StrandlineError as error:
            say(error=type(error).__name__, detail=error.detail)


if __name__ == "__main__":
    main(*sys.argv[1:])
