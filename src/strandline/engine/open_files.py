"""The files that this process has open through SQLite, and a descriptor of our own for those that need one.

To close any descriptor of a file ends all locks the process has on it, SQLite's as well. So ours is closed only
when SQLite has none left.
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
        # A thread of the parent may have held it, and would never let go of it in the child.
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def enter(self, path: Path) -> OpenFile:
        """To be called before SQLite opens it."""
        # One file has one entry, by whatever links it is reached, and keeps it when the working directory changes.
        place = os.path.realpath(path)
        with self._lock:
            file = self._files.setdefault(place, OpenFile(place))
            file.users += 1
            return file

    def leave(self, file: OpenFile) -> None:
        """To be called when SQLite has closed it."""
        with self._lock:
            file.users -= 1
            if not file.users:
                del self._files[file.place]
                if file.descriptor is not None:
                    os.close(file.descriptor)

    def sync(self, path: Path) -> None:
        """Have what was written to it on the disk, beside whatever SQLite does with it."""
        file = self.enter(path)  # nobody closes it meanwhile
        try:
            with self._lock:
                if file.descriptor is None:
                    file.descriptor = os.open(file.place, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(file.descriptor)
        finally:
            self.leave(file)


OPEN = OpenFiles()
