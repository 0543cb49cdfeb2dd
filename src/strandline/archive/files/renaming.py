"""How files are published and replaced where a rename is one step that can spare what is there: local, HDFS.

A plain "check, then rename over it" has a hole: a process that sleeps between the two wakes up and puts an old
revision over a newer one. So a rename happens only from a *claim*, a hidden file beside the flag that holds the
new content, and everybody takes away the claims of all others before checking:

    1. write the claim, under a name of its own    2. delete every other claim of this flag
    3. is the flag still what was expected?        4. rename the claim over the flag; without a claim this fails

Say P passes 3 and 4 and Q passes 4 in between. Then Q's step 2 did not see P's claim, so Q's claim is older
than P's, so P's step 2 saw and deleted it, so Q's step 4 failed: there is no such Q. Two that delete each
other's claims both fail and try again. The flag is never missing, and what a crash leaves is a claim, which the
next one deletes.
"""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from abc import abstractmethod
from contextlib import suppress

from strandline import failpoints
from strandline.archive.files.port import Digest, Files, Seen, checked_no_data
from strandline.errors import Conflict, NotFound, StrandlineError, Unavailable

_ATTEMPTS = 40
_CLAIM = ".next"


class RenamingFiles(Files):
    """A file system whose `_move` is atomic."""

    @abstractmethod
    def _move(self, source: str, target: str, *, over: bool) -> None:
        """Rename in one step, durably. Conflict if there is a target and not `over`; NotFound without a source."""

    def publish(self, staged: str, target: str, digest: Digest) -> None:
        failpoints.hit("files.publish")
        if self.size(staged) == digest.size:
            try:
                self._move(staged, target, over=False)
            except (Conflict, NotFound):
                pass  # somebody was first; or it was us, and the answer got lost
            else:
                return
        self._settle(staged, target, digest)

    def look(self, path: str) -> Seen | None:
        try:
            data = self.read(path)
        except NotFound:
            return None
        return Seen(data, hashlib.sha256(data).hexdigest())

    def replace(self, path: str, data: bytes, expected: str | None) -> None:
        checked_no_data(path)
        for attempt in range(1, _ATTEMPTS + 1):
            seen = self.look(path)
            if seen is not None and seen.data == data:
                return
            if (seen and seen.version) != expected:
                raise Conflict(f"{path} is not what it was expected to be")
            if self._exchange(path, data, expected):
                return
            time.sleep(random.uniform(0, 0.005) * attempt)  # noqa: S311 - only so that two do not meet again
        raise Unavailable(f"others keep replacing {path}", retry_after=1)

    def _exchange(self, path: str, data: bytes, expected: str | None) -> bool:
        """Whether it came through; if not, it may be worth another look."""
        claim = _claim_of(path, uuid.uuid4().hex)
        try:
            with self.create(claim) as file:
                file.write(data)
            failpoints.hit("files.claimed")
            self._put(claim, path, expected)
        except StrandlineError as error:
            with suppress(StrandlineError):  # the first error is the one to tell, and the next one deletes it
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
        folder, _, name = path.rpartition("/")
        for entry in self.entries(folder):
            other = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.startswith(f".{name}.") and entry.name.endswith(_CLAIM) and other != but:
                self.delete(other)


def _claim_of(path: str, unique: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.{unique}{_CLAIM}"
