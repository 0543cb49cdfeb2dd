"""Subscriptions in this process, over their store and the event types."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from strandline.clock import Clock, to_rfc3339
from strandline.errors import Invalid, InvalidCursor, NotFound
from strandline.log.event_types import EventTypes, refuse_actions
from strandline.log.model import CatalogEntry
from strandline.log.reading import View
from strandline.log.serving import ServedSubscriptions, Wake
from strandline.log.settings import LogSections
from strandline.log.subscriptions import model, places, rules, stats
from strandline.log.subscriptions.hub import Hub
from strandline.log.subscriptions.port import SubscriptionStore
from strandline.log.subscriptions.room import SDK_PARAMETERS, Consumer
from strandline.log.subscriptions.session import StreamSession


class LocalSubscriptions(ServedSubscriptions):
    def __init__(
        self,
        store: SubscriptionStore,
        event_types: EventTypes,
        settings: LogSections,
        clock: Clock,
    ) -> None:
        self._store = store
        self._event_types = event_types
        self._clock = clock
        lease_ms = settings.coordination.session_timeout_ms
        self._hub = Hub(store.leases, lease_ms, settings.log.poll_interval_ms, self._grow)

    # -- definitions

    def create(self, subscription: model.Subscription) -> tuple[model.Subscription, bool]:
        if (found := self._store.find(subscription)) is not None:
            return found, False
        asked = model.complete(subscription, str(uuid.uuid4()), to_rfc3339(self._clock.now_ms()))
        entries = [self._known(name) for name in asked.event_types]
        initial = asked.initial_cursors or ()
        if others := {cursor.event_type for cursor in initial} - {*asked.event_types}:
            raise Invalid(f"initial_cursors name {min(others)!r}, which the subscription does not read")
        shares: list[model.Share] = []
        if asked.read_from == "cursors":
            for entry in entries:
                view = places.view_of(self._event_types, entry.event_type.name, entry.id)
                shares += places.initial_shares(view, initial)
        created = self._store.create(asked, shares)
        # None: another process created it after the lookup above.
        return (created, True) if created is not None else self.create(subscription)

    def _known(self, name: str) -> CatalogEntry:
        try:
            entry = self._event_types.entry(name)
        except NotFound:
            raise Invalid(f"event type {name!r} does not exist; create it first") from None
        refuse_actions(entry)
        return entry

    def get(self, subscription_id: str) -> model.Subscription:
        found = self._store.get(subscription_id)
        if found is None:
            raise NotFound(f"subscription {subscription_id!r} does not exist; list the subscriptions to find it")
        return found.subscription

    def search(
        self,
        owning_application: str | None = None,
        event_types: Sequence[str] = (),
        *,
        limit: int = 1000,
        offset: int = 0,
    ) -> list[model.Subscription]:
        return self._store.search(owning_application, event_types, limit=limit, offset=offset)

    def update(self, subscription: model.Subscription) -> None:
        before = self.get(str(subscription.id))
        rules.changed(before, subscription)
        after = msgspec.structs.replace(
            before,
            authorization=subscription.authorization,
            annotations=subscription.annotations,
            labels=subscription.labels,
            updated_at=to_rfc3339(self._clock.now_ms()),
        )
        self._store.update(after)

    def delete(self, subscription_id: str) -> None:
        self._store.delete(subscription_id)

    # -- cursors

    def cursors(self, subscription_id: str) -> list[model.SubscriptionCursor]:
        self.get(subscription_id)
        shares, _ = self._store.layout(subscription_id)
        return [_cursor(share) for share in shares]

    def commit(
        self, subscription_id: str, stream_id: str, cursors: Sequence[model.SubscriptionCursor]
    ) -> list[model.CommitResult]:
        subscription = self.get(subscription_id)
        names = dict.fromkeys(cursor.event_type for cursor in cursors)
        views = {name: self._view(subscription, name) for name in names}
        commits = [places.committed(views[cursor.event_type], cursor) for cursor in cursors]
        verdicts = self._store.commit(subscription_id, stream_id, commits)
        self._hub.changed(subscription_id)
        return [model.CommitResult(cursor, verdict) for cursor, verdict in zip(cursors, verdicts, strict=True)]

    def _view(self, subscription: model.Subscription, name: str) -> View:
        if name not in subscription.event_types:
            raise Invalid(f"the subscription does not read {name!r}")
        return places.view_of(self._event_types, name)

    def reset(self, subscription_id: str, cursors: Sequence[model.SubscriptionCursor] = ()) -> None:
        subscription = self.get(subscription_id)
        slots = [(cursor.event_type, cursor.partition) for cursor in cursors]
        if len({*slots}) < len(slots):
            raise Invalid("there are two cursors for one partition; give only one")
        shares = [places.target(self._view(subscription, cursor.event_type), cursor) for cursor in cursors]
        self._initialise(subscription, ignoring={share.event_type for share in shares})
        if shares:
            self._store.reset(subscription_id, shares)
            self._initialise(subscription)

    # -- reading

    def stats(self, subscription_id: str, *, show_time_lag: bool = False) -> list[model.EventTypeStats]:
        subscription = self.get(subscription_id)
        shares, members = self._store.layout(subscription_id)
        now_ms = self._clock.now_ms() if show_time_lag else None
        return [
            stats.of_event_type(
                self._event_types, name, [share for share in shares if share.event_type == name], members, now_ms
            )
            for name in subscription.event_types
        ]

    def status(self, subscription_id: str) -> list[model.EventTypeStats]:
        shares, members = self._store.layout(subscription_id)
        return stats.status(shares, members)

    def consume(self, subscription_id: str, parameters: model.StreamParameters = SDK_PARAMETERS) -> Consumer:
        return LocalConsumer(self, self.get(subscription_id), parameters)

    def open(
        self,
        subscription_id: str,
        parameters: model.StreamParameters,
        partitions: Sequence[model.EventTypePartition],
        wake: Wake,
        *,
        eager: bool,
    ) -> StreamSession:
        stream_id = str(uuid.uuid4())
        session = StreamSession(
            stream_id, subscription_id, self._store, self._event_types, self._clock, parameters, wake, eager=eager
        )
        subscription = self.get(subscription_id)
        self._initialise(subscription)
        direct = frozenset(self._slot(subscription, asked) for asked in partitions) or None
        if direct is not None and len(direct) < len(partitions):
            raise Invalid("the same partition is asked for twice; name every partition once")
        self._store.leases.join(subscription_id, model.Member(stream_id, direct), self._hub.node)
        self._hub.add(session)
        return session

    def _slot(self, subscription: model.Subscription, asked: model.EventTypePartition) -> model.Slot:
        view = self._view(subscription, asked.event_type)
        return model.Slot(view.entry.id, view.partition(asked.partition))

    def _initialise(self, subscription: model.Subscription, ignoring: set[str] | None = None) -> None:
        """Add a cursor to every partition without one. Event types in `ignoring` may have been created again."""
        shares, _ = self._store.layout(str(subscription.id))
        new: list[model.Share] = []
        for name in subscription.event_types:
            known = [share for share in shares if share.event_type == name]
            if known and ignoring and name in ignoring:
                continue
            view = places.view_of(self._event_types, name, known[0].slot.event_type_id if known else None)
            if len(known) < view.entry.event_type.partition_count:
                taken = {share.slot.partition for share in known}
                found = places.first_shares(view, subscription.read_from or "end", began=bool(known))
                new += [share for share in found if share.slot.partition not in taken]
        if new:
            self._store.initialise(str(subscription.id), new)

    def _grow(self, subscription_id: str) -> None:
        """Add cursors for new partitions of the event types."""
        found = self._store.get(subscription_id)
        # A stream of a deleted event type gets the error from its own reads.
        with suppress(InvalidCursor):
            if found is not None:
                self._initialise(found.subscription)

    def close(self) -> None:
        """End the streams and the threads of this process."""
        self._hub.close()


def _cursor(share: model.Share) -> model.SubscriptionCursor:
    return model.SubscriptionCursor(
        share.event_type, str(share.slot.partition), str(share.position), str(uuid.uuid4())
    )


class LocalConsumer(Consumer):
    _room: LocalSubscriptions

    def __init__(
        self, room: LocalSubscriptions, subscription: model.Subscription, parameters: model.StreamParameters
    ) -> None:
        self.subscription = subscription
        self._room = room
        self._parameters = parameters
        self._woken = threading.Event()
        self._ready: deque[model.DeliveredBatch] = deque()
        self._open()

    def _open(self) -> None:
        wake = self._woken.set
        self._session = self._room.open(str(self.subscription.id), self._parameters, (), wake, eager=True)

    def receive(self, timeout: float | None = None) -> model.DeliveredBatch | None:
        self._check_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            self._woken.clear()
            self._collect()
            left = None if deadline is None else deadline - time.monotonic()
            if self._session.finished:
                self._reopen()
            elif self._session.idle:
                if left is not None and left <= 0:
                    return None
                due = self._session.wait_ms() / 1000
                self._woken.wait(due if left is None else min(due, left))
        return self._ready.popleft()

    def _collect(self) -> None:
        for chunk in self._session.step():
            if chunk.records is not None:
                place = (chunk.event_type, str(chunk.partition), chunk.position.order)
                self._ready.append(model.DeliveredBatch(*place, chunk.records, self._session.id))

    def _end(self) -> None:
        self._session.close()
