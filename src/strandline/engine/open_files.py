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
class _File:
    users: int = 0
    descriptor: int | None = None


class OpenFiles:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, _File] = {}

    def enter(self, path: Path) -> None:
        """To be called before SQLite opens it."""
        with self._lock:
            self._files.setdefault(path.absolute(), _File()).users += 1

    def leave(self, path: Path) -> None:
        """To be called when SQLite has closed it."""
        with self._lock:
            file = self._files[path.absolute()]
            file.users -= 1
            if not file.users:
                del self._files[path.absolute()]
                if file.descriptor is not None:
                    os.close(file.descriptor)

    def sync(self, path: Path) -> None:
        """Have what was written to it on the disk, beside whatever SQLite does with it."""
        self.enter(path)  # nobody closes it meanwhile
        try:
            with self._lock:
                file = self._files[path.absolute()]
                if file.descriptor is None:
                    file.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(file.descriptor)
        finally:
            self.leave(path)


OPEN = OpenFiles()
