"""Chromium without a window. The page that a test serves reports the results itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.process import Process

#: The names of the program in the packages of different systems.
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    # Pages of tests are served without TLS.
    "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable",
)


def program() -> str:
    """The path of Chromium. If it is not installed, the test is skipped."""
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None:
        pytest.skip("Chromium is not installed; on Debian: apt-get install chromium")
    return found


def browse(url: str, folder: Path, *options: str) -> Process:
    """Open a page in a new browser with its own profile. The caller kills the browser."""
    return Process([*_command(folder, options), url], folder / "chromium.log")


def _command(folder: Path, options: Sequence[str]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    # Its sandbox does not work for root.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return [program(), *_OPTIONS, *sandbox, f"--user-data-dir={folder / 'profile'}", *options]
