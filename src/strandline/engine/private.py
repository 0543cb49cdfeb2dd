"""Directories and files that only the user of this process may read: 700 and 600, whatever the umask allows.

Data of an earlier release are protected when they are opened.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path

from strandline.errors import Unavailable

FILE = 0o600
DIRECTORY = 0o700
_OTHERS = 0o077


def is_open_to_others(path: Path) -> bool:
    """Whether the mode of the file gives other users any access."""
    return bool(path.stat().st_mode & _OTHERS)


def protect(path: Path) -> None:
    """Take away the access of other users, if there is any. The access of the owner stays as it is."""
    with suppress(OSError):  # missing, or of another user, who decides
        if is_open_to_others(path):
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS)


def make_directory(path: Path) -> None:
    """Create a directory for data and its parents if they are missing, and protect it."""
    try:
        _make(path)
    except OSError as error:
        raise Unavailable(f"the directory {path} cannot be created: {error.strerror}", retry_after=5) from error
    protect(path)


def _make(path: Path) -> None:
    """Like `mkdir -p`, which gives the mode to the last directory only."""
    if not path.is_dir():
        _make(path.parent)
        path.mkdir(DIRECTORY, exist_ok=True)
