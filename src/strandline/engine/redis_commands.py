"""Commands of Redis as they are sent. Packing them here takes a fraction of the driver's time."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from typing import NamedTuple


class Command(NamedTuple):
    """A command that is sent to the node of its key."""

    key: bytes
    packed: bytes


def command(name: bytes, key: bytes, *arguments: bytes | int) -> Command:
    return Command(key, pack(name, key, *arguments))


def pack(*parts: bytes | int) -> bytes:
    return b"*%d\r\n%b" % (len(parts), b"".join([_packed(part) for part in parts]))


def _packed(part: bytes | int) -> bytes:
    text = b"%d" % part if isinstance(part, int) else part
    return b"$%d\r\n%b\r\n" % (len(text), text)


def for_each_key(name: bytes, keys: Sequence[bytes], argument: bytes) -> list[Command]:
    """The same command with the same argument for many keys."""
    before = b"*3\r\n%b" % _packed(name)
    after = _packed(argument)
    return [Command(key, b"%b$%d\r\n%b\r\n%b" % (before, len(key), key, after)) for key in keys]


class Script:
    """A Lua script. A node that does not know it yet is sent its text."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self._digest = sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def command(self, keys: Sequence[bytes], *arguments: bytes | int) -> Command:
        """All keys must have the same hash tag."""
        return Command(keys[0], pack(b"EVALSHA", self._digest, len(keys), *keys, *arguments))
