"""Fetches the peers of rooms once, into the cache of the tests' services. Nothing is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.services import cached, say

_DEBIAN = {
    "beanstalkd-1": ("beanstalkd",),
    "redis-7": (
        *("redis-server", "redis-tools", "libatomic1", "libhiredis0.14", "libjemalloc2", "liblua5.1-0"),
        *("liblzf1", "lua-bitop", "lua-cjson"),
    ),
}
_PYTHON = (
    *("pgmq==1.1.4", "procrastinate==3.10.0", "pgqueuer==1.6.0", "saq==0.26.4"),
    *("asyncpg==0.32.0", "psycopg[binary,pool]==3.3.8", "redis==8.1.0", "uvloop==0.23.0"),
)
_EVENTSOURCING = ("eventsourcing==9.5.6",)
_STREAM_FRAMEWORK = ("stream-framework==1.4.0", "redis==2.10.6", "six==1.17.0")
_NODE = ("bullmq@6.7.0", "ioredis@5.11.1", "graphile-worker@0.17.3")


class CannotFetch(Exception):
    """A peer cannot be measured on this machine."""


def program(package: str, name: str) -> Path:
    """A program of a Debian package."""
    return _unpacked(package) / "usr" / "bin" / name


def environment_of(package: str) -> dict[str, str]:
    """The environment in which a program of a Debian package finds its libraries."""
    folders = {str(library.parent) for library in _unpacked(package).rglob("*.so*")}
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(sorted(folders))}


def python_packages() -> Path:
    """A folder for `PYTHONPATH`. The peers are kept apart from the packages that Strandline depends on."""
    return _fetched("queues-python-1", partial(_pip, _PYTHON))


def eventsourcing() -> Path:
    """A folder for `sys.path`. The library needs only packages that Strandline depends on, too."""
    return _fetched("eventsourcing-9", partial(_pip, ("--no-deps", *_EVENTSOURCING)))


def stream_framework() -> Path:
    """A folder for `PYTHONPATH`, with the old Redis client that the library needs. Celery is not used."""
    return _fetched("stream-framework-1", partial(_pip, ("--no-deps", *_STREAM_FRAMEWORK)))


def pgmq_sql() -> str:
    """The SQL of pgmq. Its Python client runs it where the extension is not installed."""
    return (python_packages() / "pgmq" / "sql" / "pgmq.sql").read_text()


def node_modules() -> Path:
    return _fetched("queues-node-1", _npm) / "node_modules"


def _unpacked(package: str) -> Path:
    return _fetched(package, partial(_unpack, _DEBIAN[package]))


def _fetched(name: str, make: Callable[[Path], Path]) -> Path:
    def fetch(temporary: Path) -> Path:
        say(f"fetching {name} …\n")
        return make(temporary)

    return cached(name, fetch)


def _pip(packages: Sequence[str], temporary: Path) -> Path:
    folder = temporary / "packages"
    _run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *packages], temporary)
    return folder


def _npm(temporary: Path) -> Path:
    folder = temporary / "packages"
    folder.mkdir()
    options = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--prefix", str(folder))
    _run(["npm", "install", *options, *_NODE], folder)
    return folder


def _unpack(packages: Sequence[str], temporary: Path) -> Path:
    download = ["apt-get", "download", *packages]
    try:
        _run(download, temporary)
    except CannotFetch:
        _run(["apt-get", "update"], temporary)
        _run(download, temporary)
    folder = temporary / "root"
    for package in temporary.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(folder)], temporary)
    return folder


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotFetch(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise CannotFetch(f"`{' '.join(command[:3])} …` failed: {done.stderr.strip()[-300:]}")
