"""pgmq through psycopg: each caller has a connection, and every call is a transaction of its own."""

from __future__ import annotations

import psycopg
from turns import Given, given, serve_threads

_LEASE_S = 30
_SEND = "SELECT pgmq.send('bench', %s::jsonb)"
_SEND_BATCH = "SELECT pgmq.send_batch('bench', %s::jsonb[])"
_READ = "SELECT msg_id, message FROM pgmq.read('bench', %s, %s)"
_DELETE = "SELECT pgmq.delete('bench', %s::bigint)"
_DELETE_BATCH = "SELECT pgmq.delete('bench', %s::bigint[])"


class PgmqCaller:
    def __init__(self, args: Given) -> None:
        self._connection = psycopg.connect(args.url, autocommit=True, prepare_threshold=0)
        self._args = args

    def cycle(self) -> int:
        return self._one() if self._args.batch == 1 else self._many()

    def _one(self) -> int:
        execute = self._connection.execute
        execute(_SEND, [self._args.body])
        read = execute(_READ, [_LEASE_S, 1]).fetchall()
        for message, _ in read:
            execute(_DELETE, [message])
        return len(read)

    def _many(self) -> int:
        execute = self._connection.execute
        execute(_SEND_BATCH, [[self._args.body] * self._args.batch])
        read = execute(_READ, [_LEASE_S, self._args.batch]).fetchall()
        execute(_DELETE_BATCH, [[message for message, _ in read]])
        return len(read)


args = given()
serve_threads([PgmqCaller(args) for _ in range(args.callers)])
