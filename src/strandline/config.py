"""Settings, declared once.

A field of a section below is at the same time a TOML key (`[log] publish_timeout_ms`), an environment
variable (`STRANDLINE_LOG__PUBLISH_TIMEOUT_MS`), a command line flag (`--log-publish-timeout-ms`) and an
entry of the reference page. Flag wins over environment, environment over file, file over default.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from strandline.errors import Invalid

ENV_PREFIX = "STRANDLINE_"


def _setting(default: Any, help_text: str, *, minimum: int | None = None) -> Any:
    return field(default=default, metadata={"help": help_text, "minimum": minimum})


@dataclass(frozen=True)
class ServerSettings:
    max_body_bytes: int = _setting(
        50_000_000, "Largest request body, after decompression; more is answered 413.", minimum=1024
    )
    max_header_bytes: int = _setting(65_536, "Largest request head; more is answered 431.", minimum=8192)
    max_streams: int = _setting(1_000, "Event streams open at once on this node; more get 429.", minimum=1)
    stalled_client_ms: int = _setting(
        60_000,
        "How long a client may neither send the rest of its request nor take more of a stream.",
        minimum=100,
    )
    drain_timeout_ms: int = _setting(10_000, "How long a stopping node waits for open requests.", minimum=0)
    threads: int = _setting(16, "Threads for blocking storage calls.", minimum=1)


@dataclass(frozen=True)
class LogSettings:
    max_event_bytes: int = _setting(999_000, "Largest event, after enrichment.", minimum=100)
    max_batch_events: int = _setting(100_000, "Most events in one publish.", minimum=1)
    max_partitions: int = _setting(1_000, "Most partitions of one event type.", minimum=1)
    retention_ms: int = _setting(172_800_000, "Retention of event types that name none (2 days).", minimum=1)
    publish_timeout_ms: int = _setting(
        30_000, "How long a publish waits for the storage; after that its outcome is unknown.", minimum=1
    )
    publish_wait_ms: int = _setting(
        40_000, "How long a publish waits for a timeline switch before it is refused (503).", minimum=1
    )
    max_waiting_publishes: int = _setting(
        10_000, "Publishes of one event type that may wait for a switch; more are refused (503).", minimum=1
    )
    switch_timeout_ms: int = _setting(
        30_000, "How long a switch waits for every node to confirm before it is rolled back.", minimum=100
    )
    purge_interval_ms: int = _setting(60_000, "How often expired records are removed.", minimum=100)
    cleanup_delay_ms: int = _setting(
        60_000, "How long the topic of a removed timeline stays, for reads that have begun.", minimum=0
    )
    poll_interval_ms: int = _setting(
        25, "How often a waiting reader looks for records that other processes wrote.", minimum=1
    )
    max_open_topics: int = _setting(256, "Topic files kept open by one process.", minimum=1)
    max_open_reads: int = _setting(
        64,
        "Kafka consumers that one process keeps ready for readers that go on, with up to 16 MB each.",
        minimum=1,
    )

    @property
    def publish_deadline_ms(self) -> int:
        """After this long a publish has waited for its switch and its storage."""
        return self.publish_wait_ms + self.publish_timeout_ms


@dataclass(frozen=True)
class CatalogSettings:
    url: str = _setting(
        "",
        "Where event types, timelines and subscriptions are kept: `postgresql://user:env:NAME@host:port/database` "
        "with the password in the environment variable NAME; empty: a file in the data directory, for the "
        "processes of one machine. Goes together with `coordination.url`.",
    )


@dataclass(frozen=True)
class CoordinationSettings:
    url: str = _setting(
        "",
        "Where processes find each other: `zookeeper://host:port[,host:port…][/root]`; empty: a file in the data "
        "directory, for the processes of one machine.",
    )
    session_timeout_ms: int = _setting(
        6_000, "After how long without a sign of life a process counts as gone.", minimum=500
    )


@dataclass(frozen=True)
class ArchiveSettings:
    root: str = _setting(
        "", "Where files go: a directory or a URL (`s3://…`, `hdfs://…`); empty: `archive` in the data directory."
    )
    event_types: str = _setting("*", "Event types to archive, with commas between them; `*` is all there are.")
    template: str = _setting(
        "%Y-%m-%d/%H/{event_type}",
        "The directory of an hour of an event type, UTC. Another one for some: `…,orders=shop/%Y-%m-%d/%H/"
        "{event_type}`.",
    )
    time_field: str = _setting(
        "metadata.occurred_at|@timestamp",
        "The field with an event's time, as RFC 3339 or in milliseconds; `@timestamp` is when it was published, "
        "`a.b|@timestamp` that where there is no field. Another one for some: `…,orders=placed_at`.",
    )
    duration_ms: int = _setting(3_600_000, "How long a shift is.", minimum=1_000)
    grace_ms: int = _setting(
        30_000, "How long after its end a shift is finished; shorter than the shift.", minimum=0
    )
    ready_rule: str = _setting(
        "barrier",
        "When an hour is ready. `barrier`: when all records published until its end plus the grace are archived. "
        "`timestamps`: when the newest event time of every partition is past the start of the hour.",
    )
    look_back_hours: int = _setting(24, "How far back hours of a new event type get flags.", minimum=0)
    late: str = _setting(
        "append",
        "What becomes of events for an hour that is flagged already: `append` (and flag it anew), `quarantine` or "
        "`drop`.",
    )
    max_future_ms: int = _setting(
        3_600_000, "Events further ahead of their publication are quarantined.", minimum=0
    )
    max_past_ms: int = _setting(
        31 * 86_400_000, "Events further behind their publication are quarantined.", minimum=0
    )
    max_record_bytes: int = _setting(16_000_000, "Larger records are quarantined.", minimum=1)
    on_unavailable: str = _setting(
        "earliest", "Where to go on when records expired before they were archived: `earliest` or `latest`."
    )
    interval_ms: int = _setting(1_000, "How often the archive looks for something to do.", minimum=10)
    min_records: int = _setting(
        500_000, "As many new records of an event type are collected before the end of the shift.", minimum=1
    )
    max_records: int = _setting(4_000_000, "Most records of an event type collected at once.", minimum=1)
    file_bytes: int = _setting(128_000_000, "How large files may get; small ones are merged up to it.", minimum=1)


@dataclass(frozen=True)
class LogsSettings:
    level: str = _setting("info", "Least severe message to log: debug, info, warning or error.")
    format: str = _setting("auto", "json, console, or auto: console on a terminal, json elsewhere.")


@dataclass(frozen=True)
class Settings:
    """All settings of one process; immutable."""

    server: ServerSettings = field(default_factory=ServerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    coordination: CoordinationSettings = field(default_factory=CoordinationSettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    logs: LogsSettings = field(default_factory=LogsSettings)


@dataclass(frozen=True)
class Setting:
    """One declared setting, as the CLI and the reference page see it."""

    section: str
    name: str
    type: type
    default: Any
    help: str
    minimum: int | None

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def env(self) -> str:
        return f"{ENV_PREFIX}{self.section}__{self.name}".upper()

    @property
    def flag(self) -> str:
        return "--" + f"{self.section}-{self.name}".replace("_", "-")


def declared() -> Iterator[Setting]:
    """Every setting, in the order of declaration."""
    for section, kind in get_type_hints(Settings).items():
        hints = get_type_hints(kind)
        for item in dataclasses.fields(kind):
            yield Setting(
                section,
                item.name,
                hints[item.name],
                item.default,
                item.metadata["help"],
                item.metadata["minimum"],
            )


def load(
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from a TOML file, an environment and flags (`"log.retention_ms": 5`). Invalid on any surprise."""
    known = {setting.key: setting for setting in declared()}
    env = os.environ if env is None else env
    values = {**written(file, env), **{key: value for key, value in (flags or {}).items() if value is not None}}
    for key in values:
        if key not in known:
            raise Invalid(f"{key!r} is not a setting{_nearest(key, known)}")
    return _build({key: _convert(known[key], value, env) for key, value in values.items()})


def written(file: Path | None = None, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a file and an environment say, by key; references to secrets stay references, for another process."""
    by_env = {setting.env: setting.key for setting in declared()}
    env = os.environ if env is None else env
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_from_file(file))
    for name, text in env.items():
        if name in by_env:
            values[by_env[name]] = text
        # Without the double underscore it may be anybody's: orchestrators make up STRANDLINE_PORT and the like.
        elif name.startswith(ENV_PREFIX) and "__" in name:
            raise Invalid(f"{name} is not a setting{_nearest(name, by_env)}")
    return values


def _from_file(file: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise Invalid(f"there is no settings file {file}; create it or leave --config out") from cause
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise Invalid(f"the settings file {file} cannot be read: {cause}") from cause
    values: dict[str, Any] = {}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise Invalid(f"{file}: {section!r} stands outside a section; write it below a line like [log]")
        if section not in (sections := get_type_hints(Settings)):
            raise Invalid(f"{file}: [{section}] is not a section{_nearest(section, sections)}")
        values.update({f"{section}.{name}": value for name, value in table.items()})
    return values


def _convert(setting: Setting, value: Any, env: Mapping[str, str]) -> Any:
    if isinstance(value, str) and value.startswith("env:"):
        value = _referred(setting, value.removeprefix("env:"), env)
    if setting.type is int and isinstance(value, str):
        try:
            value = int(value.replace("_", ""))
        except ValueError:
            raise Invalid(f"{setting.key} must be a whole number, not {value!r:.60}") from None
    number: Any = value
    if type(value) is not setting.type:
        raise Invalid(f"{setting.key} must be of type {setting.type.__name__}, not {value!r:.60}")
    if setting.minimum is not None and number < setting.minimum:
        raise Invalid(f"{setting.key} must be at least {setting.minimum}, not {value}")
    return value


def _referred(setting: Setting, name: str, env: Mapping[str, str]) -> str:
    if name not in env:
        raise Invalid(f"{setting.key} refers to the environment variable {name}, which is not set")
    return env[name]


def _build(values: Mapping[str, Any]) -> Settings:
    sections = {
        section: kind(**{k.split(".")[1]: v for k, v in values.items() if k.split(".")[0] == section})
        for section, kind in get_type_hints(Settings).items()
    }
    return Settings(**sections)


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
