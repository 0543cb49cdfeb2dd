"""A file tree that several processes can open."""

from __future__ import annotations

from pathlib import Path

from peers import Peer
from strandline.archive.files import Files, connect
from strandline.archive.files.arrow import ArrowFiles

WORKER = Path(__file__).with_name("files_worker.py")


class Place:
    """`url` opens the tree; `arrow:` before a path selects the adapter for all other file systems."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[Files] = []
        self._others: list[Peer] = []

    def open(self) -> Files:
        if self.url.startswith("arrow:"):
            files: Files = ArrowFiles(f"file://{self.url.removeprefix('arrow:')}")
        else:
            files = connect(self.url)
        self._opened.append(files)
        return files

    def other(self, failpoint: str = "", **env: str) -> Peer:
        """Start another process. It kills or stops itself once, at the failpoint."""
        self._others.append(Peer(WORKER, self.url, STRANDLINE_TEST_FAILPOINT=failpoint, **env))
        return self._others[-1]

    def close(self) -> None:
        for other in self._others:
            other.kill()
        for files in self._opened:
            files.close()
