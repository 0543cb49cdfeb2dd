"""Settings: how a section is declared, and where its values come from.

A field of a section is a flag of the command line (`--log-publish-timeout-ms`), else an environment variable
(`STRANDLINE_LOG__PUBLISH_TIMEOUT_MS`), else a TOML key (`[log] publish_timeout_ms`), else its default. Every room
declares its own section; `settings.py` collects the sections.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_type_hints

from strandline.errors import Invalid

ENV_PREFIX = "STRANDLINE_"
_WORDS = {"true": True, "on": True, "false": False, "off": False}


def from_environment(what: str, name: str, env: Mapping[str, str] = os.environ) -> str:
    """The value of the variable that `what` refers to with `env:NAME`."""
    if name not in env:
        raise Invalid(f"{what} refers to the environment variable {name}, which is not set")
    return env[name]


def setting(default: Any, help_text: str, *, minimum: int | None = None) -> Any:
    """A field of a section."""
    return field(default=default, metadata={"help": help_text, "minimum": minimum})


@dataclass(frozen=True)
class Setting:
    """One declared setting, as the CLI and the reference page see it.

    An option of a job is one as well; its section is the name of the job.
    """

    section: str
    name: str
    type: type
    default: Any
    help: str
    minimum: int | None = None

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def env(self) -> str:
        return f"{ENV_PREFIX}{self.section}__{self.name}".upper()

    @property
    def flag(self) -> str:
        return "--" + f"{self.section}-{self.name}".replace("_", "-")


def declared_in(section: str, kind: type) -> Iterator[Setting]:
    """Every setting of a section, in the order of declaration."""
    hints = get_type_hints(kind)
    for item in dataclasses.fields(kind):
        help_text, minimum = item.metadata["help"], item.metadata["minimum"]
        yield Setting(section, item.name, hints[item.name], item.default, help_text, minimum)


class Sections:
    """The base of a frozen dataclass with one field per section; a section is a frozen dataclass of settings."""

    @classmethod
    def declared(cls) -> Iterator[Setting]:
        """Every setting, in the order of declaration."""
        for section, kind in get_type_hints(cls).items():
            yield from declared_in(section, kind)

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        env: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> Self:
        """Settings from a TOML file, an environment and flags (`"log.retention_ms": 5`).

        Invalid if a key is unknown or a value has the wrong type or is too small.
        """
        known = {setting.key: setting for setting in cls.declared()}
        env = os.environ if env is None else env
        given = {key: value for key, value in (flags or {}).items() if value is not None}
        values: dict[str, dict[str, Any]] = {section: {} for section in get_type_hints(cls)}
        for key, value in {**cls.written(file, env), **given}.items():
            if key not in known:
                raise Invalid(f"{key!r} is not a setting{nearest(key, known)}")
            values[known[key].section][known[key].name] = _convert(known[key], value, env)
        return cls(**{section: kind(**values[section]) for section, kind in get_type_hints(cls).items()})

    @classmethod
    def written(cls, file: Path | None = None, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The values that a file and an environment set, by key.

        References to environment variables are not resolved, so that another process can resolve them.
        """
        by_env = {setting.env: setting.key for setting in cls.declared()}
        env = os.environ if env is None else env
        values = {} if file is None else _from_file(file, get_type_hints(cls))
        for name, text in env.items():
            if name in by_env:
                values[by_env[name]] = text
            # Names without a double underscore may not be ours: orchestrators set names like STRANDLINE_PORT.
            elif name.startswith(ENV_PREFIX) and "__" in name:
                raise Invalid(f"{name} is not a setting{nearest(name, by_env)}")
        return values


def _from_file(file: Path, sections: Mapping[str, type]) -> dict[str, Any]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise Invalid(f"there is no settings file {file}; create it or leave --config out") from cause
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise Invalid(f"the settings file {file} cannot be read: {cause}") from cause
    values: dict[str, Any] = {}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise Invalid(f"{file}: {section!r} is outside of a section; write it below a line like [log]")
        if section not in sections:
            raise Invalid(f"{file}: [{section}] is not a section{nearest(section, sections)}")
        values.update({f"{section}.{name}": value for name, value in table.items()})
    return values


def _convert(setting: Setting, value: Any, env: Mapping[str, str]) -> Any:
    shown = f"{value!r:.60}"  # a reference to a variable, not its value, which may be a secret
    if isinstance(value, str) and value.startswith("env:"):
        value = from_environment(setting.key, value.removeprefix("env:"), env)
    if setting.type is int and isinstance(value, str):
        try:
            value = int(value.replace("_", ""))
        except ValueError:
            raise Invalid(f"{setting.key} must be a whole number, not {shown}") from None
    if setting.type is bool and isinstance(value, str):
        if value.lower() not in _WORDS:
            raise Invalid(f"{setting.key} must be true or false, not {shown}")
        value = _WORDS[value.lower()]
    number: Any = value
    if type(value) is not setting.type:
        raise Invalid(f"{setting.key} must be of type {setting.type.__name__}, not {type(value).__name__}")
    if setting.minimum is not None and number < setting.minimum:
        raise Invalid(f"{setting.key} must be at least {setting.minimum}, not {shown}")
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint of an error that refuses an unknown name."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
