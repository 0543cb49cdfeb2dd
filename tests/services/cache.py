"""Third-party programs that tests run. They are downloaded or built once, in a folder that git ignores."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CACHE = REPOSITORY / ".cache" / "services"


def cached(name: str, make: Callable[[Path], Path]) -> Path:
    """The folder of that name in the cache. A folder in the cache is always complete.

    If the folder is missing, `make` gets a temporary folder and returns the folder that it has filled in there.
    """
    folder = CACHE / name
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=CACHE) as temporary:
        made = make(Path(temporary))
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # if it exists, another process was faster
                raise
    return folder


def say(text: str) -> None:
    """Print progress on one line of a terminal. If stderr is not a terminal, print only complete lines."""
    if sys.stderr.isatty() or text.endswith("\n"):
        sys.stderr.write(f"\r{text}")
        sys.stderr.flush()
