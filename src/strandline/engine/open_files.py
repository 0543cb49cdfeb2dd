"""The files that this process has open through SQLite, and our own descriptors of some of them.

Closing any descriptor of a file releases all POSIX locks of the process on that file, including SQLite's. So our
own descriptor is closed only after SQLite has closed all of its descriptors.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path


@dataclass
class OpenFile:
    place: str
    users: int = 0
    descriptor: int | None = None


class OpenFiles:
    def __init__(self) -> None:
        self._renew_lock()
        self._files: dict[str, OpenFile] = {}
        # A thread of the parent may have held the lock during the fork; it does not exist in the child.
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def enter(self, path: Path) -> OpenFile:
        """Call this before SQLite opens the file."""
        # The real path: one entry per file, however it is linked, also after a change of the working directory.
        place = os.path.realpath(path)
        with self._lock:
            file = self._files.setdefault(place, OpenFile(place))
            file.users += 1
            return file

    def leave(self, file: OpenFile) -> None:
        """Call this after SQLite has closed the file."""
        with self._lock:
            file.users -= 1
            if not file.users:
                del self._files[file.place]
                if file.descriptor is not None:
                    os.close(file.descriptor)

    def sync(self, path: Path) -> None:
        """Flush the file to disk, independently of SQLite."""
        file = self.enter(path)  # so that the descriptor is not closed during the call
        try:
            with self._lock:
                if file.descriptor is None:
                    file.descriptor = os.open(file.place, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(file.descriptor)
        finally:
            self.leave(file)


OPEN = OpenFiles()
