"""The command line, run as processes: good and bad input, exit codes, text and JSON output."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import strandline
from services import DEADLINE_S, STRANDLINE, environment, free_port, run_cli, until
from strandline import EventType
from strandline.cli import COMMANDS
from strandline.settings import Settings

OK, FAILED, USAGE, UNAVAILABLE = range(4)
_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    return f"cli.test-{next(_numbers)}"


@pytest.fixture
def orders(data: Path, url: str, name: str) -> str:
    """An event type of one partition, created in process. The server sees it at once."""
    with strandline.open(data) as platform:
        platform.log.create(EventType(name))
    return name


def good(*arguments: str, **options) -> str:
    done = run_cli(*arguments, **options)
    assert (done.returncode, done.stderr.decode()) == (OK, "")
    return done.stdout.decode()


def bad(exit_code: int, *arguments: str, **options) -> str:
    """The error message of a failed command: always one line, never a traceback."""
    done = run_cli(*arguments, **options)
    text = done.stderr.decode()
    assert done.returncode == exit_code, text
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


# -- all commands


def test_help_lists_every_command_and_loads_nothing_heavy():
    """`strandline --help` is fast: it does not import Arrow and other slow modules."""
    assert all(command in good("--help") for command in COMMANDS)
    heavy = "pyarrow numpy httpx rich msgspec apsw"
    script = f"import sys, strandline.cli; print([m for m in '{heavy}'.split() if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


@pytest.mark.parametrize("command", [*COMMANDS, "event-types create", "pipeline run", "storages list"])
def test_every_command_explains_itself(command: str):
    """Every command has a help page. It lists the common options, and a group of commands lists its commands."""
    text = good(*command.split(), "--help")
    assert text.startswith(f"Usage: strandline {command}")
    if "COMMAND [ARGS]" in text:
        assert "\nCommands:\n" in text
    else:
        assert "--json" in text
        assert "--data" in text


def test_the_version_is_told():
    """--version prints the version of the package."""
    assert good("--version") == f"strandline {strandline.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["partitions"],
        ["partitions", "a", "b"],
        ["partitions", "a", "--nonsense"],
        ["partitions", "a", "--url", "http://127.0.0.1:1", "--data", "x"],
        ["partitions", "a", "--url", "nonsense"],
        ["event-types", "create", "a", "--partitions", "0"],
        ["event-types", "create", "a", "--retention", "soon"],
        ["event-types", "create", "a", "--schema", "/no/such/file"],
        ["event-types", "create"],
        ["event-types", "update", "a"],
        ["publish", "a", "/no/such/file"],
        ["publish", "a", "--batch-size", "0"],
        ["consume", "a", "--start", "nonsense"],
        ["consume", "a", "--start", "{nonsense"],
        ["consume", "a", "--limit", "0"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str]):
    """Wrong usage is exit code 2 and a one-line error."""
    bad(USAGE, *arguments)


def test_wrong_usage_is_json_for_machines():
    """The error is JSON if --json is given, even if the options cannot be parsed."""
    done = run_cli("partitions", "a", "--nonsense", "--json")
    assert done.returncode == USAGE
    assert json.loads(done.stderr)["error"]["code"] == "usage"


def test_no_server_is_exit_code_3():
    """A refused connection is exit code 3. The error says what to do next; with --json it is JSON."""
    nobody = f"http://127.0.0.1:{free_port()}"
    assert "strandline serve" in bad(UNAVAILABLE, "event-types", "list", "--url", nobody)
    done = run_cli("event-types", "list", "--url", nobody, "--json")
    assert json.loads(done.stderr)["error"]["code"] == "unavailable"
    assert done.stdout == b""


def test_a_data_directory_is_not_made_by_mistake(tmp_path: Path):
    """A command on a directory that does not exist fails and does not create the directory."""
    absent = tmp_path / "absent"
    assert "strandline up" in bad(FAILED, "event-types", "list", "--data", str(absent))
    assert not absent.exists()


def test_a_flag_wins_over_the_environment(data: Path, url: str, orders: str, tmp_path: Path):
    """Flags override STRANDLINE_URL and STRANDLINE_DATA."""
    assert orders in good("event-types", "list", STRANDLINE_URL=url)
    assert orders in good("event-types", "list", STRANDLINE_DATA=str(data))
    nobody = f"http://127.0.0.1:{free_port()}"
    assert orders in good("event-types", "list", "--data", str(data), STRANDLINE_URL=nobody)


def test_debug_shows_where_an_error_came_from():
    """--debug prints the traceback."""
    done = run_cli("event-types", "list", "--data", "/no/such/place", "--debug")
    assert done.returncode == FAILED
    assert b"Traceback" in done.stderr


# -- event types


def test_an_event_type_lives_from_create_to_delete(place: list[str], name: str, tmp_path: Path):
    """Create, show, list, update and delete work in process and over HTTP."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"required": ["id"]}')
    options = [
        "--partitions",
        "3",
        "--strategy",
        "hash",
        "--key-field",
        "id",
        "--key-field",
        "x",
        "--owner",
        "shop",
    ]
    more = ["--category", "business", "--retention", "36h", "--schema", str(schema)]
    created = json.loads(good("event-types", "create", name, *options, *more, *place, "--json"))
    assert (created["partitions"], created["category"], created["owning_application"]) == (3, "business", "shop")
    assert created["partition_key_fields"] == ["id", "x"]
    assert created["options"]["retention_time"] == 36 * 3_600_000
    assert json.loads(created["schema"]["schema"]) == {"required": ["id"]}
    assert json.loads(good("event-types", "show", name, *place, "--json")) == created
    assert created in json.loads(good("event-types", "list", *place, "--json"))
    assert name in good("event-types", "list", *place)
    assert "36h" in good("event-types", "show", name, *place)
    updated = json.loads(good("event-types", "update", name, "--retention", "5000", *place, "--json"))
    assert updated["options"]["retention_time"] == 5000
    assert updated["partition_key_fields"] == ["id", "x"]
    assert good("event-types", "delete", name, "--yes", *place) == f"deleted {name}\n"
    assert "event-types list" in bad(FAILED, "event-types", "show", name, *place)


def test_a_definition_comes_from_a_file(place: list[str], name: str, tmp_path: Path):
    """--file reads the definition from a file. NAME and other options override it."""
    file = tmp_path / "definition.json"
    file.write_text(json.dumps({"name": "other", "partitions": 2, "owning_application": "a", "unknown": 1}))
    created = json.loads(
        good("event-types", "create", name, "--file", str(file), "--owner", "b", *place, "--json")
    )
    assert (created["name"], created["partitions"], created["owning_application"]) == (name, 2, "b")
    text = json.dumps({**created, "owning_application": "c"}).encode()
    updated = json.loads(good("event-types", "update", name, "--file", "-", *place, "--json", stdin=text))
    assert updated["owning_application"] == "c"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": "x", "category": "other"}', '{"name": 5}'])
def test_a_broken_definition_is_refused(place: list[str], text: str):
    """An invalid definition is exit code 1 and a one-line error."""
    bad(FAILED, "event-types", "create", "--file", "-", *place, stdin=text.encode())


def test_conflicts_and_unknown_names_fail_with_a_next_step(place: list[str], orders: str):
    """Conflicts and unknown names are exit code 1. The JSON error has the code of the error."""
    assert "event-types show" in bad(FAILED, "event-types", "create", orders, *place)
    for command in ("event-types show", "event-types delete --yes", "partitions", "timelines list"):
        bad(FAILED, *command.split(), "absent", *place)
    done = run_cli("partitions", "absent", *place, "--json")
    assert json.loads(done.stderr)["error"]["code"] == "not_found"


def test_partitions_timelines_and_storages_are_shown(place: list[str], orders: str):
    """The output is a table, or with --json the JSON of the API."""
    (partition,) = json.loads(good("partitions", orders, *place, "--json"))
    assert partition["newest_available_offset"] == "001-0001--1"
    assert "001-0001--1" in good("partitions", orders, *place)
    (timeline,) = json.loads(good("timelines", "list", orders, *place, "--json"))
    assert timeline["order"] == 1
    assert "open" in good("timelines", "list", orders, *place)
    assert [s["id"] for s in json.loads(good("storages", "list", *place, "--json"))] == ["default"]
    assert "default" in good("storages", "list", *place)


# -- publish and consume


def test_lines_go_in_and_come_out(place: list[str], orders: str, tmp_path: Path):
    """Events from standard input and from files are published in order and unchanged. Blank lines are skipped."""
    assert good("publish", orders, *place, stdin=b'{"n": 1}\n\n{"n": 2.50}').startswith("2 published in ")
    file = tmp_path / "events.ndjson"
    file.write_bytes(b"".join(b'{"n": %d}\n' % number for number in range(3, 2503)))
    report = json.loads(good("publish", orders, str(file), "--batch-size", "999", *place, "--json"))
    assert (report["published"], report["batches"], report["failures"]) == (2500, 3, [])
    out = good("consume", orders, *place)
    assert out.splitlines()[:2] == ['{"n": 1}', '{"n": 2.50}']
    assert [event["n"] for event in lines(out)][2:] == list(range(3, 2503))


def test_an_array_goes_in_and_every_event_is_one_line(place: list[str], orders: str):
    """A JSON array over several lines becomes events. An event with line breaks is printed on one line."""
    good("publish", orders, "-", *place, stdin=b' \n[\n {"a":\n1},\r\n {"a": "\\n"}\n]\n')
    assert lines(good("consume", orders, *place)) == [{"a": 1}, {"a": "\n"}]


def test_nothing_to_publish_is_fine(place: list[str], orders: str):
    """Empty input publishes no events and is not an error."""
    assert good("publish", orders, *place).startswith("0 published")
    assert good("publish", orders, *place, stdin=b"[]").startswith("0 published")


def test_a_bad_batch_stops_and_names_its_lines(place: list[str], orders: str):
    """By default publishing stops at the first refused batch, and the error lists its bad lines."""
    events = b'{"n":1}\n\n{"n":2}\nnonsense\n{"n":3}\n{"n":4}\n'
    done = run_cli("publish", orders, "--batch-size", "2", *place, stdin=events)
    assert done.returncode == FAILED
    assert b"line 4: validating: " in done.stderr
    assert b"lines 4 to 5" in done.stderr
    assert done.stdout.startswith(b"2 published, 1 failed, 1 aborted in ")
    assert [event["n"] for event in lines(good("consume", orders, *place))] == [1, 2]


def test_a_bad_batch_is_passed_over_when_told_to(place: list[str], orders: str):
    """--on-error continue publishes the other batches; the exit code is still 1."""
    events = b'{"n":1}\nnonsense\n{"n":2}\n{"n":3}\n'
    done = run_cli(
        "publish", orders, "--batch-size", "2", "--on-error", "continue", *place, "--json", stdin=events
    )
    report = json.loads(done.stdout)
    assert done.returncode == FAILED
    assert (report["published"], report["failed"], report["aborted"]) == (2, 1, 1)
    assert [failure["line"] for failure in report["failures"]] == [2]
    assert report["incomplete"] == [[1, 2]]
    assert [event["n"] for event in lines(good("consume", orders, *place))] == [2, 3]


def test_publishing_to_nobody_says_so(place: list[str]):
    """An unknown name, a broken array and a missing server are one-line errors."""
    bad(FAILED, "publish", "absent", *place, stdin=b"{}")
    bad(FAILED, "publish", "absent", *place, stdin=b"[{}")
    bad(UNAVAILABLE, "publish", "absent", "--url", f"http://127.0.0.1:{free_port()}", stdin=b"{}")


def test_ctrl_c_while_publishing_says_where_to_go_on(place: list[str], orders: str, data: Path):
    """Ctrl-C reports the number of published events and the line to continue from."""
    process = subprocess.Popen(
        [STRANDLINE, "publish", orders, "--batch-size", "10", *place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    process.stdin.write(b"{}\n" * 25)
    process.stdin.flush()
    with strandline.open(data) as platform:
        until(lambda: platform.log.partitions(orders)[0].newest_available_offset.endswith("19"))
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=20)
        assert process.returncode == FAILED
        assert out.startswith(b"20 published")
        assert errors == b"error: interrupted; continue from line 21\n"
        assert sum(len(batch) for batch in platform.log.read(orders)) == 20


def test_publishing_from_a_terminal_says_what_it_reads(place: list[str], orders: str):
    """On a terminal, the command says that it waits for events, and how to end the input."""
    ours, theirs = os.openpty()
    command = [STRANDLINE, "publish", orders, *place]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert b"Ctrl-D" in process.stderr.readline()
    os.write(ours, b'{"n": 1}\n\x04')
    out, _ = process.communicate(timeout=DEADLINE_S)
    os.close(ours)
    os.close(theirs)
    assert out.startswith(b"1 published")


def test_consume_starts_where_told(place: list[str], orders: str):
    """--start accepts BEGIN, END, partition=offset, cursor JSON, and the cursors that --cursors prints."""
    good("publish", orders, *place, stdin=b'{"n":0}\n{"n":1}\n{"n":2}\n')

    def consumed(*options: str) -> list[int]:
        return [event["n"] for event in lines(good("consume", orders, *options, *place))]

    assert consumed("--start", "BEGIN") == [0, 1, 2]
    assert consumed("--start", "END") == []
    assert consumed("--start", "0=0") == [1, 2]
    assert consumed("--start", '{"partition": "0", "offset": "1"}') == [2]
    assert consumed("--start", '[{"partition": "0", "offset": "BEGIN"}]', "--limit", "2") == [0, 1]
    (batch,) = lines(good("consume", orders, "--cursors", "--limit", "2", *place))
    assert batch["events"] == [{"n": 0}, {"n": 1}]
    assert consumed("--start", json.dumps(batch["cursor"])) == [2]


def test_a_bad_cursor_names_the_available_range(place: list[str], orders: str):
    """The range is in the text of the error and in fields of the JSON error."""
    assert "available offsets are" in bad(FAILED, "consume", orders, "--start", "0=99", *place)
    done = run_cli("consume", orders, "--start", "0=99", *place, "--json")
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["reason"]) == ("invalid_cursor", "UNAVAILABLE")
    assert error["newest_available_offset"] == "001-0001--1"


def test_following_prints_as_it_comes_until_ctrl_c(place: list[str], orders: str):
    """Each batch is printed at once. Ctrl-C ends the command with exit code 0."""
    with subprocess.Popen(
        [STRANDLINE, "consume", orders, "--follow", *place],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        for number in range(2):
            good("publish", orders, *place, stdin=b'{"n":%d}\n' % number)
            assert json.loads(process.stdout.readline()) == {"n": number}
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=20)
        assert (process.returncode, out, errors) == (OK, b"", b"")


def test_a_reader_that_goes_away_is_no_error(place: list[str], orders: str):
    """`strandline consume … | head -1` prints no error."""
    good("publish", orders, *place, stdin=b'{"pad": "%b"}\n' % (b"x" * 200) * 20_000)
    with subprocess.Popen(
        [STRANDLINE, "consume", orders, *place], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == OK


# -- serve, up, doctor


def test_every_setting_is_a_flag_of_serve():
    """Every declared setting is a flag of `serve`."""
    text = good("serve", "--help")
    assert [setting.flag for setting in Settings.declared() if setting.flag not in text] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "--insecure"),  # noqa: S104 - the test expects a refusal
        (["--host", "example.org"], "--insecure"),
        (["--port", "0"], "--port"),
        (["--config", "/no/such/file.toml"], "no settings file"),
        (["--log-retention-ms", "soon"], "whole number"),
        (["--log-retention-ms", "0"], "at least 1"),
        (["--log-retentoin-ms", "5"], "--log-retention-ms"),
    ],
)
def test_serve_refuses_what_cannot_be_meant(tmp_path: Path, options: list[str], message: str):
    """Invalid options are a usage error. No data directory is created."""
    assert message in bad(USAGE, "serve", "--data", str(tmp_path / "data"), *options)
    assert not (tmp_path / "data").exists()


def test_an_unknown_setting_in_the_file_names_the_nearest(tmp_path: Path):
    """The settings file in the data directory is read by default; an unknown key suggests the nearest one."""
    (tmp_path / "strandline.toml").write_text("[log]\nretention = 5\n")
    assert "log.retention_ms" in bad(USAGE, "serve", "--data", str(tmp_path))


def test_a_taken_port_is_unavailable(url: str, tmp_path: Path):
    """A port that is in use is exit code 3, and the error names --port."""
    port = url.rsplit(":", 1)[1]
    assert "--port" in bad(UNAVAILABLE, "serve", "--data", str(tmp_path / "data"), "--port", port)


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_server_tells_when_it_is_ready_and_stops_on_ctrl_c(tmp_path: Path, command: str):
    """`up` and `serve --json` print the URL when the server is ready. Ctrl-C ends both with exit code 0."""
    port = free_port()
    options = ["--json"] if command == "serve" else []
    process = subprocess.Popen(
        [STRANDLINE, command, "--data", str(tmp_path / "data"), "--port", str(port), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    with process:
        try:
            said = until(lambda: process.stdout.readline().strip(), "the first line of output")
            assert f"http://127.0.0.1:{port}" in said.decode()
            good("doctor", "--url", f"http://127.0.0.1:{port}")
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(20) == OK
        finally:
            process.kill()


def test_doctor_finds_nothing_wrong_here(place: list[str]):
    """On a healthy machine no check fails, and every check has a name and a status."""
    found = json.loads(good("doctor", *place, "--json"))
    assert {check["status"] for check in found} <= {"ok", "warn"}
    assert {"python", "sqlite", "java", "clock"} <= {check["name"] for check in found}
    assert "sqlite" in good("doctor", *place)


def test_doctor_fails_when_something_is_wrong(tmp_path: Path):
    """A server that does not answer and a data directory that is a file are failed checks."""
    nobody = f"http://127.0.0.1:{free_port()}"
    done = run_cli("doctor", "--url", nobody, "--json")
    assert done.returncode == FAILED
    assert [c["name"] for c in json.loads(done.stdout) if c["status"] == "fail"] == ["server"]
    file = tmp_path / "file"
    file.touch()
    done = run_cli("doctor", "--data", str(file), "--json")
    assert done.returncode == FAILED
    assert "data directory" in [c["name"] for c in json.loads(done.stdout) if c["status"] == "fail"]


def test_doctor_finds_every_damaged_range(tmp_path: Path):
    """The search goes on after each of them, through all topics."""
    data = tmp_path / "data"
    with strandline.open(data) as platform:
        for name in ("left", "right"):
            platform.log.create(strandline.EventType(name))
            for number in range(3):
                platform.log.publish(name, [{"n": f"{name}-{number}"}]).raise_for_failed()
    for name, number in (("left", 0), ("left", 2), ("right", 1)):
        (file,) = (data / "topics").glob(f"{name}.*.db")
        file.write_bytes(
            file.read_bytes().replace(b"%b-%d" % (name.encode(), number), b"%b+%d" % (name.encode(), number))
        )
    done = run_cli("doctor", "--data", str(data), "--json")
    assert done.returncode == FAILED
    found = [check["detail"] for check in json.loads(done.stdout) if check["name"] == "records"]
    assert len(found) == 3
    for detail, (name, offset) in zip(found, [("left", 0), ("left", 2), ("right", 1)], strict=True):
        assert detail.startswith(f"topic '{name}.")
        assert f"partition 0: the records {offset} to {offset} are damaged" in detail
    assert "error: topic 'right." in bad(FAILED, "consume", "right", "--data", str(data))


def test_doctor_leaves_no_trace(tmp_path: Path):
    """Checking a directory that does not exist does not create it."""
    good("doctor", "--data", str(tmp_path / "later"))
    assert list(tmp_path.iterdir()) == []
