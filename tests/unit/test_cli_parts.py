"""Parts of the command line that need no process: input, counting, durations, errors."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from strandline.cli import cli, failures, inputs, output, up
from strandline.cli.batch_publisher import Tally, feed
from strandline.cli.inputs import Line
from strandline.errors import NotFound, OutcomeUnknown, TooLarge, Unavailable
from strandline.log.model import OUTCOME_UNKNOWN, ItemResult, PublishReport


class Answers:
    """A fake log that returns or raises one prepared answer per publish."""

    def __init__(self, *answers) -> None:
        self._answers = list(answers)
        self.published: list[list[bytes]] = []

    def publish(self, _: str, events: list[bytes]) -> PublishReport:
        self.published.append(events)
        answer = self._answers.pop(0)
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        return answer


def fed(log: Answers, *batches: list[Line], stop_on_error: bool = True) -> Tally:
    tally = Tally("orders")
    feed(log, batches, tally, stop_on_error=stop_on_error, advance=lambda _: None)
    return tally


TWO = [Line(1, b"{}"), Line(3, b"{}")]
MORE = [Line(4, b"{}"), Line(5, b"{}")]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"", []),
        (b"\n \n", []),
        (b'{"a":1}\n{"b":2}', [(1, b'{"a":1}'), (2, b'{"b":2}')]),
        (b'\n{"a":1}\r\n\n  {"b":2}  \n', [(2, b'{"a":1}'), (4, b'{"b":2}')]),
        (b'[{"a":1}, {"b":\n2}]', [(1, b'{"a":1}'), (2, b'{"b":\n2}')]),
        (b"\n\n[\n{}\n]\n", [(1, b"{}")]),
        (b"nonsense\n[]\n", [(1, b"nonsense"), (2, b"[]")]),
    ],
)
def test_lines_and_arrays_are_told_apart(text: bytes, events: list):
    """Input that starts with a bracket is an array; all other input is lines."""
    assert list(inputs.events(io.BytesIO(text))) == events


def test_batches_are_limited_in_number_and_in_bytes():
    """A batch of large events has fewer events. An event over the limit is a batch of its own."""
    small, large = b"x", b"x" * (5 << 20)
    sizes = [len(batch) for batch in inputs.batches([Line(n, small) for n in range(7)], 3)]
    assert sizes == [3, 3, 1]
    mixed = [small, large, large, small, large * 3, small]
    sizes = [len(batch) for batch in inputs.batches([Line(n, text) for n, text in enumerate(mixed)], 100)]
    assert sizes == [2, 2, 1, 1]


def test_every_event_is_counted_once():
    """Published, failed, aborted and unknown events add up to the events that were read."""
    partly = PublishReport(
        2, (ItemResult("submitted", "publishing"), ItemResult("failed", "publishing", OUTCOME_UNKNOWN))
    )
    refused = PublishReport(2, (ItemResult("aborted", "none"), ItemResult("failed", "validating", "bad")))
    log = Answers(PublishReport(2), partly, refused, OutcomeUnknown("lost"), TooLarge("too much"))
    tally = fed(log, TWO, MORE, TWO, MORE, TWO, stop_on_error=False)
    assert (tally.published, tally.failed, tally.aborted, tally.unknown) == (3, 2, 2, 3)
    assert [failure.line for failure in tally.failures] == [5, 3, 4, 1]
    assert tally.incomplete == [(4, 5), (1, 3), (4, 5), (1, 3)]
    assert not tally.clean


def test_a_failed_batch_stops_the_feed():
    """Later batches are not published, and `next_line` is the first line of the failed batch."""
    log = Answers(PublishReport(2), OutcomeUnknown("lost"))
    tally = fed(log, TWO, MORE, TWO)
    assert len(log.published) == 2
    assert tally.next_line == 4


@pytest.mark.parametrize("error", [NotFound("no"), Unavailable("no")])
def test_what_every_batch_would_meet_is_raised(error: Exception):
    """An unknown name or an unavailable server ends the feed, even with `stop_on_error=False`."""
    with pytest.raises(type(error)):
        fed(Answers(error), TWO, MORE, stop_on_error=False)


def test_ctrl_c_waits_for_the_batch_under_way():
    """The current batch is counted, the next one is not started, and the signal handler is restored."""

    def interrupted() -> PublishReport:
        os.kill(os.getpid(), signal.SIGINT)
        return PublishReport(2)

    before = signal.getsignal(signal.SIGINT)
    tally = fed(Answers(interrupted), TWO, MORE)
    assert (tally.published, tally.interrupted, tally.next_line) == (2, True, 4)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_not_wait():
    """A second Ctrl-C interrupts the current batch."""

    def interrupted() -> PublishReport:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        return PublishReport(2)

    tally = fed(Answers(interrupted), TWO, MORE)
    assert (tally.published, tally.interrupted, tally.next_line) == (0, True, 1)


@pytest.mark.parametrize(
    ("text", "ms", "shown"),
    [
        ("2d", 172_800_000, "2d"),
        ("36h", 129_600_000, "36h"),
        ("90m", 5_400_000, "90m"),
        ("7s", 7000, "7s"),
        ("1w", 604_800_000, "1w"),
        ("1500ms", 1500, "1500ms"),
        ("60000", 60_000, "1m"),
    ],
)
def test_durations_are_read_and_shown(text: str, ms: int, shown: str):
    """The unit is optional in the input. The output uses the largest unit that fits."""
    option = click.Option(["--retention"])
    assert output.to_ms(click.Context(click.Command("x")), option, text) == ms
    assert output.duration_text(ms) == shown


@pytest.mark.parametrize("text", ["", "d", "-1d", "1.5h", "2 d", "2D", "²d"])
def test_a_duration_that_is_none_is_refused(text: str):
    """The message shows valid examples."""
    with pytest.raises(click.BadParameter, match="2d, 36h"):
        output.to_ms(click.Context(click.Command("x")), click.Option(["--retention"]), text)


@pytest.mark.parametrize(
    ("error", "exit_code", "said"),
    [
        (NotFound("no orders"), 1, "no orders; see `strandline event-types list`"),
        (NotFound("no orders; make some"), 1, "no orders; make some\n"),
        (Unavailable("gone"), 3, "gone; retry later"),
        (ValueError("two\nlines"), 1, "ValueError: two lines; run it again with --debug"),
        (click.UsageError("what?"), 2, "what?"),
        (KeyboardInterrupt(), 1, "aborted before it was done"),
    ],
)
def test_every_error_is_one_line(capsys: pytest.CaptureFixture[str], error, exit_code: int, said: str):
    """An error is one line with a next step, or one JSON object with `--json`. The exit code is the same."""

    @click.command()
    @click.option("--json", is_flag=True)
    def command(json: bool) -> None:
        raise error

    assert failures.guarded(command, []) == exit_code
    text = capsys.readouterr().err.lstrip("\n")
    assert text.startswith(f"error: {said}")
    assert text.count("\n") == 1
    assert failures.guarded(command, ["--json"]) == exit_code
    assert set(json.loads(capsys.readouterr().err)["error"]) == {"code", "detail"}


def test_lines_of_a_pipe_do_not_wait_for_a_full_batch():
    """A batch ends when no line follows within the time; the end of the input is noticed, and half lines wait."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as file:
        pipe = inputs.opened(file)
        batches = inputs.batches(inputs.events(pipe), 3, pipe.comes_by)
        os.write(writer, b'{"n":1}\n\n{"n":2}\n\n{"n"')
        assert next(batches) == [Line(1, b'{"n":1}'), Line(3, b'{"n":2}')]
        os.write(writer, b':3}\n{"n":4}\n{"n":5}\n{"n":6}')
        assert [line.number for line in next(batches)] == [5, 6, 7]
        os.close(writer)
        assert list(batches) == [[Line(8, b'{"n":6}')]]


def test_an_array_may_come_from_a_pipe():
    """The array is read to its end, whatever its lines are."""
    reader, writer = os.pipe()
    os.write(writer, b'[{"a":1},\n {"b":\n2}]')
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert [line.text for line in inputs.events(inputs.opened(file))] == [b'{"a":1}', b'{"b":\n2}']


def overviews(command: click.Command, *names: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=" ".join(names), terminal_width=80)
        yield command.get_help(context).partition("Commands:")[2]
        for name in command.list_commands(context):
            yield from overviews(command.get_command(context, name), *names, name)


def test_overviews_are_complete():
    """The overview of a group has whole sentences, also on a narrow terminal."""
    found = [*overviews(cli, "strandline")]
    assert len(found) > 5
    assert [text for text in found if not text.strip() or "..." in text] == []


def test_things_are_counted():
    """One thing is in the singular; every other number of things is in the plural."""
    assert output.counted(1, "row") == "1 row"
    assert output.counted(2_000, "row") == "2,000 rows"
    assert output.counted(0, "entry", "entries") == "0 entries"


def test_a_default_that_is_empty_is_not_shown():
    """The help of a setting shows its default, unless it is an empty text."""
    text = cli.get_command(click.Context(cli), "serve").get_help(click.Context(cli))
    assert "[default: ]" not in text
    assert "[default: all]" in text


def test_the_banner_names_a_program_that_can_be_called(monkeypatch, capsys):
    """Without `strandline` on the PATH, the command to try has the path of the program."""
    monkeypatch.setenv("PATH", "")
    up._print_banner(Path("data"), "http://127.0.0.1:8080")
    tried = re.search(r"try +(\S+) event-types", capsys.readouterr().out)
    assert tried is not None
    assert Path(tried[1]).is_file()
