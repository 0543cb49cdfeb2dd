"""Structured logs with the standard library: `log.info("published", extra=fields(event_type="orders", events=3))`.

Logs are text on a terminal and one JSON object per line elsewhere. There is one line per request or batch, never
one per event.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from typing import Any, TextIO

from strandline.clock import to_rfc3339
from strandline.config import setting
from strandline.errors import Invalid

# Made once: `json.dumps` makes an encoder for every call with options.
_encode = json.JSONEncoder(default=str, allow_nan=False).encode
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True)
class LoggingSettings:
    level: str = setting("info", "Least severe message to log: debug, info, warning or error.")
    format: str = setting("auto", "json, console, or auto: console on a terminal, json elsewhere.")


def fields(**values: Any) -> dict[str, Any]:
    """Machine-readable members of one log line, for `extra`."""
    return {"fields": values}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        own = {
            "time": to_rfc3339(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line = {**own, **getattr(record, "fields", {}), **own}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return _encode(line)
        except ValueError:  # NaN and circular references are not JSON
            return json.dumps({key: str(value) for key, value in line.items()})


class ConsoleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        pairs = " ".join(f"{key}={value}" for key, value in getattr(record, "fields", {}).items())
        time = to_rfc3339(int(record.created * 1000))[11:23]
        line = f"{time} {record.levelname.lower():7} {record.getMessage()} {pairs}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream. A deferred record is written together with the next ones, or by `flush`."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record) + self.terminator)
            if not hasattr(record, "deferred"):
                self.flush()
        except Exception:  # noqa: BLE001 - as in the base class: an error of the log does not end its caller
            self.handleError(record)

    def flush(self) -> None:
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            if lines:
                self.stream.write("".join(lines))
            super().flush()
        finally:
            self.release()


def deferred(record: logging.LogRecord) -> logging.LogRecord:
    """Mark a record that may be written some time later, by `write_deferred` at the latest."""
    record.deferred = True
    return record


def write_deferred() -> None:
    for handler in logging.getLogger("strandline").handlers:
        handler.flush()


def configure(settings: LoggingSettings) -> None:
    """Send this process's logs to standard error in the form the settings ask for."""
    if settings.level not in _LEVELS:
        raise Invalid(f"logs.level must be one of {', '.join(_LEVELS)}, not {settings.level!r}")
    if settings.format not in {"auto", "json", "console"}:
        raise Invalid(f"logs.format must be auto, json or console, not {settings.format!r}")
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    handler = LineHandler(sys.stderr)
    handler.setFormatter(ConsoleFormatter() if console else JsonFormatter())
    root = logging.getLogger("strandline")
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[settings.level])
    root.propagate = False
