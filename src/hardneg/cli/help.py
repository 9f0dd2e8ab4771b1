"""Help: options in groups, commands in the order of work, headings that stand out on a terminal.

The groups are those that typer calls panels. They are written without rich, which would take longer to load than
all commands together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from hardneg.cli.colour import painted

WIDEST = 100  # columns of help, on a terminal that has them
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": WIDEST}  # of every command
OPTIONS = "Options"  # the heading of options without a panel
LAST = ("Model", "Machine", "Output")  # panels that come last, in this order
Row = tuple[str, str]


class Command(TyperCommand):
    """A command whose help has its options in groups."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the command's name, without the brackets and braces that typer puts around them."""
        arguments = (one for one in self.get_params(ctx) if one.param_type_name == "argument")
        return ["[OPTIONS]", *(str(one.metavar) for one in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options group by group."""
        write_parameters(self.get_params(ctx), ctx, formatter)


class Group(TyperGroup):
    """A command with commands of its own, listed in groups in the order of work."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, and then the options."""
        self.format_commands(ctx, formatter)
        write_parameters(self.get_params(ctx), ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a line for each command, group by group."""
        listed = [one for one in self.commands.values() if not one.hidden]
        room = formatter.width - 6 - max(len(one.name or "") for one in listed)
        groups: dict[str, list[Row]] = {}
        for one in listed:
            panel = getattr(one, "rich_help_panel", None)
            heading = panel if isinstance(panel, str) else "Commands"
            groups.setdefault(heading, []).append((one.name or "", one.get_short_help_str(room)))
        width = max(len(name) for rows in groups.values() for name, _ in rows)
        for heading, rows in groups.items():
            padded = [(name.ljust(width), text) for name, text in rows]
            write(formatter, heading, padded)


def write_parameters(parameters: Iterable[Any], context: Any, formatter: Any) -> None:
    """Write the arguments, and the options group by group."""
    groups: dict[str, list[Row]] = {}
    for one in parameters:
        if (row := one.get_help_record(context)) is None:
            continue
        panel = getattr(one, "rich_help_panel", None)
        panel = panel if isinstance(panel, str) else "Output" if one.name == "help" else OPTIONS
        heading = "Arguments" if one.param_type_name == "argument" else panel
        shown = str(one.metavar) if heading == "Arguments" else row[0]  # typer adds the name of a type
        groups.setdefault(heading, []).append((shown, row[1]))
    if groups.keys() <= {OPTIONS, "Output"}:  # few options need no groups
        groups = {OPTIONS: [row for rows in groups.values() for row in rows]}
    early = [heading for heading in groups if heading not in LAST]
    for heading in [*early, *(heading for heading in LAST if heading in groups)]:
        write(formatter, heading, groups[heading])


def write(formatter: Any, heading: str, rows: list[Row]) -> None:
    """Write rows of two columns under a heading."""
    with formatter.section(painted(heading, "bold")):
        formatter.write_dl(rows)
