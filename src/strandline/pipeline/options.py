"""The options of `format("strandline")`, checked before anything is opened."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import strandline
from strandline import config
from strandline.errors import Invalid, NotFound
from strandline.pipeline.columns import NAMES
from strandline.pipeline.positions import OnUnavailable
from strandline.platform import Platform

_HOME = frozenset({"data", "config"})
_READ = _HOME | {"event_types", "columns", "on_unavailable"}
_STREAM = _READ | {"starting", "max_records_per_batch"}
_BATCH = _READ | {"from", "to"}
_ALL = _STREAM | _BATCH


@dataclass(frozen=True)
class Home:
    """Where the platform's data directory and settings are; absolute, so that it means the same everywhere."""

    data: Path
    settings_file: Path | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Home:
        """From `data` and `config`, else STRANDLINE_DATA and STRANDLINE_CONFIG, else `./data`."""
        named = options if _HOME & options.keys() else _from_environment()
        file = Path(named["config"]).absolute() if "config" in named else None
        data = Path(named["data"]).absolute() if "data" in named or file is None else file.parent
        return cls(data, file or _existing(data / "strandline.toml"))

    def open(self) -> Platform:
        """The rooms; nothing is made where nothing is, so that a typing mistake is noticed."""
        if not self.data.is_dir():
            raise NotFound(f'there is no data directory {self.data}; name it with .option("data", …)')
        return strandline.open(self.data, settings=config.load(self.settings_file))


def _from_environment() -> dict[str, str]:
    found = {name: os.environ.get(f"STRANDLINE_{name.upper()}") for name in _HOME}
    named = {name: value for name, value in found.items() if value}
    return named or {"data": "data"}


def _existing(file: Path) -> Path | None:
    return file if file.exists() else None


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
        given = {name.lower(): value for name, value in options.items()}
        _refuse_unknown(given, known)
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
    """The columns asked for, all of them if none is named."""
    chosen = tuple(part.strip() for part in options.get("columns", ",".join(NAMES)).split(","))
    if strangers := [name for name in chosen if name not in NAMES]:
        raise Invalid(f"there is no column {strangers[0]!r}; columns are {', '.join(NAMES)}")
    if len({*chosen}) < len(chosen):
        raise Invalid("columns names one twice")
    return chosen


def _refuse_unknown(options: Mapping[str, str], known: frozenset[str]) -> None:
    for name in options.keys() - known:
        if name in _ALL:
            raise Invalid(f"{name!r} is an option of {'streams' if name in _STREAM else 'batch reads'} only")
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise Invalid(f"{name!r} is not an option{f'; did you mean {close[0]!r}?' if close else ''}")


def _event_types(options: Mapping[str, str]) -> tuple[str, ...]:
    names = [part.strip() for part in options.get("event_types", "").split(",")]
    if not all(names):
        raise Invalid('name what to read: .option("event_types", "orders,returns")')
    return tuple(dict.fromkeys(names))


def _max_records(options: Mapping[str, str]) -> int | None:
    text = options.get("max_records_per_batch")
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise Invalid(f"max_records_per_batch must be a whole number from 1 on, not {text!r:.60}")
    return int(text)


def _on_unavailable(options: Mapping[str, str]) -> OnUnavailable:
    text = options.get("on_unavailable", "fail").lower()
    for choice in get_args(OnUnavailable):
        if text == choice:
            return choice  # type: ignore[no-any-return]  # one of the literal's values
    raise Invalid(f"on_unavailable must be fail, earliest or latest, not {text!r:.60}")
