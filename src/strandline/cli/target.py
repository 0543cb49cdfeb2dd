"""What a command works on: a server (--url) or a data directory in this process (--data)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import strandline
from strandline.cli import output
from strandline.errors import Invalid, NotFound

if TYPE_CHECKING:  # each is loaded only by the commands that need it
    from strandline.client import Remote
    from strandline.platform import Platform


@dataclass(frozen=True)
class Target:
    url: str | None
    data: Path
    as_json: bool

    def open(self) -> Remote | Platform:
        """The rooms of the server or of the data directory."""
        return self.open_data() if self.url is None else _connect(self.url)

    def open_data(self) -> Platform:
        """The rooms of the data directory, for commands that a server does not offer.

        The directory must exist, so that a mistyped name does not create a new one.
        """
        if self.url is not None:
            raise click.UsageError("this command works on a data directory, not on a server; name it with --data")
        if not self.data.is_dir():
            raise NotFound(
                f"there is no data directory {self.data}; name one with --data, a server with --url, "
                f"or create it with `strandline up --data {self.data}`"
            )
        return strandline.open(self.data)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something is removed for good, unless `yes` is set. Aborts the command if the answer is no.

        UsageError if the question cannot be asked: without a terminal, and with --json.
        """
        if yes:
            return
        if self.as_json or not sys.stdin.isatty():
            why = "with --json no question is asked" if self.as_json else "standard input is not a terminal"
            text = f"not confirmed: {question} {why.capitalize()}; add --yes to do it"
            raise click.UsageError(text, click.get_current_context())
        click.confirm(question, abort=True, err=True)

    def print_done(self, text: str, value: Any) -> None:
        """Print a result: a sentence for people, the value for machines."""
        if self.as_json:
            output.print_json(value)
        else:
            print(text)

    def print_table(
        self, value: Any, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = ""
    ) -> None:
        """Print a result: a table for people, the value for machines."""
        if self.as_json:
            output.print_json(value)
        else:
            output.print_table(columns, rows, empty)


def _connect(url: str) -> Remote:
    try:
        return strandline.connect(url)
    except Invalid as error:
        raise click.BadParameter(error.detail, param_hint="--url") from error


url_option = click.option(
    "--url", envvar="STRANDLINE_URL", metavar="URL", help="URL of a server, like http://127.0.0.1:8080."
)
data_option = click.option(
    "--data",
    envvar="STRANDLINE_DATA",
    default="data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Data directory, opened in this process. Default: ./data.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print output and errors as JSON.")
yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation. Needed with --json, and without a terminal."
)
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")


def on_target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options of all commands and pass them on as `target`."""

    @functools.wraps(command)
    @url_option
    @data_option
    @json_option
    @debug_option
    @click.pass_context
    def wrapped(ctx: click.Context, /, url: str | None, data: Path, *, as_json: bool, **rest: Any) -> Any:
        if url is not None and ctx.get_parameter_source("data") is ParameterSource.COMMANDLINE:
            if ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE:
                raise click.UsageError("--url and --data exclude each other; give only one", ctx)
            url = None  # a flag wins over the environment
        return command(target=Target(url, data, as_json), **rest)

    return wrapped
