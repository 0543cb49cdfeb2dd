"""A flag for every declared setting, and the loading of all settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from strandline.config import Setting
from strandline.errors import Invalid
from strandline.settings import Settings

Command = Callable[..., Any]

config_option = click.option(
    "--config",
    "config_file",
    envvar="STRANDLINE_CONFIG",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings file; default: strandline.toml in the data directory.",
)


def parameter(setting: Setting) -> str:
    """The name under which a command gets the flag of a setting."""
    return f"{setting.section}__{setting.name}"


def setting_options(command: Command) -> Command:
    """Add one flag per declared setting. `Settings.load` checks the values."""
    for setting in reversed(list(Settings.declared())):
        text = f"{setting.help} [default: {setting.default}]" if setting.default != "" else setting.help
        kind = "N" if setting.type is int else "TEXT"
        command = click.option(setting.flag, parameter(setting), metavar=kind, help=text)(command)
    return command


def settings_file(data: Path, file: Path | None) -> Path | None:
    """The file that `--config` names, else the one in the data directory, if there is one."""
    if file is None and (data / "strandline.toml").exists():
        return data / "strandline.toml"
    return file


def load(data: Path, file: Path | None, flags: Mapping[str, str | None]) -> Settings:
    """Load the settings from the file, the environment and the flags that `setting_options` added."""
    try:
        return Settings.load(
            settings_file(data, file),
            flags={setting.key: flags[parameter(setting)] for setting in Settings.declared()},
        )
    except Invalid as error:
        raise click.UsageError(error.detail) from error
