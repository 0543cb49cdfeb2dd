"""wrk, an HTTP load client in C. `python -m services.wrk` fetches it from Debian's packages if it is missing."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from services.debian import DebianProgram

_WRK = DebianProgram("wrk", "usr/bin/wrk", ("wrk",))
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
        done = subprocess.run(command, env=_WRK.environment(), capture_output=True, text=True, check=True)
        found = _ANSWERED.search(done.stdout)
        assert found is not None, done.stdout
        assert found[2] == "0", done.stdout
        return int(found[1])


def _program() -> str:
    program = _WRK.find()
    if program is None:
        raise FileNotFoundError(
            "wrk is not installed; `make bench` fetches it where Debian's packages are at hand"
        )
    return program


if __name__ == "__main__":
    _WRK.prepare()
