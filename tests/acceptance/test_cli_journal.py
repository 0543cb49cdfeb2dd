"""`strandline journal`, on a data directory and on a server."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from strandline.cli import cli
from strandline.cli.failures import guarded


class Commands:
    """Runs commands in this process: the start of a process takes longer than a command."""

    def __init__(self, place: list[str], capture: pytest.CaptureFixture[str]) -> None:
        self._place = place
        self._capture = capture

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, the output and the errors of a command."""
        self._capture.readouterr()
        code = guarded(cli, ["journal", *arguments, *self._place])
        return code, *self._capture.readouterr()

    def good(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments)
        assert (code, err) == (0, ""), arguments
        return out

    def bad(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments)
        assert (code, out) == (1, ""), arguments
        return err

    def parsed(self, *arguments: str):
        return json.loads(self.good(*arguments, "--json"))

    def events(self, *arguments: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.good("show", *arguments).splitlines()]


@pytest.fixture
def commands(place: list[str], capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(place, capfd)


@pytest.fixture
def topic(commands: Commands) -> str:
    name = f"accounts-{uuid.uuid4().hex}"
    assert commands.good("create", name, "--partitions", "2") == f"created {name}\n"
    return name


def test_topics_are_created_and_shown(commands, topic):
    assert commands.parsed("create", topic) == {
        "name": topic, "partitions": 2, "storage": "default", "kafka_topic": None,
    }  # fmt: skip
    assert topic in commands.good("list")
    assert topic in {found["name"] for found in commands.parsed("list")}
    assert "default" in commands.good("show", topic)
    assert "2 partitions" in commands.bad("create", topic, "--partitions", "3")
    assert "journal list" in commands.bad("show", "none-of-them")


def test_events_are_appended_and_shown(commands, topic, tmp_path: Path):
    """One by one or from a file; numbered from the pointer on."""
    said = commands.good(
        "append", topic, "one", '{"n": 1}', "2", "--tag", "x", "--tag", "y", "--metadata", '{"a":1}'
    )
    assert said == "appended 2 events to one, the last is 2\n"
    (tmp_path / "events").write_text('"three"\n\n[4]\n')
    assert commands.parsed("append", topic, "one", "--file", str(tmp_path / "events"))["seq_nr"] == 4
    found = commands.events(topic, "one")
    assert [event["payload"] for event in found] == [{"n": 1}, 2, "three", [4]]
    assert (found[0]["tags"], found[0]["metadata"]) == (["x", "y"], {"a": 1})
    assert [event["seq_nr"] for event in commands.events(topic, "one", "--from", "2", "--limit", "2")] == [2, 3]
    assert [event["seq_nr"] for event in commands.events(topic, "one", "--to", "1")] == [1]
    assert commands.events(topic, "one", "--from", "0") == found
    assert commands.events(topic, "one", "--to", "0") == commands.events(topic, "absent") == []


def test_a_conflict_is_explained(commands, topic):
    commands.good("append", topic, "one", "1", "--expected", "0", "--expire-after", "30d")
    assert "1" in commands.bad("append", topic, "one", "2", "--expected", "0")
    assert len(commands.events(topic, "one")) == 1


def test_deleting_and_purging(commands, topic):
    commands.good("append", topic, "one", "1", "2", "3")
    assert commands.good("delete", topic, "one", "--to", "2", "--yes") == "deleted the events of one up to 2\n"
    shown = commands.parsed("pointer", topic, "one")
    assert (shown["seq_nr"], shown["delete_to"]) == (3, 2)
    assert "3" in commands.good("pointer", topic, "one")
    assert commands.good("purge", topic, "one", "--yes") == "purged one\n"
    assert commands.parsed("pointer", topic, "one")["seq_nr"] is None
    assert "–" in commands.good("pointer", topic, "one")


def test_dead_letters_are_listed(commands, topic):
    assert commands.good("dead", topic) == "no dead letters\n"
    assert commands.parsed("dead", topic) == []


@pytest.mark.parametrize(
    "arguments",
    [("append", "t", "one"), ("append", "t", "one", "1", "--file", "-"), ("delete", "t", "one"), ("show",)],
)
def test_mistakes_are_usage_errors(commands, arguments):
    code, _, err = commands.run(*arguments)
    assert code == 2
    assert err


def test_what_is_not_json_is_refused(commands, topic):
    assert "not JSON" in commands.bad("append", topic, "one", "{")
    assert "not JSON" in commands.bad("append", topic, "one", "1", "--metadata", "{")
