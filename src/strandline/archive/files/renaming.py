"""Publishing and replacing files where rename is atomic and can refuse an existing target: local, HDFS.

A plain "check, then rename" has a race: a process that is paused between the two puts an old revision over a newer
one. Therefore a rename always starts from a *claim*, a hidden file beside the flag that holds the new content, and
every process deletes the claims of all others before it checks:

    1. write the claim, under a unique name    2. delete every other claim of this flag
    3. check the version of the flag           4. rename the claim over the flag; fails without the claim

Proof: suppose P passes steps 3 and 4, and Q passes step 4 in between. Then Q's step 2 did not see P's claim, so
Q's claim is older than P's, so P's step 2 saw and deleted Q's claim, so Q's step 4 failed: a contradiction. Two
processes that delete each other's claims both fail and retry. The flag is never missing. A crash leaves at most
a claim, which the next process deletes.
"""

from __future__ import annotations

import random
import time
import uuid
from abc import abstractmethod
from contextlib import suppress

from strandline import failpoints
from strandline.archive.files.port import Digest, Files, checked_no_data
from strandline.errors import Conflict, NotFound, StrandlineError, Unavailable

_ATTEMPTS = 40
_CLAIM = ".next"


class RenamingFiles(Files):
    """A file system whose `_move` is atomic."""

    @abstractmethod
    def _move(self, source: str, target: str, *, over: bool) -> None:
        """Rename atomically and durably. Conflict if the target exists and not `over`; NotFound without source."""

    def _place(self, staged: str, target: str, digest: Digest) -> bool:
        if self.size(staged) != digest.size:
            return False
        self._move(staged, target, over=False)
        return True

    def replace(self, path: str, data: bytes, expected: str | None) -> None:
        checked_no_data(path)
        for attempt in range(1, _ATTEMPTS + 1):
            seen = self.look(path)
            if seen is not None and seen.data == data:
                return
            if (seen and seen.version) != expected:
                raise Conflict(f"{path} has changed since it was read")
            if self._exchange(path, data, expected):
                return
            time.sleep(random.uniform(0, 0.005) * attempt)  # noqa: S311 - jitter
        raise Unavailable(f"other processes keep replacing {path}; try again", retry_after=1)

    def _exchange(self, path: str, data: bytes, expected: str | None) -> bool:
        """Whether the flag was replaced; if not, the caller reads it again."""
        folder, slash, name = path.rpartition("/")
        claim = f"{folder}{slash}.{name}.{uuid.uuid4().hex}{_CLAIM}"
        try:
            with self.create(claim) as file:
                file.write(data)
            failpoints.hit("files.claimed")
            self._put(claim, path, expected)
        except StrandlineError as error:
            with suppress(StrandlineError):  # best effort: the next `replace` deletes the claim
                self.delete(claim)
            if isinstance(error, Conflict | NotFound):
                return False
            raise
        return True

    def _put(self, claim: str, path: str, expected: str | None) -> None:
        if expected is not None:
            self._drop_claims(path, but=claim)
            if (seen := self.look(path)) is None or seen.version != expected:
                raise Conflict
        failpoints.hit("files.checked")
        self._move(claim, path, over=expected is not None)
        if expected is None:
            self._drop_claims(path)

    def _drop_claims(self, path: str, *, but: str = "") -> None:
        folder, slash, name = path.rpartition("/")
        for entry in self.entries(folder):
            other = f"{folder}{slash}{entry.name}"
            if entry.name.startswith(f".{name}.") and entry.name.endswith(_CLAIM) and other != but:
                self.delete(other)
