"""`strandline schedule`, on a data directory and on a server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from services import DEADLINE_S, STRANDLINE, environment, until
from strandline.cli import cli
from strandline.cli.failures import guarded

HOUR_MS = 3_600_000


class Commands:
    """Runs commands in this process: the start of a process takes longer than a command."""

    def __init__(self, place: list[str], capture: pytest.CaptureFixture[str]) -> None:
        self._place = place
        self._capture = capture

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, the output and the errors of a command."""
        self._capture.readouterr()
        code = guarded(cli, ["schedule", *arguments, *self._place])
        return code, *self._capture.readouterr()

    def good(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments)
        assert (code, err) == (0, ""), arguments
        return out

    def parsed(self, *arguments: str):
        return json.loads(self.good(*arguments, "--json"))


@pytest.fixture
def commands(place: list[str], capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(place, capfd)


@pytest.fixture
def bodies(tmp_path: Path) -> Callable[[str], str]:
    """A function that writes a file with bodies and returns its path."""

    def write(text: str) -> str:
        (tmp_path / "bodies").write_text(text)
        return str(tmp_path / "bodies")

    return write


@pytest.fixture
def name(commands: Commands) -> str:
    """A schedule without messages."""
    made = f"cli-{uuid.uuid4().hex}"
    commands.good("create", made, "--max-attempts", "1")
    return made


def test_a_schedule_lives_from_create_to_delete(commands):
    """Create, list, show, update and delete, as text and as JSON. Create is idempotent."""
    name = f"cli-{uuid.uuid4().hex}"
    made = commands.parsed("create", name, "--max-lease", "10m", "--dedupe", "1h")
    assert (made["name"], made["max_lease_ms"], made["dedupe_ms"], made["buckets"]) == (
        name,
        600_000,
        HOUR_MS,
        1024,
    )
    assert f"created {name}" in commands.good("create", name, "--max-lease", "10m", "--dedupe", "1h")
    assert commands.parsed("update", name, "--max-attempts", "3") == {**made, "max_attempts": 3}
    assert commands.parsed("show", name)["max_attempts"] == 3
    assert re.search(r"max_lease +10m", commands.good("show", name))
    assert name in commands.good("list")
    assert name in [one["name"] for one in commands.parsed("list")]
    assert commands.parsed("delete", name, "--yes") == {"deleted": name}
    assert name not in commands.good("list")


def test_a_message_is_put_moved_and_cancelled(commands, name):
    """The owner moves and deletes it; its body is shown to its group only."""
    (put,) = commands.parsed("put", name, '{"user": 7}', "--id", "user-7", "--group", "signup", "--in", "1d")
    assert (put["id"], put["status"]) == ("user-7", "ok")
    assert "put" in commands.good(
        "put", name, '{"user": 7}', "--id", "user-7", "--group", "signup"
    )  # the same one
    shown = commands.parsed("show", name, "user-7", "--group", "signup")
    assert (shown["body"], shown["due_ms"]) == ({"user": 7}, put["at_ms"])
    assert "body" not in commands.parsed("show", name, "user-7")
    (moved,) = commands.parsed("move", name, "user-7", "--group", "signup", "--at", "2024-05-01T12:00:00Z")
    assert moved["at_ms"] == 1_714_564_800_000
    assert "cancelled" in commands.good("cancel", name, "user-7", "--group", "signup", "--yes")
    assert "no messages" in commands.good("messages", name)


def test_messages_are_put_from_a_file_and_listed(commands, name, bodies):
    """One body per line; lists are filtered and limited."""
    lines = bodies("".join(f'{{"n": {n}}}\n' for n in range(7)))
    answers = commands.parsed("put", name, "--file", lines, "--in", "1h", "--group", "g")
    assert [answer["status"] for answer in answers] == ["ok"] * 7
    assert len(commands.parsed("messages", name, "--group", "g", "--state", "waiting")) == 7
    assert commands.parsed("messages", name, "--state", "available") == []
    assert "only the first 3 messages are shown" in commands.good("messages", name, "--limit", "3")


def test_the_load_ahead_is_counted(commands, name, bodies):
    """In total and by steps, with a bar for people."""
    commands.good("put", name, "--file", bodies("1\n2\n"), "--in", "90m")
    commands.good("put", name, "0")
    total = commands.parsed("counts", name)
    assert (total["total"], total["waiting"], total["available"]) == (3, 2, 1)
    ahead = commands.parsed("counts", name, "--step", "1h")
    assert "steps" not in total
    assert len(ahead["steps"]) == 24
    assert {*ahead["steps"][0]} == {"from", "total", "waiting", "processing"}
    assert sum(step["waiting"] for step in ahead["steps"]) == 2
    assert "█" in commands.good("counts", name, "--step", "1h")
    assert commands.parsed("counts", name, "--from", "0", "--to", "10")["total"] == 0
    assert "288000000000000" in commands.good("counts", name, "--step", "10000000h"), "after the year 9999"
    assert commands.parsed("counts", name, "--step", "87600000h")["total"] == total["total"]


def test_due_messages_are_consumed(commands, name, bodies):
    """Each is a line of JSON, and deleted after it is printed; --release keeps it."""
    commands.good("put", name, "--file", bodies('"a"\n"b"\n"c"\n'))
    (line,) = commands.good("consume", name, "--limit", "1", "--release", "1h").splitlines()
    kept = json.loads(line)
    assert kept["delivery_count"] == 1
    # One that was pushed to the first command and not printed would be dead now.
    rest = [
        json.loads(line)["body"]
        for line in commands.good("consume", name, "--limit", "2", "--follow").splitlines()
    ]
    assert sorted([kept["body"], *rest]) == ["a", "b", "c"]
    assert commands.good("consume", name, "--wait", "10ms") == ""
    assert [one["id"] for one in commands.parsed("messages", name)] == [kept["id"]]


def test_follow_waits_for_messages_until_ctrl_c(commands, name, place):
    """A message that comes due later is printed; Ctrl-C ends the command without an error."""
    command = [STRANDLINE, "schedule", "consume", name, "--follow", *place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as consumer:
        commands.good("put", name, '"later"', "--in", "50ms")
        assert json.loads(consumer.stdout.readline())["body"] == "later"
        until(lambda: commands.parsed("counts", name)["total"] == 0, "the deletion")
        consumer.send_signal(signal.SIGINT)
        rest = consumer.communicate(timeout=DEADLINE_S)
    assert (consumer.returncode, *rest) == (0, b"", b"")


def test_dead_messages_are_listed_and_put_back(commands, name):
    """By id, or all of a group; NAME.dead is their schedule."""
    assert "no dead messages" in commands.good("dead", name)
    for ident in ("one", "two", "three"):
        commands.good("put", name, "0", "--id", ident)
    commands.good("consume", name, "--release", "10ms", "--limit", "3")
    # They are due again, and were delivered as often as the schedule allows.
    until(
        lambda: commands.good("consume", name, "--wait", "10ms") == "" and len(commands.parsed("dead", name)) == 3
    )
    assert "put back" in commands.good("put-back", name, "one")
    assert "cancelled" in commands.good("cancel", f"{name}.dead", "two", "--yes")
    assert [one["id"] for one in commands.parsed("put-back", name, "--all")] == ["three"]
    assert "no dead messages" in commands.good("dead", name)
    assert commands.parsed("counts", name)["available"] == 2


def test_what_goes_wrong_is_one_line(commands, name):
    """An error is one line that says what to do next. The exit code is 1, or 2 for wrong usage."""
    commands.good("put", name, "1", "--id", "taken", "--group", "other", "--in", "1h")
    for arguments, code in [
        (["show", "nothing"], 1),
        (["show", name, "nothing"], 1),
        (["show", name, "taken", "--group", "mine"], 1),
        (["put", "nothing", "1"], 1),
        (["put", name, "not json"], 1),
        (["put", name, "2", "--id", "taken"], 1),
        (["put", name, "2", "--id", ""], 1),
        (["put", name, "2", "--in", "1000w"], 1),
        (["cancel", name, "taken", "--yes"], 1),
        (["cancel", name, "nothing", "--yes"], 1),
        (["move", name, "taken", "--in", "1h"], 1),
        (["create", name, "--buckets", "3"], 1),
        (["create", "bad name"], 1),
        (["consume", name, "--lease", "1ms"], 1),
        (["consume", "nothing"], 1),
        (["counts", name, "--from", "0", "--to", "4000000000000", "--step", "1ms"], 1),
        (["dead", "nothing"], 1),
        (["put-back", name, "taken"], 1),
        (["delete", "nothing", "--yes"], 1),
        (["put", name], 2),
        (["put", name, "1", "--at", "tomorrow"], 2),
        (["put", name, "1", "--at", "0", "--in", "1h"], 2),
        (["move", name, "taken"], 2),
        (["put-back", name], 2),
        (["update", name], 2),
        (["messages", name, "--group", "a", "--consumer", "b"], 2),
    ]:
        exit_code, out, err = commands.run(*arguments)
        (line,) = err.splitlines()
        assert (exit_code, out, line[:7]) == (code, "", "error: "), arguments
        assert "; " in line, arguments
        assert "event-types" not in line, arguments


def test_some_items_can_fail(commands, name):
    """The others succeed; the exit code is 1 and every item has its result."""
    commands.good("put", name, "1", "--id", "here", "--in", "1h")
    code, out, _ = commands.run("cancel", name, "here", "gone", "--yes", "--json")
    assert code == 1
    assert [answer.get("code") for answer in json.loads(out)] == [None, "not_found"]
