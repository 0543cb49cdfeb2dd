"""Commands that remove something for good ask first, and need --yes where nobody can answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from strandline.cli import cli, failures

REMOVING = {"delete", "drop", "purge", "remove", "cancel"}
NUMBERS = (click.IntRange,)


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found += _commands(command, (*path, name))
        elif name in REMOVING:
            found.append((*path, name))
    return found


def _call(path: tuple[str, ...], data: Path) -> list[str]:
    """The arguments of a complete call, without --yes."""
    command: Any = cli
    for name in path:
        command = command.get_command(click.Context(command), name)
    values = {}
    for parameter in command.params:
        if parameter.required:
            values[parameter] = "1" if isinstance(parameter.type, NUMBERS) else "some"
    options = [
        text for one, value in values.items() if isinstance(one, click.Option) for text in (one.opts[0], value)
    ]
    arguments = [value for one, value in values.items() if isinstance(one, click.Argument)]
    return [*path, *arguments, *options, "--data", str(data)]


COMMANDS = _commands(cli)


def test_the_walk_finds_commands():
    """The tests below see the groups of all rooms."""
    assert {group for group, _ in COMMANDS} == {
        "event-types",
        "feeds",
        "journal",
        "schedule",
        "storages",
        "subscriptions",
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_is_removed_unasked(path, as_json, tmp_path, monkeypatch, capsys):
    """Without a terminal, and with --json on one, the exit code is 2 and the error names --yes."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: as_json, raising=False)
    assert failures.guarded(cli, [*_call(path, tmp_path / "absent"), *["--json"] * as_json]) == 2
    text = capsys.readouterr().err
    detail = json.loads(text)["error"]["detail"] if as_json else text
    assert "not confirmed" in detail
    assert "add --yes" in detail


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_yes_is_an_answer(path, tmp_path, capsys):
    """With --yes the command goes on, here until it finds that there is no data directory."""
    assert failures.guarded(cli, [*_call(path, tmp_path / "absent"), "--yes"]) == 1
    assert "there is no data directory" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "said"), [("n\n", "aborted before it was done"), ("y\n", "no data directory")])
def test_a_terminal_is_asked(answer, said, tmp_path, monkeypatch, capsys):
    """On a terminal the command asks, and stops if the answer is no."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click.termui, "visible_prompt_func", lambda _: answer.strip())
    assert failures.guarded(cli, ["event-types", "delete", "orders", "--data", str(tmp_path / "absent")]) == 1
    assert said in capsys.readouterr().err
