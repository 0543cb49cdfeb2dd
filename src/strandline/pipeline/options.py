"""The options of `format("strandline")`, checked before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from strandline.clock import system_clock
from strandline.config import nearest
from strandline.errors import Invalid, NotFound
from strandline.log.cursors import OnUnavailable
from strandline.pipeline.columns import NAMES
from strandline.settings import Settings

if TYPE_CHECKING:
    from strandline.platform import Platform

_HOME = frozenset({"data", "config"})
_READ = _HOME | {"event_types", "columns", "on_unavailable"}
_STREAM = _READ | {"starting", "max_records_per_batch"}
_BATCH = _READ | {"from", "to"}
# Spark passes its own options of a sink, too.
_SPARKS = frozenset({"checkpointlocation"})
_PLACES = {_STREAM - _READ: "streams", _BATCH - _READ: "batch reads"}
_WRITE = _HOME | {"event_type", "add_eid", "write_id"}


@dataclass(frozen=True)
class Home:
    """Where the platform is: its absolute data directory, and its settings as they were written.

    It is sent to workers. They resolve references to the environment (`env:NAME`) themselves.
    """

    data: Path
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Home:
        """From `data` and `config`, else STRANDLINE_DATA and STRANDLINE_CONFIG, else `./data`."""
        named = options if _HOME & options.keys() else _from_environment()
        file = Path(named["config"]).absolute() if "config" in named else None
        data = Path(named["data"]).absolute() if "data" in named or file is None else file.parent
        if file is None and (data / "strandline.toml").exists():
            file = data / "strandline.toml"
        home = cls(data, Settings.written(file))
        if home.of_one_machine and not data.is_dir():
            raise NotFound(f'there is no data directory {data}; name it with .option("data", …)')
        return home

    @property
    def of_one_machine(self) -> bool:
        """Whether the catalog is a file, for the processes of one machine."""
        return not self.settings.get("catalog.url")

    def open(self) -> Platform:
        # Imported here: it loads all rooms, and many of Spark's processes never need them.
        from strandline.platform import Platform  # noqa: PLC0415 - slow to load

        return Platform(self.data, Settings.load(flags=self.settings), system_clock())


def _from_environment() -> dict[str, str]:
    found = {name: os.environ.get(f"STRANDLINE_{name.upper()}") for name in _HOME}
    named = {name: value for name, value in found.items() if value}
    return named or {"data": "data"}


@dataclass(frozen=True)
class ReadOptions:
    """What to read. `start` and `end` are BEGIN, END, a time, or cursors as JSON; a stream has no end."""

    home: Home
    event_types: tuple[str, ...]
    columns: tuple[str, ...] = NAMES
    start: str = "BEGIN"
    end: str = "END"
    max_records: int | None = None
    on_unavailable: OnUnavailable = "fail"

    @classmethod
    def of_stream(cls, options: Mapping[str, str]) -> ReadOptions:
        return cls._of(options, _STREAM, start="starting")

    @classmethod
    def of_batch(cls, options: Mapping[str, str]) -> ReadOptions:
        return cls._of(options, _BATCH, start="from")

    @classmethod
    def _of(cls, options: Mapping[str, str], known: frozenset[str], start: str) -> ReadOptions:
        given = _checked(options, known)
        return cls(
            Home.of(given),
            _event_types(given),
            columns_of(given),
            given.get(start, "BEGIN"),
            given.get("to", "END"),
            _max_records(given),
            _on_unavailable(given),
        )


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """The requested columns; all columns by default."""
    chosen = tuple(part.strip() for part in options.get("columns", ",".join(NAMES)).split(","))
    if unknown := [name for name in chosen if name not in NAMES]:
        raise Invalid(f"there is no column {unknown[0]!r}; columns are {', '.join(NAMES)}")
    if len({*chosen}) < len(chosen):
        raise Invalid("columns names a column twice")
    return chosen


@dataclass(frozen=True)
class WriteOptions:
    """Where to publish. Every row without an `eid` gets one that is derived from `write_id`."""

    home: Home
    event_type: str
    add_eid: bool = True
    write_id: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        given = _checked(options, _WRITE, ignored=_SPARKS)
        if not given.get("event_type", "").strip():
            raise Invalid('event_type is missing; name it with .option("event_type", "orders")')
        add_eid = given.get("add_eid", "true").lower()
        if add_eid not in {"true", "false"}:
            raise Invalid(f"add_eid must be true or false, not {add_eid!r:.60}")
        return cls(Home.of(given), given["event_type"].strip(), add_eid == "true", given.get("write_id"))


def _checked(
    options: Mapping[str, str], known: frozenset[str], ignored: frozenset[str] = frozenset()
) -> dict[str, str]:
    """The options by their names in lower case. Raises Invalid for an option that would have no effect."""
    given = {name.lower(): value for name, value in options.items() if name.lower() not in ignored}
    for name in given.keys() - known:
        for others, where in _PLACES.items():
            if name in others:
                raise Invalid(f"{name!r} is an option of {where} only")
        raise Invalid(f"{name!r} is not an option{nearest(name, known)}")
    return given


def _event_types(options: Mapping[str, str]) -> tuple[str, ...]:
    names = [part.strip() for part in options.get("event_types", "").split(",")]
    if not all(names):
        raise Invalid('event_types is missing or has an empty name; use .option("event_types", "orders,returns")')
    return tuple(dict.fromkeys(names))


def _max_records(options: Mapping[str, str]) -> int | None:
    text = options.get("max_records_per_batch")
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise Invalid(f"max_records_per_batch must be a whole number of at least 1, not {text!r:.60}")
    return None if text is None else int(text)


def _on_unavailable(options: Mapping[str, str]) -> OnUnavailable:
    text = options.get("on_unavailable", "fail").lower()
    if text not in get_args(OnUnavailable):
        raise Invalid(f"on_unavailable must be fail, earliest or latest, not {text!r:.60}")
    return cast("OnUnavailable", text)
