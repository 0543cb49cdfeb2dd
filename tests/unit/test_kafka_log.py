"""Lines of the Kafka driver in our log."""

from __future__ import annotations

import logging

import pytest

from strandline.engine import kafka


def log_lines(caplog: pytest.LogCaptureFixture, *lines: str) -> list[str]:
    """What remains in the log of these lines of the driver."""
    driver = logging.getLogger("strandline.engine.kafka.driver")
    for line in lines:
        driver.error("FAIL [%s] %s", *line.split(" ", 1))
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def _a_new_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka.time, "monotonic", lambda: 1e9)
    log_filter = next(one for one in logging.getLogger("strandline.engine.kafka.driver").filters)
    monkeypatch.setattr(log_filter, "_passed", {})


def test_attempts_to_connect_are_logged_once(caplog):
    """Brokers that are down filled the log with several lines a second; every broker is named once a minute."""
    found = log_lines(
        caplog,
        "rdkafka#producer-1 k1:9092: refused (after 0ms in state CONNECT)",
        "rdkafka#producer-2 k1:9092: refused (after 12ms in state CONNECT)",
        "rdkafka#producer-1 k2:9092: refused (after 0ms in state CONNECT)",
    )
    assert [line.split()[2] for line in found] == ["k1:9092:", "k2:9092:"]


def test_a_failure_that_lasts_is_logged_again(caplog, monkeypatch):
    """A minute later the same line is new."""
    line = "rdkafka#producer-1 k1:9092: refused (after 0ms in state CONNECT)"
    log_lines(caplog, line, line)
    monkeypatch.setattr(kafka.time, "monotonic", lambda: 1e9 + 60)
    assert len(log_lines(caplog, line, line)) == 2
