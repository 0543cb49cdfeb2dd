"""The command line. The module of a command is imported when the command is called, so that help is fast."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from strandline import __version__
from strandline.cli import failures

#: Every command: its module, and its line in the overview.
COMMANDS = {
    "up": ("up", "Run the whole platform on this machine."),
    "serve": ("serve", "Serve a data directory over HTTP."),
    "event-types": ("event_types", "List, show, create, update, grow and delete event types."),
    "publish": ("publish", "Publish events from a file or standard input."),
    "consume": ("consume", "Print events, one JSON object per line."),
    "partitions": ("partitions", "Show the oldest and newest offset of every partition."),
    "subscriptions": ("subscriptions", "Show, create, reset and delete subscriptions."),
    "timelines": ("timelines", "Show and switch the storage epochs of an event type."),
    "storages": ("storages", "Show, add and remove storages, and choose the default."),
    "pipeline": ("pipeline", "Run the Spark jobs and show their progress."),
    "archive": ("archive", "Show which hours are complete; wait for, verify and replay them."),
    "schedule": ("schedule", "Put messages at a moment in time, look ahead, and consume what is due."),
    "journal": ("journal", "Append to the journals of entities, read and delete them."),
    "feeds": ("feeds", "Look at home timelines, append, delete, merge and unmerge entries, rebuild feeds."),
    "doctor": ("doctor", "Check this machine, a data directory and a server."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - same
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"strandline.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `main` of click would end the process with 1
            return failures.abandon_output()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - same
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 unavailable.",
)
@click.version_option(__version__, prog_name="strandline", message="%(prog)s %(version)s")
def cli() -> None:
    """Strandline: a timeline platform over one durable, partitioned event log.

    Commands work on a data directory (--data, STRANDLINE_DATA, default ./data) or on a server (--url,
    STRANDLINE_URL). Start with: strandline up
    """


def main() -> None:
    """The console script."""
    sys.exit(failures.guarded(cli, sys.argv[1:]))
