"""One open stream of a subscription in this process: reads, delivers, and follows changes of its partitions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from strandline.clock import Clock
from strandline.errors import StrandlineError
from strandline.log.event_types import EventTypes
from strandline.log.reading import Reader
from strandline.log.streaming import MOST_BYTES, StreamChunk
from strandline.log.subscriptions import places
from strandline.log.subscriptions.delivery import Delivery
from strandline.log.subscriptions.model import Share, Slot, StreamParameters
from strandline.log.subscriptions.port import SubscriptionStore
from strandline.logging_setup import fields

log = logging.getLogger(__name__)


class StreamSession:
    """`step` never waits; `wake` is called, in any thread, when there may be more to do."""

    def __init__(
        self,
        stream_id: str,
        subscription_id: str,
        store: SubscriptionStore,
        event_types: EventTypes,
        clock: Clock,
        parameters: StreamParameters,
        wake: Callable[[], None],
        *,
        eager: bool,
    ) -> None:
        self.id = stream_id
        self.subscription_id = subscription_id
        self.finished = False
        self.idle = False
        self._store = store
        self._event_types = event_types
        self._clock = clock
        self._wake = wake
        self._delivery = Delivery(parameters, clock.steady_ms(), eager=eager)
        self._readers: dict[str, tuple[Reader, Callable[[], None]]] = {}
        self._held: set[Slot] = set()
        self._lock = threading.Lock()
        self._changed = True
        #: Called when the stream is closed.
        self.on_close: Callable[[], None] = lambda: None

    def changed(self) -> None:
        """Cursors or slots of the subscription may have changed."""
        self._changed = True
        self._wake()

    def step(self, most_bytes: int = MOST_BYTES) -> list[StreamChunk]:
        """The chunks that are due now. If `idle`, wait before the next step; if `finished`, stop."""
        with self._lock:
            self._delivery.most_bytes = most_bytes
            self._keep_up()
            if self.finished:
                return []
            found = self._read()
            chunks = self._delivery.take(self._clock.steady_ms())
            self._settle()
            self.idle = not found and not chunks
            return chunks

    @property
    def has_partitions(self) -> bool:
        return bool(self._held)

    def wait_ms(self) -> int:
        return self._delivery.wait_ms(self._clock.steady_ms())

    def check(self) -> None:
        """Release partitions and end on overdue commits, even if nothing calls `step` for a long time."""
        if self._lock.acquire(blocking=False):
            try:
                self._keep_up()
                self._settle()
            finally:
                self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._end(None)
            while self._readers:
                self._readers.popitem()[1][1]()
        self.on_close()

    def _end(self, why: str | None, *, forfeit: bool = False) -> None:
        if self.finished:
            return
        self.finished = True
        if why is not None:
            log.info("a subscription's stream ended: %s", why, extra=self._fields())
        try:
            self._store.leases.leave(self.id, forfeit=forfeit)
        except StrandlineError as error:
            log.warning("could not end a stream; its lease will expire: %s", error, extra=self._fields())

    def _fields(self) -> dict[str, object]:
        return fields(subscription=self.subscription_id, stream=self.id)

    def _keep_up(self) -> None:
        if self._changed and not self.finished:
            self._changed = False
            try:
                self._refresh()
            except BaseException:
                self._changed = True  # the next step retries
                raise
            self._settle()

    def _refresh(self) -> None:
        held = self._store.leases.held(self.id)
        if held is None:
            self.finished = True
            log.info("a subscription's stream has lost its lease", extra=self._fields())
            return
        shares = [self._resumed(share) for share in held]
        self._held = {share.slot for share in shares}
        self._delivery.hold(shares, self._clock.steady_ms())

    def _resumed(self, share: Share) -> Share:
        """The share; if it is new to this stream and its cursor is no longer available, the cursor is moved."""
        if share.slot in self._held:
            return share
        view = places.view_of(self._event_types, share.event_type, share.slot.event_type_id)
        found = places.resumed(view.spans()[share.slot.partition], share.position)
        if found.problem is None:
            return share
        if self._store.skip(self.subscription_id, share, found.position, found.skipped):
            log.warning(
                "event type %r, partition %d: the subscription skips %d events and continues after %s: %s",
                share.event_type, share.slot.partition, found.skipped, found.position, found.problem,
                extra=self._fields(),
            )  # fmt: skip
        return Share(share.slot, share.event_type, found.position, share.skipped, heir=share.heir)

    def _read(self) -> bool:
        found = False
        for name, positions in self._delivery.hungry().items():
            wanted = self._delivery.wanted()
            if not wanted:
                break
            reader = self._reader(name, next(iter(positions)).event_type_id)
            reader.positions = {slot.partition: position for slot, position in positions.items()}
            slots = {slot.partition: slot for slot in positions}
            for batch in reader.poll(wanted, self._delivery.wanted_bytes()):
                self._delivery.add(slots[int(batch.partition)], batch)
                found = True
        return found

    def _reader(self, name: str, event_type_id: str) -> Reader:
        if name not in self._readers:
            reader = self._event_types.reader(name, {})
            places.view_of(self._event_types, name, event_type_id)
            self._readers[name] = reader, reader.watch(self._wake)
        return self._readers[name][0]

    def _settle(self) -> None:
        """End the stream or release partitions, depending on the delivery."""
        if self._delivery.overdue(self._clock.steady_ms()):
            self._end("its client did not commit in time", forfeit=True)
        elif self._delivery.finished:
            self._end("it reached its timeout or its limit")
        elif self.finished:
            return
        elif slots := self._delivery.given_up():
            self._store.leases.release(self.id, slots)
            self.changed()
