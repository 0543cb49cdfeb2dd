"""An S3 server: versitygw, built with `go`. Without `go` it is moto, a mock that does not check secrets.

`python -m services.s3` builds or installs what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from services.cache import CACHE, REPOSITORY, cached, say
from services.process import environment
from services.service import Service

_NAME = "versitygw-1.8.0"
_PROGRAM = CACHE / _NAME / "versitygw"
_MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
# Not among the development dependencies, because it is needed only where the server cannot be built.
_MOCK = ("-c", str(REPOSITORY / "constraints.txt"), "moto[s3]==5.2.5", "flask", "flask-cors")

ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret"
BUCKET = "archive"


def prepare() -> None:
    """Build the real server if possible, else install the mock."""
    if shutil.which("go"):
        try:
            cached(_NAME, _build)
        except subprocess.CalledProcessError as error:
            say(f"building {_NAME} failed:\n{error.stderr.decode(errors='replace')[-2000:]}\n")
    if not _PROGRAM.is_file() and not find_spec("moto"):
        say(f"{_NAME} cannot be built here: installing moto, a mock of S3 …\n")
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *_MOCK], check=True)


def _build(temporary: Path) -> Path:
    say(f"building {_NAME} …\n")
    folder = temporary / "bin"
    env = {**os.environ, "GOBIN": str(folder)}
    subprocess.run(["go", "install", _MODULE], env=env, capture_output=True, check=True)
    return folder


class S3Server(Service):
    """One server with one bucket. If `mock` is true, it does not check secrets."""

    name = "s3"

    def __init__(self, folder: Path) -> None:
        prepare()
        super().__init__(folder)
        self.mock = not _PROGRAM.is_file()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._data = self.folder / "data"
        self._data.mkdir()

    def url(self, prefix: str, *, port: int | None = None) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port or self.port}&region=us-east-1"

    def command(self) -> Sequence[str]:
        if self.mock:
            return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        return [str(_PROGRAM), "--port", f"127.0.0.1:{self.port}", "posix", str(self._data)]

    def options(self) -> dict[str, Any]:
        return {"env": environment(ROOT_ACCESS_KEY=ACCESS_KEY, ROOT_SECRET_KEY=SECRET_KEY)}

    def answers(self) -> bool:
        """Whether the bucket exists; the first successful call creates it."""
        client = self.client()
        try:
            client.create_bucket(Bucket=BUCKET)
        except (client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
            return True
        except (BotoCoreError, ClientError):
            return False
        return True

    def client(self) -> Any:
        """A client of the driver, for tests that check what the adapter did."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(retries={"total_max_attempts": 1}),
        )


if __name__ == "__main__":
    prepare()
