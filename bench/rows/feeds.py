"""Feeds: posts written to many full feeds, and reads of the newest entries, beside other ways to store them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench import feeds
from bench.queues.fetch import CannotFetch
from bench.runner import Row, Scale, Side, Target, Work
from bench.services import ValkeyServer

_POSTS = 50
_READS = 5_000
_TOGETHER_READS = 200
_FILE = "feeds.db"

#: A side and its name; the reason instead of a side that this machine cannot run.
_Named = tuple[str, feeds.Side | str]


@contextmanager
def _valkey(directory: Path) -> Iterator[list[_Named]]:
    """All sides use the same server, each another database of it."""
    with ExitStack() as stack:
        server = stack.enter_context(ValkeyServer(directory))
        key = f"strandline:feed:{{{feeds.names()[0]}}}"
        size = partial(feeds.list_bytes, server.port, 0, key)
        sides: list[_Named] = [
            ("ours", feeds.Ours(f"{server.url}/0", directory / "ours", size)),
            ("redis-py, RPUSHX and LRANGE", feeds.PlainList(server.port)),
            ("sorted set, as in Mastodon", feeds.SortedSet(server.port)),
            ("Stream-Framework", _stream_framework(server.port, directory / "driver.log")),
        ]
        for _, side in sides:
            if not isinstance(side, str):
                stack.callback(side.close)
        yield sides


def _stream_framework(port: int, log_file: Path) -> feeds.Side | str:
    try:
        return feeds.StreamFramework(port, log_file)
    except CannotFetch as error:
        return str(error)


@contextmanager
def _sqlite(directory: Path) -> Iterator[list[_Named]]:
    with ExitStack() as stack:
        own = directory / "ours"
        size = partial(feeds.table_bytes, own / _FILE, "record")
        ours = feeds.Ours("", own, size)
        stack.callback(ours.close)
        table = feeds.PlainTable(directory / "plain.db")
        stack.callback(table.close)
        yield [("ours", ours), ("a plain table", table)]


_ENGINES = {"Valkey": _valkey, "SQLite": _sqlite}


@contextmanager
def _filled(
    directory: Path, scale: Scale, engine: str, work: Callable[[feeds.Side], Callable[[], Work]]
) -> Iterator[Sequence[Side]]:
    """All feeds are as full as they can be, so that every write has to make room at some time."""

    def side(name: str, found: feeds.Side | str) -> Side:
        if isinstance(found, str):
            return Side(name, lambda: 0, missing=found)
        found.fan(1, scale.of(feeds.CAP))
        return Side(name, work(found), more=lambda: {"bytes_per_entry": round(found.entry_bytes(), 1)})

    with _ENGINES[engine](directory) as named:
        yield [side(*one) for one in named]


def _posts(side: feeds.Side, posts: int) -> Callable[[], Work]:
    firsts = itertools.count(feeds.CAP + 1, posts)
    return lambda: side.fan(next(firsts), posts)


_DURABILITY = {
    "Valkey": "none, in memory; one connection, loopback",
    "SQLite": "fsync of every post (synchronous=FULL)",
}


def _facts(engine: str) -> dict[str, object]:
    return {
        "feeds": feeds.FEEDS,
        "metadata bytes": len(feeds.METADATA),
        "durability": _DURABILITY[engine],
        "connections": "1 thread, in process; ours without recording",
        "warm-up": "1 round",
    }


def _fan_row(engine: str) -> Row:
    return Row(
        f"feeds, fan-out, {engine}",
        {**_facts(engine), "what is counted": "entries", "batch": f"1 post to {feeds.FEEDS:,} feeds"},
        lambda directory, scale: _filled(directory, scale, engine, lambda side: _posts(side, scale.of(_POSTS))),
        Target(ratio=0.7) if engine == "Valkey" else None,
    )


def _newest_row(engine: str) -> Row:
    return Row(
        f"feeds, newest {feeds.LENGTH} of {feeds.CAP}, {engine}",
        {**_facts(engine), "what is counted": "the wait for every read"},
        lambda directory, scale: _filled(
            directory, scale, engine, lambda side: partial(side.read, scale.of(_READS))
        ),
        Target(ratio=0.33) if engine == "Valkey" else None,
    )


def _many_row(engine: str) -> Row:
    return Row(
        f"feeds, newest {feeds.LENGTH} of {feeds.TOGETHER} feeds at once, {engine}",
        {**_facts(engine), "what is counted": "the wait for every call"},
        lambda directory, scale: _filled(
            directory, scale, engine, lambda side: partial(side.many, scale.of(_TOGETHER_READS))
        ),
    )


ROWS = [make(engine) for engine in _ENGINES for make in (_fan_row, _newest_row, _many_row)]
