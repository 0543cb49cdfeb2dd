"""An S3 server for tests: versitygw, built with `go`; without `go` it is moto, a mock that looks at no secret.

`python tests/s3_server.py` makes what is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from jars import CACHE
from services import environment, free_port, until

_VERSION = "1.8.0"
_PROGRAM = CACHE / f"versitygw-{_VERSION}" / "versitygw"
_MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{_VERSION}"
# Not in the list of development tools, because few need it.
_MOCK = ("-c", str(Path(__file__).parents[1] / "constraints.txt"), "moto[s3]==5.2.5", "flask", "flask-cors")

ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret"
BUCKET = "archive"


def prepare() -> None:
    """The real server if it can be built, else the mock; a folder appears only when it is complete."""
    if _PROGRAM.is_file() or (go := shutil.which("go")) is None:
        return _prepare_mock()
    CACHE.mkdir(parents=True, exist_ok=True)
    _say(f"building versitygw {_VERSION} …")
    with tempfile.TemporaryDirectory(prefix="versitygw-", dir=CACHE) as temporary:
        folder = Path(temporary) / "bin"
        built = subprocess.run(
            [go, "install", _MODULE], env={**os.environ, "GOBIN": str(folder)}, capture_output=True, check=False
        )
        if built.returncode:
            _say(f"building versitygw failed:\n{built.stderr.decode(errors='replace')[-2000:]}")
            return _prepare_mock()
        if not _PROGRAM.parent.is_dir():
            folder.rename(_PROGRAM.parent)
    return None


def _prepare_mock() -> None:
    if _PROGRAM.is_file() or find_spec("moto"):
        return
    _say("no go here to build versitygw: installing moto, a mock of S3 …")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *_MOCK], check=True)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class S3Server:
    """One server with one bucket. `mock` says that nobody's secret is looked at."""

    def __init__(self, folder: Path) -> None:
        prepare()
        self.mock = not _PROGRAM.is_file()
        self.folder = folder
        self.log_file = folder / "s3.log"
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, prefix: str, *, port: int | None = None) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port or self.port}&region=us-east-1"

    def start(self) -> None:
        """Return once the bucket is there."""
        data = self.folder / "data"
        data.mkdir()
        with self.log_file.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(data),
                cwd=self.folder,
                env=environment(ROOT_ACCESS_KEY=ACCESS_KEY, ROOT_SECRET_KEY=SECRET_KEY),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(self._answers, 60, "the S3 server's answer")

    def _command(self, data: Path) -> list[str]:
        if self.mock:
            return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        return [str(_PROGRAM), "--port", f"127.0.0.1:{self.port}", "posix", str(data)]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the S3 server ended:\n{self.log_file.read_text()[-3000:]}"
        try:
            self.client().create_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError):
            return False
        return True

    def client(self):
        """The driver's own client, to look behind the adapter."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(retries={"total_max_attempts": 1}),
        )

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None and self._process.poll() is None:
            self._signal(signal.SIGKILL)
            self._process.wait(20)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """A server in an empty folder, which it leaves behind with its log."""
    server = S3Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


if __name__ == "__main__":
    prepare()
