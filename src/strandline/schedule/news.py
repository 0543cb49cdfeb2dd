"""How a node learns that another process has changed messages. News are hints: nodes also look now and then."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from strandline.engine.database import Signals
from strandline.errors import Invalid, StrandlineError
from strandline.schedule.storage import ScheduleStore

log = logging.getLogger(__name__)

#: How often a node looks for new messages beside the news, and without any.
LOOK_SECONDS, LOOK_ALONE_SECONDS = 0.2, 0.02
# A look at the version of a file costs microseconds. No change is missed, so that a look at the messages is only
# needed if the machine's clock is set.
_POLL_SECONDS, _LOOK_AT_FILE_SECONDS = 0.005, 2.0
_SEND_SECONDS = 0.005
_RECEIVE_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_MAX_TEXT = 7_000

Wake = Callable[[], None]


class News(ABC):
    """Without news, a node looks every `look_seconds`."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._wanted: dict[str, Wake] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._closed = False

    @property
    @abstractmethod
    def look_seconds(self) -> float:
        """How often to look for changes that cause no call."""

    @abstractmethod
    def announce(self, schedule: str) -> None:
        """A message of the schedule is due soon. Does not wait."""

    def want(self, schedule: str, wake: Wake) -> None:
        """Call `wake` in another thread when the schedule may have changed, until `unwant`."""
        with self._condition:
            self._wanted[schedule] = wake
            self._condition.notify_all()

    def unwant(self, schedule: str) -> None:
        with self._condition:
            self._wanted.pop(schedule, None)

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._interrupt()
        for thread in self._threads.values():
            thread.join()

    def _interrupt(self) -> None:  # noqa: B027 - most threads wait for the condition
        """End what a thread waits for."""

    def _start(self, target: Callable[[], None]) -> None:
        """Start a thread that calls `target` until this is closed; once for each function."""
        with self._condition:
            name = target.__name__
            if name not in self._threads and not self._closed:
                thread = threading.Thread(target=self._repeat, args=(target,), name="strandline-news", daemon=True)
                self._threads[name] = thread
                thread.start()

    def _repeat(self, target: Callable[[], None]) -> None:
        failing = False
        while not self._closed:
            try:
                target()
                failing = False
            except StrandlineError as error:
                if not failing:  # logged once, not on every attempt
                    log.warning("news of schedules are delayed: %s", error)
                failing = True
                self._pause(_RETRY_SECONDS)

    def _pause(self, seconds: float) -> None:
        with self._condition:
            if not self._closed:
                self._condition.wait_for(lambda: self._closed, seconds)

    def _wake(self, schedules: set[str] | None = None) -> None:
        """Wake those who want news of these schedules, or of any."""
        with self._condition:
            wakes = [wake for name, wake in self._wanted.items() if schedules is None or name in schedules]
        for wake in wakes:
            wake()


class FileNews(News):
    """Compares the version of the database file every 5 ms, while somebody wants news."""

    look_seconds = _LOOK_AT_FILE_SECONDS

    def __init__(self, store: ScheduleStore) -> None:
        super().__init__()
        self._store = store
        self._seen: int | None = None

    def announce(self, schedule: str) -> None:
        """Other processes see the new version of the file."""

    def want(self, schedule: str, wake: Wake) -> None:
        super().want(schedule, wake)
        self._start(self._poll)

    def _poll(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._wanted or self._closed)
        found = self._store.data_version()
        if found != self._seen:
            self._seen = found
            self._wake()
        time.sleep(_POLL_SECONDS)


class SignalledNews(News):
    """Sends at most one signal every 5 ms. In the changing transaction it would slow down writers."""

    def __init__(self, signals: Signals) -> None:
        super().__init__()
        self._signals = signals
        self._hearing = False
        self._changed: set[str] = set()

    @property
    def look_seconds(self) -> float:
        return LOOK_SECONDS if self._hearing else LOOK_ALONE_SECONDS

    def announce(self, schedule: str) -> None:
        with self._condition:
            self._changed.add(schedule)
            self._condition.notify_all()
        self._start(self._send)

    def want(self, schedule: str, wake: Wake) -> None:
        super().want(schedule, wake)
        self._start(self._receive)

    def _send(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._changed or self._closed)
            changed, self._changed = self._changed, set()
        if changed:
            text = ",".join(sorted(changed))
            self._signals.send(text if len(text) <= _MAX_TEXT else "")  # empty: any of them
            time.sleep(_SEND_SECONDS)

    def _receive(self) -> None:
        try:
            texts = self._signals.receive(_RECEIVE_SECONDS if self._hearing else 0)
        except StrandlineError:
            self._hearing = False
            raise
        if not self._hearing:
            self._hearing = True
            self._wake()  # earlier signals may be lost
        elif texts:
            names = {name for text in texts for name in text.split(",")}
            self._wake(None if "" in names else names)

    def _interrupt(self) -> None:
        self._signals.interrupt()

    def close(self) -> None:
        super().close()
        self._signals.close()


class NoNews(News):
    look_seconds = LOOK_ALONE_SECONDS

    def announce(self, schedule: str) -> None:
        """Other processes look."""


def open_news(store: ScheduleStore, how: str) -> News:
    """`how` is the setting `schedule.news`."""
    if how not in {"notify", "look"}:
        raise Invalid(f"schedule.news must be 'notify' or 'look', not {how!r:.60}")
    if store.data_version() is not None:
        return FileNews(store)
    signals = store.signals() if how == "notify" else None
    return NoNews() if signals is None else SignalledNews(signals)
