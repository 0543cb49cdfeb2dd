"""Chromium without a window. The page that a test serves reports the results itself.

`python -m services.chromium` fetches Chromium from Debian's packages if it is missing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.debian import DebianProgram
from services.process import Process

_CHROMIUM = DebianProgram(
    "chromium", "usr/lib/chromium/chromium", ("chromium", "chromium-browser", "google-chrome")
)
_OPTIONS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    # Pages of tests are served without TLS.
    "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable",
)


def program() -> str:
    """The path of Chromium. If it is missing, the test is skipped."""
    found = _CHROMIUM.find()
    if found is None:
        pytest.skip("Chromium is not installed, and `make test` fetches it only from Debian's packages")
    return found


def browse(url: str, folder: Path, *options: str) -> Process:
    """Open a page in a new browser with its own profile. The caller kills the browser."""
    return Process([*_command(folder, options), url], folder / "chromium.log", env=_CHROMIUM.environment())


def _command(folder: Path, options: Sequence[str]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    # Its sandbox does not work for root.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return [program(), *_OPTIONS, *sandbox, f"--user-data-dir={folder / 'profile'}", *options]


if __name__ == "__main__":
    _CHROMIUM.prepare()
