"""Where the log ends for a read: a position that is not before any action acknowledged when the read began.

A SQLite storage knows its end. A Kafka broker that was cut off may report an old end, so on Kafka a Mark record is
written. One mark serves all reads of its partition that began before it was sent.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from strandline.errors import OutcomeUnknown, Unavailable
from strandline.journal.action_log import ActionLog
from strandline.journal.model import Mark
from strandline.log.cursors import Position
from strandline.log.raw import RawTopic

_SENDERS = 16


class Marks:
    def __init__(self, action_log: ActionLog) -> None:
        self._log = action_log
        self._lock = threading.Lock()
        self._shared: dict[tuple[str, int], _SharedMark] = {}
        self._senders = ThreadPoolExecutor(_SENDERS, "journal-mark")

    def begin(self, topic: RawTopic, partition: int, entity: str) -> Callable[[], Position]:
        """Start to find the end; call the result to get it."""
        end = self._log.raw.sure_end(topic.name, partition)
        if end is not None:
            return lambda: end
        with self._lock:
            shared = self._shared.setdefault((topic.id, partition), _SharedMark())
        return shared.join(lambda: self._send(topic, partition, entity), self._senders)

    def _send(self, topic: RawTopic, partition: int, entity: str) -> Position:
        try:
            return self._log.write(topic, partition, [(entity, Mark(uuid.uuid4().hex), None)])[0]
        except OutcomeUnknown as error:  # for a read it makes no difference whether the mark is stored
            raise Unavailable(f"the end of {topic.name!r} could not be found: {error.detail}") from error

    def close(self) -> None:
        self._senders.shutdown()


class _SharedMark:
    """The marks of one partition. While one is being sent, all further reads wait for the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: Future[Position] | None = None
        self._sending = False

    def join(self, send: Callable[[], Position], senders: ThreadPoolExecutor) -> Callable[[], Position]:
        with self._lock:
            if self._next is None:
                self._next = Future()
            joined = self._next
            if not self._sending:
                senders.submit(self._run, send)
                self._sending = True
        return joined.result

    def _run(self, send: Callable[[], Position]) -> None:
        while True:
            with self._lock:
                current, self._next = self._next, None
                self._sending = current is not None
            if current is None:
                return
            try:
                current.set_result(send())
            except BaseException as error:  # noqa: BLE001 - raised in the threads of the reads
                current.set_exception(error)
