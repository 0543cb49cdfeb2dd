"""beanstalkd, by its protocol. It has no batches: all requests of a batch are sent before the answers are read."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from turns import Given, given, serve_threads


class BeanstalkdCaller:
    def __init__(self, args: Given) -> None:
        address = urlsplit(args.url)
        connection = socket.create_connection((address.hostname, address.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._answers = connection.makefile("rb")
        self._batch = args.batch
        body = args.body.encode()
        self._puts = b"put 0 0 300 %d\r\n%s\r\n" % (len(body), body) * args.batch
        self._reserves = b"reserve\r\n" * args.batch

    def cycle(self) -> int:
        self._connection.sendall(self._puts)
        for _ in range(self._batch):
            self._expect(b"INSERTED")
        self._connection.sendall(self._reserves)
        reserved = [self._reserved() for _ in range(self._batch)]
        self._connection.sendall(b"".join(b"delete %s\r\n" % job for job in reserved))
        for _ in reserved:
            self._expect(b"DELETED")
        return self._batch

    def _reserved(self) -> bytes:
        _, job, size = self._expect(b"RESERVED")
        self._answers.read(int(size) + 2)
        return job

    def _expect(self, word: bytes) -> list[bytes]:
        parts = self._answers.readline().split()
        if parts[0] != word:
            raise RuntimeError(f"beanstalkd answered {parts!r}")
        return parts


args = given()
serve_threads([BeanstalkdCaller(args) for _ in range(args.callers)])
