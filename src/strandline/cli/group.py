"""Groups of commands whose overview is complete."""

from __future__ import annotations

import click


class Group(click.Group):
    """The overview of its commands has their first sentences, wrapped. Click would cut them off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, found.get_short_help_str(limit=1000)) for name, found in commands if found is not None]
            )
