"""Log lines: one JSON object per line, or one readable line."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from strandline.errors import Invalid
from strandline.logging_setup import (
    ConsoleFormatter,
    JsonFormatter,
    LineHandler,
    LoggingSettings,
    configure,
    deferred,
    fields,
    write_deferred,
)


def record(text: str, /, *arguments: object, exc_info: object = None, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("strandline.log", logging.WARNING, __file__, 1, text, arguments, exc_info)
    made.created = 1_700_000_000.123
    made.__dict__.update(fields(**extra) if extra else {})
    return made


def failure() -> object:
    try:
        int("broken")
    except ValueError:
        return sys.exc_info()


@pytest.fixture
def restored():
    """Restores the package's logger after the test."""
    root = logging.getLogger("strandline")
    before = (root.handlers[:], root.level, root.propagate)
    yield root
    root.handlers[:], root.level, root.propagate = before


def test_a_json_line_has_time_level_message_and_fields():
    """Fields of any type are members of the object."""
    line = JsonFormatter().format(record("published %d", 3, event_type="orders", where={1}))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "warning",
        "logger": "strandline.log",
        "message": "published 3",
        "event_type": "orders",
        "where": "{1}",
    }


def test_a_json_line_stays_one_line_of_json_whatever_is_logged():
    """Line breaks, lone surrogates, NaN and infinity are valid input."""
    line = JsonFormatter().format(record("a\nb\ud800", ratio=float("nan"), far=float("inf")))
    assert "\n" not in line
    line.encode()
    assert json.loads(line, parse_constant=pytest.fail)["message"] == "a\nb\ud800"


def test_fields_cannot_hide_what_every_line_has():
    """A field called `level` or `message` does not replace the line's own."""
    found = json.loads(JsonFormatter().format(record("hello", level="high", message="other")))
    assert (found["level"], found["message"]) == ("warning", "hello")


def test_a_json_line_carries_the_exception():
    """The traceback is one member."""
    found = json.loads(JsonFormatter().format(record("failed", exc_info=failure())))
    assert found["exception"].endswith("'broken'")


def test_a_console_line_is_short():
    """A line has the time of day, the level, the message and the fields as pairs."""
    line = ConsoleFormatter().format(record("published", event_type="orders", events=3))
    assert line == "22:13:20.123 warning published event_type=orders events=3"
    assert ConsoleFormatter().format(record("plain")) == "22:13:20.123 warning plain"


def test_a_console_line_is_followed_by_the_traceback():
    """The traceback is printed below the line."""
    line, *trace = ConsoleFormatter().format(record("failed", exc_info=failure())).splitlines()
    assert line == "22:13:20.123 warning failed"
    assert trace[-1].startswith("ValueError: ")


@pytest.mark.parametrize(
    ("form", "terminal", "kind"),
    [
        ("auto", True, ConsoleFormatter),
        ("auto", False, JsonFormatter),
        ("json", True, JsonFormatter),
        ("console", False, ConsoleFormatter),
    ],
)
def test_the_form_follows_the_settings(monkeypatch, restored, form, terminal, kind):
    """`auto` is the console form on a terminal and JSON elsewhere."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    configure(LoggingSettings(format=form, level="warning"))
    configure(LoggingSettings(format=form, level="warning"))
    logging.getLogger("strandline.anything").info("quiet")
    logging.getLogger("strandline.anything").warning("loud")
    assert type(restored.handlers[0].formatter) is kind
    assert len(stream.getvalue().splitlines()) == 1
    assert "loud" in stream.getvalue()


@pytest.mark.parametrize("settings", [LoggingSettings(level="loud"), LoggingSettings(format="xml")])
def test_unknown_levels_and_forms_are_refused(restored, settings):
    """The message lists the valid values."""
    with pytest.raises(Invalid, match=r"must be .*(debug|json)"):
        configure(settings)


def test_deferred_lines_are_written_with_the_next_one():
    """The lines keep their order, and need one write."""
    written: list[str] = []
    stream = io.StringIO()
    stream.write = written.append
    handler = LineHandler(stream)
    handler.handle(deferred(record("first")))
    handler.handle(deferred(record("second")))
    assert written == []
    handler.handle(record("third"))
    assert written == ["first\nsecond\nthird\n"]


def test_deferred_lines_are_written_when_asked_for(restored):
    """Nothing is written twice."""
    stream = io.StringIO()
    restored.handlers[:] = [LineHandler(stream)]
    restored.handlers[0].handle(deferred(record("first")))
    write_deferred()
    write_deferred()
    assert stream.getvalue() == "first\n"
