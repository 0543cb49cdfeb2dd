"""A consumer of a subscription, run as a process that tests kill. It writes a journal of all its actions.

    python consumer.py http|sdk|local JOURNAL SUBSCRIPTION DATA URL…

The time of a line is comparable between processes.
"""

import random
import sys
import time

import httpx
from line_file import LineFile

import strandline
import subscribers
from strandline.errors import Conflict, Invalid, OutcomeUnknown, Unavailable
from strandline.log.subscriptions import StreamParameters

WINDOW = 800
COMMIT_TIMEOUT_S = 3
PARAMETERS = {
    "max_uncommitted_events": WINDOW,
    "batch_limit": 200,
    "batch_flush_timeout": 1,
    "commit_timeout": COMMIT_TIMEOUT_S,
}
PAUSE_S = 0.05
# A node that has not answered for this long counts as paused, and the request goes to another one.
ASLEEP_S = 10


class Journal:
    def __init__(self, path: str) -> None:
        self._file = LineFile(path)
        self._opened = time.monotonic()
        self._committed: dict[str, float] = {}
        self._was_late = False

    def is_late(self, partition: str) -> bool:
        """Whether a commit may be refused: the stream may have ended because it did not commit in time.

        That happens while this process is paused, and while it waits for a node that is.
        """
        waited = time.monotonic() - self._committed.get(partition, self._opened)
        self._was_late = self._was_late or waited > COMMIT_TIMEOUT_S
        return self._was_late

    def note(self, what: str, stream: str = "", partition: str = "", offset: str = "", ids=()) -> None:
        if what == "opening":
            self._opened, self._was_late = time.monotonic(), False
            self._committed.clear()
        elif what == "committed":
            self.is_late(partition)
            self._committed[partition] = time.monotonic()
        line = {"at": time.monotonic_ns(), "what": what, "stream": stream}
        place = {"partition": partition, "offset": offset, "ids": ids} if partition else {}
        self._file.append({**line, **place})


def consume_http(journal: Journal, subscription: str, urls: list[str]) -> None:
    """Consume over plain HTTP, from a random node. Commits go to the nodes in random order until one accepts."""
    while True:
        journal.note("opening")
        try:
            url = random.choice(urls)
            with subscribers.open_stream(url, subscription, **PARAMETERS) as (stream, batches):
                for batch in batches:
                    if "events" in batch:
                        take_http(journal, subscription, urls, stream, batch)
        except httpx.TransportError:
            time.sleep(PAUSE_S)
        except AssertionError as error:
            if not any(code in str(error) for code in ("conflict", "unavailable")):
                journal.note(f"error {error}")
            time.sleep(PAUSE_S)


def take_http(journal: Journal, subscription: str, urls: list[str], stream: str, batch: dict) -> None:
    place = (stream, batch["cursor"]["partition"], batch["cursor"]["offset"])
    journal.note("delivered", *place, [(e["publisher"], e["number"]) for e in batch["events"]])
    journal.note("committing", *place)
    for url in random.sample(urls, len(urls)):
        try:
            answer = subscribers.commit(url, subscription, stream, batch["cursor"])
        except httpx.TransportError:
            continue
        if answer.status_code in {200, 204}:
            journal.note("committed", *place)
            return
        if answer.status_code != 503 and not (
            answer.status_code == 422 and journal.is_late(batch["cursor"]["partition"])
        ):
            journal.note(f"error {answer.status_code} {answer.text}")


def consume_sdk(journal: Journal, subscription: str, platform) -> None:
    """Consume with the client library, in process or over HTTP."""
    while True:
        journal.note("opening")
        try:
            with platform.log.subscriptions.consume(subscription, StreamParameters(**PARAMETERS)) as consumer:
                for batch in consumer:
                    take_sdk(journal, consumer, batch)
        # No free slot, no node, or this process was paused in a transaction, which was then aborted.
        except (Conflict, Unavailable, OutcomeUnknown):
            time.sleep(PAUSE_S)


def take_sdk(journal: Journal, consumer, batch) -> None:
    place = (batch.stream_id, batch.partition, batch.offset)
    journal.note("delivered", *place, [(e["publisher"], e["number"]) for e in batch.events])
    journal.note("committing", *place)
    try:
        consumer.commit(batch)
    except (Unavailable, OutcomeUnknown):
        return
    except Invalid:
        if not journal.is_late(batch.partition):
            raise
        return
    journal.note("committed", *place)


def main(kind: str, path: str, subscription: str, data: str, *urls: str) -> None:
    journal = Journal(path)
    subscribers.CLIENT = httpx.Client(timeout=ASLEEP_S, limits=httpx.Limits(max_keepalive_connections=0))
    try:
        if kind == "http":
            consume_http(journal, subscription, [*urls])
        with strandline.open(data) if kind == "local" else strandline.connect(random.choice(urls)) as platform:
            consume_sdk(journal, subscription, platform)
    except BaseException as error:
        journal.note(f"error {error!r}")
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
