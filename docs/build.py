"""Writes the reference pages from the code: `make docs`. With --check it only lists the outdated ones."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from strandline import errors
from strandline.cli import cli
from strandline.clock import system_clock
from strandline.pipeline.registry import JOBS
from strandline.room import CounterMetric, GaugeMetric, HistogramMetric
from strandline.server.app import endpoints
from strandline.server.metrics import MOST_LABELS, OTHERS
from strandline.server.openapi import document
from strandline.server.routing import ServerState
from strandline.server.settings import ServerSettings
from strandline.settings import Settings

HERE = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by `make docs`; change the code instead. -->\n"


def settings_page() -> str:
    lines = ["# Settings", "", _NOTE]
    lines += [
        "Each setting is a key of the TOML file, an environment variable and a flag of `strandline serve`.",
        "A flag overrides the environment, the environment overrides the file. A text `env:NAME` is replaced by",
        "the value of that variable.",
    ]
    section = ""
    for setting in Settings.declared():
        if setting.section != section:
            section = setting.section
            lines += ["", f"## [{section}]", "", "| key | default | what it does |", "|---|---|---|"]
        default = (
            f'"{setting.default}"'
            if isinstance(setting.default, str)
            else f"{setting.default:,}".replace(",", "_")
        )
        names = f"`{setting.name}`<br>`{setting.env}`<br>`{setting.flag}`"
        lines.append(f"| {names} | `{default}` | {setting.help} |")
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    lines = ["# Errors", "", _NOTE]
    lines += [
        "Every error is a problem document (`application/problem+json`) over HTTP and an exception in Python.",
        "The `code` is stable; `detail` says what happened and what to do.",
        "",
        "| code | exception | status | meaning |",
        "|---|---|---|---|",
    ]
    kinds = [kind for kind in errors.families().values() if kind.__module__ == errors.__name__]
    for kind in sorted(kinds, key=lambda kind: (kind.status, kind.code)):
        meaning = (kind.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| `{kind.code}` | `{kind.__name__}` | {kind.status} | {meaning} |")
    return "\n".join(lines) + "\n"


def http_page() -> str:
    lines = ["# HTTP", "", _NOTE]
    lines += [
        "The log's routes are Nakadi's. `/openapi.json` of a running node describes all types. Every error is",
        "a problem document, also for unknown routes. Paths may end in a slash. Bodies have the Content-Type",
        "`application/json` and may be compressed with gzip or zstd. An `authorization` is stored and shown, but",
        "not enforced. The setting `server.hosts` says which hosts a node answers to.",
        "",
        "The HTTP library itself answers what it cannot parse (400), requests with more than 100 headers (431)",
        "and addresses of more than 65,534 bytes (414). These answers have no body.",
        "",
        "Every answer has an `X-Flow-Id`: the one of the request, or a new one. The line of the request in the",
        "log has the same `flow_id`. Answers of 1,000 bytes or more are compressed with gzip for clients that",
        "accept it, streams never. The routes of the log and of the node ignore fields and query parameters",
        "that they do not know, as Nakadi does; those of the other rooms refuse them (422).",
        "",
        "Tested unmodified clients: pyNakadi 0.2.14.8 (Python) and Fahrschein 0.24.0 (Java) in our tests,",
        "nakadion 0.30.0 (Rust) manually with its own integration test. Kanadi (Scala) was not run; only its",
        "source was compared.",
    ]
    paths = document(endpoints())["paths"]
    tags = dict.fromkeys(o["tags"][0] for operations in paths.values() for o in operations.values())
    for tag in tags:
        lines += [
            "",
            f"## {tag.capitalize()}",
            "",
            "| request | what it does | parameters | answers |",
            "|---|---|---|---|",
        ]
        for path, operations in paths.items():
            for method, operation in operations.items():
                if operation["tags"] == [tag]:
                    lines.append(_http_row(method.upper(), path, operation))
    return "\n".join(lines) + "\n"


def _http_row(method: str, path: str, operation: dict) -> str:
    names = [f"`{p['name']}`" for p in operation["parameters"] if p["in"] != "path"]
    answers = ", ".join(operation["responses"])
    return f"| `{method} {path}` | {operation['summary']} | {', '.join(names)} | {answers} |"


def cli_page() -> str:
    lines = ["# Command line", "", _NOTE, "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 unavailable."]
    for name, command in _commands("strandline", cli):
        context = click.Context(command, info_name=name, terminal_width=100)
        lines += ["", f"## `{name}`", "", "```", command.get_help(context), "```"]
    return "\n".join(lines) + "\n"


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from _commands(f"{name} {child}", found)


def jobs_page() -> str:
    lines = ["# Jobs", "", _NOTE]
    lines += [
        "`strandline pipeline run JOB…` runs jobs in one Spark application. `strandline pipeline status` shows",
        "the progress of the jobs that run now, on any machine.",
        "",
        "| job | what it does |",
        "|---|---|",
        *(f"| `{job.name}` | {job.summary} |" for job in JOBS.values()),
        "",
        "## Progress",
        "With `--json`, `run` prints a line with these fields whenever one of them has changed. `status` prints",
        "an array of objects with `job`, `process` (the id of a running process) and `progress` (the other",
        "fields).",
        "",
        "| field | of | meaning |",
        "|---|---|---|",
        "| `job` | all jobs | name of the job |",
        "| `event_type` | all jobs | what the job reads |",
        "| `rows` | all jobs | rows that are processed |",
        "| `rows_per_second` | all jobs | measured over the last second or more |",
        "| `lag` | all jobs | rows that are not processed yet, by partition |",
        "| `worked_at` | all jobs | when a step of the process last succeeded for what it reads |",
        *(f"| `{name}` | `{job.name}` | {text} |" for job in JOBS.values() for name, text in job.details.items()),
    ]
    options = [(job, option) for job in JOBS.values() for option in job.options]
    if options:
        lines += ["", "## Options", "| flag of `run` | job | default | what it does |", "|---|---|---|---|"]
    lines += [f"| `{o.flag}` | `{job.name}` | `{o.default}` | {o.help} |" for job, o in options]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    lines = ["# Metrics", "", _NOTE]
    lines += [
        "`/metrics` shows them in the text format of Prometheus. Showing them reads neither a database nor a",
        "storage: gauges that need one are measured in the background, every few seconds. A counter or gauge has",
        f"at most {MOST_LABELS} values of its label: further counters are summed up as `{OTHERS}`, of gauges the",
        "largest are shown. Counters are those of this node since its start. Gauges of subscriptions, topics,",
        "journals and the archive are the same on every node that serves the same data.",
        "",
        "| metric | type | label | meaning |",
        "|---|---|---|---|",
    ]
    own = ServerState({}, ServerSettings(), system_clock()).metrics.families()
    rows = [(metric.name, metric.type, "", metric.documentation) for metric in own if metric.type != "unknown"]
    rows += [(m.name, _METRIC_TYPES[type(m)], f"`{m.label}`", m.help) for m in _declared_metrics()]
    for name, kind, label, text in sorted(rows):
        shown = f"{name}_total" if kind == "counter" and not name.endswith("_total") else name
        lines.append(f"| `{shown}` | {kind} | {label} | {text} |")
    return "\n".join(lines) + "\n"


_METRIC_TYPES = {CounterMetric: "counter", GaugeMetric: "gauge", HistogramMetric: "histogram"}


def _declared_metrics() -> set[CounterMetric | GaugeMetric | HistogramMetric]:
    """What the modules of the platform declare, by themselves or in a mapping."""
    importlib.import_module("strandline.platform")
    values = [
        value
        for name, module in sys.modules.items()
        if name.startswith("strandline.")
        for value in vars(module).values()
    ]
    values += [one for value in values if isinstance(value, dict) for one in value.values()]
    return {value for value in values if isinstance(value, tuple(_METRIC_TYPES))}


PAGES = {
    "metrics.md": metrics_page,
    "settings.md": settings_page,
    "errors.md": errors_page,
    "http.md": http_page,
    "cli.md": cli_page,
    "jobs.md": jobs_page,
}


def main(*, check: bool) -> int:
    """Write every page, or list the pages that differ from the code."""
    stale = []
    for name, page in PAGES.items():
        file, text = HERE / name, page()
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                file.write_text(text, encoding="utf-8")
    if stale:
        print(("out of date, run `make docs`: " if check else "written: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv))
