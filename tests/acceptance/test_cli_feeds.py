"""`strandline feeds`, on a data directory and on a server."""

from __future__ import annotations

import json
import uuid

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
        command, *rest = arguments
        code = guarded(cli, ["feeds", command, *self._place, *rest])
        return code, *self._capture.readouterr()

    def good(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments)
        assert (code, err) == (0, ""), arguments
        return out

    def parsed(self, *arguments: str):
        command, *rest = arguments
        return json.loads(self.good(command, "--json", *rest))


@pytest.fixture
def commands(place: list[str], capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(place, capfd)


@pytest.fixture
def feed(commands: Commands) -> str:
    name = f"user:{uuid.uuid4().hex}"
    assert commands.good("set", name) == f"set {name} to 0 entries\n"
    return name


def test_entries_are_appended_and_shown(commands, feed):
    assert commands.good("show", feed) == "no entries\n"
    assert commands.good("append", "9223372036854775807", feed, "nobody", "--metadata", "héllo") == (
        "appended 9223372036854775807 to 1 feed; 1 feed does not exist\n"
    )
    assert commands.parsed("append", "--metadata-base64", "AP8=", "--", "-5", feed) == {"accepted": 1}
    assert commands.good("append", "--", "-5", feed, feed) == "appended -5 to 1 feed\n"
    shown = commands.good("show", feed)
    assert "9223372036854775807" in shown
    assert "héllo" in shown
    assert "00 ff" in shown
    assert commands.parsed("show", feed) == {
        "entries": [{"id": "9223372036854775807", "metadata": "aMOpbGxv"}, {"id": "-5", "metadata": "AP8="}]
    }
    assert [one["id"] for one in commands.parsed("show", feed, "--offset", "1")["entries"]] == ["-5"]
    assert commands.parsed("show", feed, "--since", "9223372036854775807")["entries"][0]["id"] == "-5"


def test_entries_are_merged_unmerged_and_deleted(commands, feed):
    assert commands.good("merge", feed, "1", "2", "3") == f"merged 3 entries into {feed}\n"
    assert commands.parsed("unmerge", feed, "2") == {"accepted": 1}
    assert commands.good("delete", "3", feed, "--yes") == "deleted 3 from 1 feed\n"
    assert commands.parsed("show", feed) == {"entries": [{"id": "1"}]}
    assert commands.good("merge", "nobody", "1") == "the feed nobody does not exist\n"


def test_a_feed_is_dropped_and_missing_then(commands, feed):
    assert commands.good("drop", feed, "--yes") == f"dropped {feed}\n"
    code, out, err = commands.run("show", feed)
    assert (code, out) == (1, "")
    assert "does not exist" in err


def test_old_operations_are_listed_as_dead_letters(commands, feed):
    code, _, err = commands.run("append", "1", feed, "--operation-ms", "1000")
    assert code == 1
    assert "dead letter" in err
    letters = commands.parsed("dead", "--limit", "100000")
    assert letters[-1]["operation"]["feeds"] == [feed]
    assert "append" in commands.good("dead")


def test_wrong_arguments(commands, feed):
    for arguments in (
        ("append", "9223372036854775808", feed),
        ("append", "x", feed),
        ("append", "1"),
        ("append", "1", feed, "--metadata-base64", "!"),
        ("append", "1", feed, "--metadata", "a", "--metadata-base64", "YQ=="),
        ("merge", feed),
        ("append", "1", feed, "--metdata", "x"),
        ("show", feed, "--offset", "-1"),
        ("show", feed, "--since", "1", "--length", "20"),
        ("show", feed, "--offset", "0", "--since", "1"),
    ):
        assert commands.run(*arguments)[0] == 2, arguments
