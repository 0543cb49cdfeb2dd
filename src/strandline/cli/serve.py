"""`strandline serve`: the node alone."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Callable
from pathlib import Path

import click

from strandline.cli.settings import Command, config_option, load, setting_options
from strandline.cli.target import data_option, debug_option, json_option
from strandline.errors import Unavailable


def serving_options(command: Command) -> Command:
    options: list[Callable[[Command], Command]] = [
        data_option,
        click.option(
            "--port", default=8080, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on."
        ),
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
        config_option,
        click.option("--insecure", is_flag=True, help="Allow a --host that other machines can reach."),
        json_option,
        debug_option,
        setting_options,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@serving_options
def serve(
    *,
    data: Path,
    port: int,
    host: str,
    config_file: Path | None,
    insecure: bool,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Serve a data directory over HTTP until SIGTERM or Ctrl-C. Several processes may serve the same one."""
    check_host(host, insecure=insecure)
    node()(data, load(data, config_file, flags), host, port, print_ready if as_json else None)


def print_ready(url: str) -> None:
    print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)


def check_host(host: str, *, insecure: bool) -> None:
    if not insecure and not _is_loopback(host):
        raise click.UsageError(
            f"other machines can reach {host}, and there is no access control; "
            "listen on 127.0.0.1, or add --insecure if you trust the network"
        )


def node() -> Callable[..., None]:
    """The function that runs a node."""
    try:
        from strandline.server.main import run  # noqa: PLC0415 - an extra that may be missing
    except ModuleNotFoundError as error:
        raise Unavailable(f"the server needs {error.name}; pip install 'strandline[server]'") from error
    return run


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
