"""A push session of the schedule: leases over a WebSocket."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Literal

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from strandline.client import problems
from strandline.client import schedule_wire as wire
from strandline.client.transport import Params, Transport
from strandline.clock import Clock, system_clock
from strandline.errors import LeaseLost, OutcomeUnknown, StrandlineError, Unavailable, families
from strandline.schedule.demand import Demand
from strandline.schedule.model import ItemAnswer, Lease, LeaseAct, Moment
from strandline.schedule.rules import SHORTEST_MS

log = logging.getLogger(__name__)

# The largest body that a schedule can allow, in base64, with its frame.
_MAX_FRAME_BYTES = 3 << 29
_PING_MS = 5_000
#: A server that is silent for this long, although it gets pings, is gone.
_SILENCE_MS = 20_000
_CLOSE_S = 2.0
_FENCED = 4409
_SAMPLES = 8
# An answer that takes longer leaves a large error. Then more pings follow soon, until all samples are taken.
_FAST_MS = 10
_SOON_MS = 50

_Verb = Literal["extend", "release", "delete"]
_Release = Callable[[Sequence[LeaseAct]], list[ItemAnswer]]


class _Results(msgspec.Struct, frozen=True):
    ref: int
    items: list[ItemAnswer]


class _Pong(msgspec.Struct, frozen=True):
    client_ms: int
    server_ms: int


class _Failed(msgspec.Struct, frozen=True):
    code: str
    detail: str
    ref: int | None = None


class _Frame(msgspec.Struct, frozen=True):
    """A frame of the server has one of these."""

    lease: wire.ReceivedLease | None = None
    results: _Results | None = None
    pong: _Pong | None = None
    error: _Failed | None = None
    fenced: bool = False


class ServerTime:
    """The server's time, estimated from pings as NTP does: the answer was written halfway between both ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)
        self._sent_ms = clock.steady_ms()
        self._open: int | None = None

    def ping(self) -> dict[str, int]:
        self._sent_ms, self._open = self._clock.steady_ms(), self._clock.now_ms()
        return {"client_ms": self._open}

    def pong(self, client_ms: int, server_ms: int) -> bool:
        """Whether this is the answer to the newest ping. The start of older ones is not known any more."""
        if client_ms != self._open:
            return False
        self._open = None
        steady_ms = self._clock.steady_ms()
        took_ms = steady_ms - self._sent_ms
        self._samples.append((took_ms, server_ms + took_ms // 2 - steady_ms))
        return True

    def now_ms(self) -> int:
        """By the ping with the fastest answer, which has the smallest error."""
        return self._clock.steady_ms() + min(self._samples)[1]

    @property
    def is_known(self) -> bool:
        return bool(self._samples)

    def until_ping_ms(self) -> int:
        """How long to wait for the next ping; 0 or less if it is due."""
        is_rough = len(self._samples) < _SAMPLES and (not self._samples or min(self._samples)[0] > _FAST_MS)
        pause_ms = _SOON_MS if is_rough and self._open is None else _PING_MS
        return self._sent_ms + pause_ms - self._clock.steady_ms()


class WebSocketFeed:
    """The leases of one connection. Unavailable when it breaks: `ScheduleConsumer` opens another one.

    A thread reads the frames. Leases that were received and not taken are released by `close`, but unlike leases
    that the server had not sent, they count as deliveries. `release` releases without this connection.
    """

    def __init__(
        self, transport: Transport, path: str, consumer: str, lease_ms: int, credit: int, release: _Release
    ) -> None:
        query: Params = {"consumer": consumer, "lease_ms": lease_ms, "credit": credit}
        self._consumer = consumer
        self._release = release
        self._demand = Demand(credit, self._set_credit)
        self._timeout = transport.timeout
        self._clock = system_clock()
        self._time = ServerTime(self._clock)
        self._heard_ms = self._clock.steady_ms()
        self._incoming: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        self._refs = itertools.count(1)
        self._waiting: dict[int, Future[list[ItemAnswer]]] = {}
        self._ended: StrandlineError | None = None
        self._closing = False
        self._opened = ExitStack()
        self._socket = self._opened.enter_context(_connected(transport, path, query))
        # Set when the newest ping was answered; both change together, under the lock.
        self._in_time = threading.Event()
        self._pinging = threading.Lock()
        self._ping()
        self._reader = threading.Thread(target=self._read, name="strandline-leases", daemon=True)
        self._reader.start()
        if not self._in_time.wait(self._timeout) or not self._time.is_known:
            error = self._ended or Unavailable(f"{transport.url} does not answer on its WebSocket; retry later")
            self.close()
            raise error

    # -- the contract

    def next(self, timeout: float) -> Lease | None:
        if self._ended is None and (lease := self._wait(timeout)) is not None:
            return lease
        if self._ended is not None:
            self._incoming.put(None)  # for the other threads that wait
            raise self._ended
        return None

    def _wait(self, timeout: float) -> Lease | None:
        with self._demand.waiting(), suppress(queue.Empty):
            return self._incoming.get(timeout=timeout) if timeout > 0 else self._incoming.get_nowait()
        return None

    def extend(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._act("extend", items)

    def release(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._act("release", items)

    def delete(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._act("delete", items)

    def now_ms(self) -> int:
        return self._time.now_ms()

    def stop(self) -> None:
        self._demand.stop()

    def _set_credit(self, credit: int) -> None:
        if self._ended is None:
            with suppress(Unavailable):  # the connection has broken, and `next` says so
                self._send({"credit": credit})

    def close(self) -> None:
        was_open, self._closing = self._ended is None, True
        with suppress(StrandlineError):
            if was_open:
                self.stop()  # what is released now must not come back
                self._receive_rest()
                self._release_untaken(partial(self._act, "release", timeout=_CLOSE_S))
        with suppress(WebSocketException, OSError):
            self._opened.close()
        self._reader.join(_CLOSE_S)
        self._end(_closed())
        with suppress(StrandlineError):
            if was_open:
                self._release_untaken(self._release)  # what the server wrote before it closed, too

    def _receive_rest(self) -> None:
        """Wait for the leases that are on their way: a close frame would drop them. The pong comes after them."""
        self._ping()
        self._in_time.wait(_CLOSE_S)

    def _ping(self) -> None:
        with self._pinging:
            self._in_time.clear()
            ping = self._time.ping()
        self._send({"ping": ping})

    def _release_untaken(self, release: _Release) -> None:
        soon = Moment(SHORTEST_MS + 1, relative=True)
        untaken = []
        with suppress(queue.Empty):
            while True:
                if (lease := self._incoming.get_nowait()) is not None:
                    untaken.append(LeaseAct(lease.message.id, self._consumer, lease.message.version, soon))
        if self._ended is not None:
            self._incoming.put(None)  # for the other threads that wait
        if untaken:
            release(untaken)

    # -- acts

    def _act(self, verb: _Verb, items: Sequence[LeaseAct], timeout: float | None = None) -> list[ItemAnswer]:
        if not items:
            return []
        ref = next(self._refs)
        encode = wire.acts if verb == "delete" else wire.timed_acts
        answers = self._waiting[ref] = Future()
        try:
            if self._ended is not None:
                raise self._ended
            self._send({verb: {"ref": ref, "items": encode(items)}})
            return answers.result(timeout or self._timeout)
        except TooLate:
            raise OutcomeUnknown(f"the server did not answer to {verb} in time; it may be done") from None
        finally:
            self._waiting.pop(ref, None)

    def _send(self, frame: dict[str, Any]) -> None:
        with self._mapped():
            self._socket.send(msgspec.json.encode(frame).decode())

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == _FENCED:
                raise self._fenced() from error
            reason = error.rcvd.reason if error.rcvd is not None else ""
            raise Unavailable(f"the connection of the push session broke ({reason or error})") from error

    # -- reading

    def _read(self) -> None:
        try:
            while self._ended is None:
                self._read_frame()
        except StrandlineError as error:
            self._end(_closed() if self._closing else error)
        except Exception as error:  # noqa: BLE001 - every waiting caller gets it
            self._end(Unavailable(f"the push session failed: {type(error).__name__}: {error}"))

    def _read_frame(self) -> None:
        with self._mapped():
            try:
                frame = self._socket.recv(timeout=max(self._time.until_ping_ms(), 0) / 1000, decode=False)
            except TimeoutError:
                frame = None
        now_ms = self._clock.steady_ms()
        if frame is not None:
            self._heard_ms = now_ms
            self._take(msgspec.json.decode(frame, type=_Frame))
        elif now_ms - self._heard_ms > _SILENCE_MS:
            raise Unavailable("the server does not answer pings; the connection of the push session is dead")
        if self._time.until_ping_ms() <= 0:
            self._ping()

    def _take(self, frame: _Frame) -> None:
        if frame.lease is not None:
            self._incoming.put(frame.lease.to_lease(self._consumer))
        elif frame.results is not None:
            self._answer(frame.results.ref, frame.results.items)
        elif frame.pong is not None:
            with self._pinging:
                if self._time.pong(frame.pong.client_ms, frame.pong.server_ms):
                    self._in_time.set()
        elif frame.error is not None:
            self._fail(frame.error)
        elif frame.fenced:
            raise self._fenced()

    def _fenced(self) -> LeaseLost:
        return LeaseLost(
            f"another consumer {self._consumer!r} has connected, or the schedule was deleted; "
            "give each consumer its own name"
        )

    def _answer(self, ref: int, answers: list[ItemAnswer]) -> None:
        if (waiting := self._waiting.get(ref)) is not None:
            waiting.set_result(answers)

    def _fail(self, failed: _Failed) -> None:
        error = families().get(failed.code, StrandlineError)(failed.detail)
        waiting = None if failed.ref is None else self._waiting.get(failed.ref)
        if waiting is not None:
            waiting.set_exception(error)
        else:
            log.warning("the server refused a frame: %s", failed.detail)

    def _end(self, error: StrandlineError) -> None:
        """Wake all callers that wait. The first reason counts."""
        if self._ended is not None:
            return
        self._ended = error
        self._incoming.put(None)
        self._in_time.set()
        unknown = OutcomeUnknown("the connection broke before the answer; it may be done")
        for waiting in [*self._waiting.values()]:
            with suppress(Exception):  # answered at the same time
                waiting.set_exception(error if isinstance(error, LeaseLost) else unknown)


def _closed() -> Unavailable:
    return Unavailable("the push session was closed; open another one")


def _connected(transport: Transport, path: str, query: Params) -> ClientConnection:
    address = transport.address(path, query)
    address = address.copy_with(scheme={"http": "ws", "https": "wss"}[address.scheme])
    try:
        return connect(
            str(address),
            open_timeout=transport.timeout,
            close_timeout=_CLOSE_S,
            max_size=_MAX_FRAME_BYTES,
            compression=None,
            ping_interval=None,  # the session has its own pings, with the time
        )
    except InvalidStatus as error:
        response = error.response
        raise problems.to_error(
            response.status_code, response.headers, bytes(response.body or b""), writes=False
        ) from error
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise Unavailable(
            f"no server answers at {transport.url} ({error}); start one with `strandline serve`"
        ) from error
