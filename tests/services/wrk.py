"""wrk, an HTTP load client in C. `python -m services.wrk` fetches it from Debian's packages if it is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from services.cache import CACHE, cached, say

_NAME = "wrk-4"
_PACKAGES = ("wrk", "libluajit-5.1-2")
_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [==[{body}]==]
function done(summary)
  local e = summary.errors
  local failed = e.connect + e.read + e.write + e.status + e.timeout
  io.write(string.format("answered %d failed %d\\n", summary.requests, failed))
end
"""
_ANSWERED = re.compile(r"answered (\d+) failed (\d+)")


def prepare() -> None:
    """Fetch wrk without installing it; without Debian's tools only say that it is missing."""
    if shutil.which("wrk") is None:
        try:
            cached(_NAME, _fetch)
        except (OSError, subprocess.CalledProcessError) as error:
            say(f"wrk cannot be fetched here ({error}): install it to measure single events over HTTP\n")


def _fetch(temporary: Path) -> Path:
    say(f"fetching {_NAME} …\n")
    folder = temporary / "root"
    download = ["apt-get", "download", *_PACKAGES]
    if subprocess.run(download, cwd=temporary, capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "update"], capture_output=True, check=True)
        subprocess.run(download, cwd=temporary, capture_output=True, check=True)
    for package in temporary.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    return folder


@dataclass(frozen=True)
class Load:
    """A client with a number of connections that posts one body again and again, one request a connection."""

    url: str
    body: bytes
    connections: int
    script: Path

    def run(self, seconds: int) -> int:
        """The number of answers. Every one must be a success."""
        self.script.write_text(_SCRIPT.format(body=self.body.decode()))
        command = [_program(), "-t1", f"-c{self.connections}", f"-d{seconds}s", "-s", str(self.script), self.url]
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
        found = _ANSWERED.search(done.stdout)
        assert found is not None, done.stdout
        assert found[2] == "0", done.stdout
        return int(found[1])


def _program() -> str:
    fetched = CACHE / _NAME / "usr" / "bin" / "wrk"
    program = shutil.which("wrk") or (str(fetched) if fetched.is_file() else None)
    if program is None:
        raise FileNotFoundError(
            "wrk is not installed; `make bench` fetches it where Debian's packages are at hand"
        )
    return program


def _environment() -> dict[str, str]:
    folders = {str(library.parent) for library in (CACHE / _NAME).rglob("libluajit*.so*")}
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}


if __name__ == "__main__":
    prepare()
