"""`strandline serve` and `strandline up`."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from strandline.cli.settings import Command, config_option, load, setting_options
from strandline.cli.target import data_option, debug_option, json_option
from strandline.errors import Unavailable


def _serving_options(command: Command) -> Command:
    options: list[Callable[[Command], Command]] = [
        data_option,
        click.option("--port", default=8080, show_default=True, type=click.IntRange(1, 65535)),
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
@_serving_options
def serve(*, as_json: bool, **options: Any) -> None:
    """Serve a data directory over HTTP until SIGTERM or Ctrl-C. Several processes may serve the same one."""
    _run(_print_ready if as_json else None, **options)


@click.command()
@_serving_options
def up(*, as_json: bool, **options: Any) -> None:
    """Run the whole platform on this machine; Ctrl-C stops it."""

    def banner(url: str) -> None:
        print(
            f"\n  Strandline is up: {url}\n\n"
            f"  data      {options['data'].resolve()}\n"
            f"  API       {url}/openapi.json\n"
            f"  try       strandline event-types create orders --url {url}\n"
            f"  stop      Ctrl-C\n",
            flush=True,
        )

    _run(_print_ready if as_json else banner, **options)


def _print_ready(url: str) -> None:
    print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)


def _run(
    banner: Callable[[str], None] | None,
    *,
    data: Path,
    port: int,
    host: str,
    config_file: Path | None,
    insecure: bool,
    **flags: str | None,
) -> None:
    if not insecure and not _is_loopback(host):
        raise click.UsageError(
            f"other machines can reach {host}, and there is no access control; "
            "listen on 127.0.0.1, or add --insecure if you trust the network"
        )
    settings = load(data, config_file, flags)
    try:
        from strandline.server.main import run  # noqa: PLC0415 - an extra that may be missing
    except ModuleNotFoundError as error:
        raise Unavailable(f"the server needs {error.name}; pip install 'strandline[server]'") from error
    run(data, settings, host, port, banner)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
