"""One push session over a WebSocket: leases go out, what the consumer does with them comes in."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from strandline.errors import Invalid, StrandlineError, TooLarge
from strandline.schedule.model import ItemAnswer, Lease, LeaseAct
from strandline.schedule.serving import PushSession, ServedMessages, ServedSchedules
from strandline.server import schedule_frames as frames
from strandline.server.routing import INLINE_BYTES, Call
from strandline.server.schedule_frames import Act, ActKind, PingBody

log = logging.getLogger("strandline.http")

#: The codes with which the server closes a session.
GONE, STALLED, FAILED, RESTARTING, SILENT, FENCED = 1000, 1008, 1011, 1012, 4408, 4409
_REASONS = {
    GONE: "",
    STALLED: "the client does not read what it gets",
    FAILED: "internal error; the log of the node has the details",
    RESTARTING: "this node is stopping; connect to another node",
    SILENT: "no frame for 30 s; send pings",
    FENCED: "a newer session of this consumer exists, or the schedule was deleted",
}
#: A client that sends no frame for this long is gone. Pings of the WebSocket protocol do not reach us.
SILENCE_S = 30.0
# The frames that wait for the store or for the client may have this size before no more are received.
_MOST_WAITING = 1 << 20
# Frames that are written without waiting for each other: how many, and their size.
_BURST_FRAMES, _BURST_SIZE = 32, 1 << 16
# How long the last frames may take.
_CLOSING_S = 1.0

#: The text of a frame, and the lease that it has, if any.
_Frame: TypeAlias = tuple[str, Lease | None]


class PushSocket(Response):
    """Accepts the WebSocket, serves it to its end, and gives back the leases that were not written to it.

    A receive is always pending, because Granian answers pings and notices the end of a connection only then. It
    pauses while the client reads nothing of what it asked for.
    """

    def __init__(self, call: Call[ServedSchedules], messages: ServedMessages, consumer: str) -> None:
        super().__init__(status_code=101)
        self._call = call
        self._state = call.state
        self._messages = messages
        self._consumer = consumer
        self._outbox = _Outbox(call, self._give_back)
        self._acts: deque[Act] = deque()
        self._act_came = asyncio.Event()
        self._eased = asyncio.Event()
        self._waiting = 0  # the size of the frames that are not handled or not answered yet
        self._pool = call.state.pools.of_streams(["the schedules"])
        self._opened = ExitStack()

    async def open(self, lease_ms: int, credit: int) -> None:
        """Begin the session, before the handshake is answered: an error refuses the WebSocket."""
        with ExitStack() as opening:
            # Counted before it is opened, so that a drain waits for it and the limit includes it.
            opening.enter_context(self._state.counted_stream())
            asked = (self._consumer, lease_ms, credit, self._outbox)
            self._session = self._outbox.session = await self._call.run(self._messages.open_push, *asked)
            opening.callback(self._pool.start, self._end)
            self._opened = opening.pop_all()

    def _end(self) -> None:
        """Do what the consumer asked for before it left, and end the session."""
        try:
            while self._acts:
                group = self._next_acts()
                self._state.bodies.release(sum(act.size for act in group))
                with suppress(StrandlineError):
                    self._operation(group[0].kind)([item for act in group for item in act.batch.accepted])
            self._session.close()
        finally:
            self._outbox.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        with self._opened:
            await receive()  # the handshake
            await send({"type": "websocket.accept"})
            code = await self._serve(receive, send)
        # Also if the client is gone: otherwise Granian keeps a connection on which something waits to be written.
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_S):
                await send({"type": "websocket.close", "code": code, "reason": _REASONS[code]})

    async def _serve(self, receive: Receive, send: Send) -> int:
        """Returns the code to close with."""
        parts: list[Coroutine[Any, Any, int]]
        parts = [self._listen(receive), self._work(), self._write(send), self._drain(), self._fence()]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        except Exception:
            log.exception("a push session of %r failed", self._consumer)
            return FAILED
        finally:
            for task in tasks:
                task.cancel()
            # Granian closes the connection only after the pending receive has ended.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self) -> int:
        """When the node stops: no more leases, but the results of what was asked before."""
        await self._state.draining.wait()
        self._outbox.stop_leases()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_S):
                while self._waiting:
                    self._eased.clear()
                    await self._eased.wait()
        return RESTARTING

    async def _fence(self) -> int:
        """When the session is fenced: the client may have stopped reading before that."""
        await self._outbox.fencing.wait()
        await asyncio.sleep(_CLOSING_S)
        return FENCED

    # -- what comes in

    async def _listen(self, receive: Receive) -> int:
        while True:
            try:
                async with asyncio.timeout(SILENCE_S):
                    message = await receive()
            except TimeoutError:
                return SILENT
            if message["type"] == "websocket.disconnect":
                return GONE
            try:
                await self._handle(message)
            except StrandlineError as error:
                self._reply(frames.failed(error))
            while self._waiting > _MOST_WAITING:
                self._eased.clear()
                await self._eased.wait()

    async def _handle(self, message: Message) -> None:
        received_ms = self._state.clock.now_ms()
        text, limit = message.get("text"), self._state.settings.max_body_bytes
        if text is None:
            raise Invalid("the frame is binary; send frames as text")
        if len(text) > limit:
            raise TooLarge(f"the frame is larger than {limit} bytes; split it into smaller frames")
        if len(text) > INLINE_BYTES:
            found = await self._state.pool_of_bodies.run(frames.read, text, self._consumer)
        else:
            found = frames.read(text, self._consumer)
        if isinstance(found, Act):
            self._state.bodies.hold(found.size)
            self._waiting += found.size
            self._acts.append(found)
            self._act_came.set()
        elif isinstance(found, PingBody):
            server_ms = self._call.room.ping(self._consumer, int(found.client_ms), received_ms)
            self._reply(frames.pong(found, server_ms))
        else:
            self._session.set_credit(found)
            self._outbox.hold_leases(hold=found == 0)
            self._outbox.give_back_unwanted()

    def _give_back(self, leases: Sequence[Lease]) -> None:
        self._pool.start(partial(self._messages.give_back, leases))

    def _reply(self, text: str) -> None:
        self._waiting += len(text)
        self._outbox.reply(text)

    # -- what the consumer asks for

    async def _work(self) -> int:
        while True:
            await self._act_came.wait()
            self._act_came.clear()
            while self._acts:
                await self._work_on(self._next_acts())

    def _next_acts(self) -> list[Act]:
        """The next acts of one kind: what arrived during the last call shares the next one."""
        group = [self._acts.popleft()]
        while self._acts and self._acts[0].kind == group[0].kind and len(group) < _BURST_FRAMES:
            group.append(self._acts.popleft())
        return group

    async def _work_on(self, group: Sequence[Act]) -> None:
        asked = [item for act in group for item in act.batch.accepted]
        change = self._operation(group[0].kind)
        try:
            key = (self._messages.name, change.__name__)
            calls, pool = self._state.shared_calls, self._state.pool_of_room(self._call.room_name)
            found = await calls.run(pool, key, change, asked) if asked else ()
            replies = _results(group, found)
        except StrandlineError as error:
            replies = [frames.failed(error, act) for act in group]
        finally:
            size = sum(act.size for act in group)
            self._state.bodies.release(size)
        for text in replies:
            self._reply(text)
        self._ease(size)

    def _operation(self, kind: ActKind) -> Callable[[Sequence[LeaseAct]], Sequence[ItemAnswer]]:
        messages = self._messages
        return {"extend": messages.extend, "release": messages.release, "delete": messages.delete}[kind]

    def _ease(self, size: int) -> None:
        self._waiting -= size
        self._eased.set()

    # -- what goes out

    async def _write(self, send: Send) -> int:
        """Write frames as they come, until the session is fenced or the client reads nothing for too long."""
        try:
            while True:
                await self._write_burst(send, await self._outbox.next())
                if self._outbox.ended:
                    return FENCED
        except TimeoutError:
            return STALLED

    async def _write_burst(self, send: Send, burst: Sequence[_Frame]) -> None:
        """Write frames in their order. The next one does not wait until the event loop knows of the one before."""
        sending = [asyncio.ensure_future(send({"type": "websocket.send", "text": text})) for text, _ in burst]
        try:
            async with asyncio.timeout(self._state.settings.stalled_client_ms / 1000):
                for one in sending:
                    await one
        finally:
            # The client may have a part of the first one that was not finished.
            unfinished = (count for count, one in enumerate(sending, 1) if not one.done() or one.cancelled())
            written = next(unfinished, len(sending))
            for one in sending:
                one.cancel()
            if leases := [lease for _, lease in burst[:written] if lease is not None]:
                self._session.sent(leases)
        self._ease(sum(len(text) for text, lease in burst if lease is None))


def _results(group: Sequence[Act], answers: Sequence[ItemAnswer]) -> list[str]:
    """The result of each act, from the answers to all their accepted items."""
    rest = iter(answers)
    return [frames.results(act.ref, act.batch.answers([*islice(rest, len(act.batch.accepted))])) for act in group]


class _Outbox:
    """What waits to be written: replies first, then leases. It is the listener of the session."""

    session: PushSession

    def __init__(self, call: Call[ServedSchedules], give_back: Callable[[Sequence[Lease]], None]) -> None:
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._now_ms = call.room.now_ms
        self._buffered = call.state.buffered
        self._replies: deque[str] = deque()
        self._leases: deque[Lease] = deque()
        self._with_leases = True
        self._held = False
        self._fenced = self._closed = False
        self.fencing = asyncio.Event()
        #: Whether the last frame was taken.
        self.ended = False
        self._changed = asyncio.Event()
        self._woken = False

    # -- called by any thread

    def leased(self, leases: Sequence[Lease]) -> None:
        self._buffered.hold_anyway(_memory(leases))
        self._leases.extend(leases)
        if self._closed:  # the leaser had not delivered them before the session ended
            self.close()
        self._wake()

    def fenced(self) -> None:
        self._fenced = True
        self._wake()

    def _wake(self) -> None:
        # Checked after the change: the loop resets the mark before it looks for changes.
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(self._wake_up)

    def close(self) -> None:
        """Drop the leases that were not written."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._buffered.release(_memory([self._leases.popleft()]))

    # -- called on the event loop

    def _wake_up(self) -> None:
        self._woken = False
        self._changed.set()
        if self._fenced:
            self.fencing.set()

    def reply(self, text: str) -> None:
        self._replies.append(text)
        self._changed.set()

    def stop_leases(self) -> None:
        """Write no more leases."""
        self._with_leases = False

    def hold_leases(self, *, hold: bool) -> None:
        """Write no leases while the consumer wants none: those of an earlier session wait."""
        self._held = hold
        self._changed.set()

    def give_back_unwanted(self) -> None:
        """The consumer may hold fewer leases than before: the newest go to others."""
        kept: list[Lease] = []
        unwanted: list[Lease] = []
        with suppress(IndexError):
            while True:
                lease = self._leases.pop()
                (unwanted if self.session.take_back(lease) else kept).append(lease)
        self._leases.extendleft(kept)
        if unwanted:
            self._buffered.release(_memory(unwanted))
            self._give_back(unwanted)

    async def next(self) -> list[_Frame]:
        """The next frames to write, in a short burst. The last one of a fenced session says so."""
        while True:
            self._changed.clear()
            if burst := self._burst():
                return burst
            if self._fenced:
                self.ended = True
                return [(frames.FENCED, None)]
            await self._changed.wait()

    def _burst(self) -> list[_Frame]:
        found: list[_Frame] = []
        expired: list[Lease] = []
        size = 0
        while len(found) < _BURST_FRAMES and size < _BURST_SIZE:
            if self._replies:
                found.append((self._replies.popleft(), None))
            elif self._leases and self._with_leases and not (self._held or self._fenced):
                lease = self._leases.popleft()
                self._buffered.release(_memory([lease]))
                if lease.message.at_ms > self._now_ms():
                    found.append((frames.lease(lease), lease))
                elif self.session.take_back(lease):
                    expired.append(lease)
            else:
                break
            size += len(found[-1][0]) if found else 0
        if expired:
            self._give_back(expired)
        return found


def _memory(leases: Sequence[Lease]) -> int:
    return sum(len(lease.body.content) for lease in leases)
