"""A new room takes one registration per layer and is then available in all of them."""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import click
import httpx
import pytest
from click.testing import CliRunner

from strandline.cli import COMMANDS, cli
from strandline.client.remote import Remote
from strandline.client.transport import Transport
from strandline.clock import ManualClock
from strandline.config import setting
from strandline.errors import Unavailable
from strandline.platform import Platform
from strandline.room import Chore, CounterMetric, Room, room
from strandline.server import app, main
from strandline.server.routing import Call, Endpoint, ServerState, json_response
from strandline.settings import Settings

# -- the parts of the room

COUNTED = CounterMetric("strandline_greetings_forgotten", "Greetings forgotten.", "language")


@dataclass(frozen=True)
class GreetingSettings:
    word: str = setting("hello", "What to say.")
    forget_interval_ms: int = setting(1, "How often greetings are forgotten.", minimum=1)


class Greetings(ABC):
    """The contract that users see."""

    @abstractmethod
    def greet(self, name: str) -> str:
        """A greeting."""


class LocalGreetings(Greetings, Room):
    def __init__(self, settings: GreetingSettings) -> None:
        self.settings = settings
        self.closed = False
        self.available = True
        self.forgotten = 0

    def greet(self, name: str) -> str:
        return f"{self.settings.word}, {name}"

    def check_ready(self) -> None:
        if not self.available:
            raise Unavailable("no greetings today")

    def chores(self) -> list[Chore]:
        return [Chore("forgetting greetings", self.settings.forget_interval_ms, self.forget)]

    def forget(self) -> None:
        self.forgotten += 1
        if self.forgotten == 1:
            raise RuntimeError("the first attempt fails")

    def counts(self) -> dict[CounterMetric, dict[str, int]]:
        return {COUNTED: {"en": self.forgotten}}

    def close(self) -> None:
        self.closed = True


async def greet(call: Call[Greetings]):
    return json_response(await call.run(call.room.greet, call.path("name")))


GREETING_ROUTES = SimpleNamespace(
    ENDPOINTS=[
        Endpoint("GET", "/greetings/{name}", greet, "A greeting", "greetings", returns={200: str}),
    ]
)


class HttpGreetings(Greetings):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def greet(self, name: str) -> str:
        return self._transport.get(f"/greetings/{name}", str)

    def close(self) -> None:
        pass


@click.command()
def greetings() -> None:
    """Greet."""
    click.echo("hello")


# -- the registrations: one per layer


@dataclass(frozen=True)
class WiderSettings(Settings):
    greetings: GreetingSettings = field(default_factory=GreetingSettings)


class WiderPlatform(Platform):
    @room
    def greetings(self) -> LocalGreetings:
        return LocalGreetings(self.settings.greetings)


class WiderRemote(Remote):
    @room
    def greetings(self) -> HttpGreetings:
        return HttpGreetings(self._transport)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(app.ROUTES, "greetings", (GREETING_ROUTES,))
    monkeypatch.setitem(COMMANDS, "greetings", ("greetings", "Say hello."))
    module = ModuleType("strandline.cli.greetings")
    module.greetings = greetings
    monkeypatch.setitem(sys.modules, module.__name__, module)


# -- the layers that have the room


@pytest.fixture
def platform(tmp_path) -> Iterator[WiderPlatform]:
    settings = WiderSettings.load(env={"STRANDLINE_GREETINGS__WORD": "good morning"})
    with WiderPlatform(tmp_path / "data", settings, ManualClock()) as opened:
        yield opened


@pytest.fixture
def state(platform) -> Iterator[ServerState]:
    state = ServerState(platform.rooms, platform.settings.server, platform.clock)
    yield state
    state.pools.close()


class InProcess(httpx.BaseTransport):
    """Sends requests to an application without a socket."""

    def __init__(self, application) -> None:
        self._application = httpx.ASGITransport(application)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def answer() -> httpx.Response:
            found = await self._application.handle_async_request(request)
            return httpx.Response(found.status_code, headers=found.headers, content=await found.aread())

        return asyncio.run(answer())


@pytest.fixture
def served(state) -> httpx.Client:
    plain = {"Accept-Encoding": "identity"}  # the transport would decompress answers twice
    return httpx.Client(transport=InProcess(app.build(state, "server")), base_url="http://server", headers=plain)


def test_its_settings_are_declared_and_loaded():
    """The room's settings are keys, environment variables and flags, with the checks of all settings."""
    declared = {declared.key: declared for declared in WiderSettings.declared()}
    assert declared["greetings.word"].flag == "--greetings-word"
    assert len(declared) == len([*Settings.declared()]) + 2
    assert WiderSettings.load(env={}, flags={"greetings.word": "hi"}).greetings.word == "hi"


def test_it_is_opened_and_closed_with_the_others(tmp_path):
    """Rooms open in the order of registration, and close even if a later room fails to open."""
    with WiderPlatform(tmp_path / "data", WiderSettings(), ManualClock()) as opened:
        assert list(opened.rooms) == ["log", "archive", "schedules", "journals", "feeds", "greetings"]
        assert opened.greetings is opened.rooms["greetings"]
    assert opened.greetings.closed

    class Broken(WiderPlatform):
        @room
        def attic(self) -> Room:
            before.append(self.greetings)
            raise Unavailable("the attic is locked")

    before: list[LocalGreetings] = []
    with pytest.raises(Unavailable, match="attic"):
        Broken(tmp_path / "data", WiderSettings(), ManualClock())
    assert before[0].closed


def test_its_routes_are_served_and_described(served):
    """The room's handlers get the room, and the OpenAPI document has its paths."""
    assert served.get("/greetings/ada").json() == "good morning, ada"
    assert "/greetings/{name}" in served.get("/openapi.json").json()["paths"]


def test_readiness_asks_it(platform, served):
    """The server is not ready if one room is not ready."""
    assert served.get("/ready").status_code == 200
    platform.greetings.available = False
    assert served.get("/ready").status_code == 503
    assert served.get("/ready").json()["detail"] == "no greetings today"


def test_its_upkeep_is_repeated_and_counted(platform, state, served):
    """A failed chore is retried, and the room's counters are in the metrics."""

    async def until_repeated() -> None:
        upkeep = asyncio.create_task(main.upkeep(state))
        async with asyncio.timeout(10):
            while platform.greetings.forgotten < 3:  # noqa: ASYNC110 - a thread counts
                await asyncio.sleep(0.001)
        upkeep.cancel()
        with suppress(asyncio.CancelledError):
            await upkeep

    asyncio.run(until_repeated())
    count = platform.greetings.forgotten
    assert f'strandline_greetings_forgotten_total{{language="en"}} {float(count)}' in served.get("/metrics").text


def test_the_client_has_it(served, monkeypatch):
    """The client has the same method over HTTP."""
    transport = Transport("http://server", 5)
    transport.close()
    monkeypatch.setattr(transport, "_client", served)
    monkeypatch.setattr(transport, "_wire", served._transport)
    with WiderRemote(transport, retry_unknown=False) as remote:
        assert list(remote.rooms)[-1] == "greetings"
        assert remote.greetings.greet("bob") == "good morning, bob"


def test_the_command_line_has_it():
    """The room's command is in the help and can be called."""
    assert "Say hello." in CliRunner().invoke(cli, ["--help"]).output
    assert CliRunner().invoke(cli, ["greetings"]).output == "hello\n"
