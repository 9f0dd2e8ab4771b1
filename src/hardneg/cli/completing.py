"""The command ``hardneg completion``."""

from __future__ import annotations

from typing import Annotated

import typer

from hardneg.cli.options import show
from hardneg.errors import SettingsError

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HARDNEG_COMPLETE"  # the shell asks for words by it


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", metavar="SHELL")],
) -> None:
    """Print a shell completion script.

    Add it to the shell's own file: ~/.bashrc, ~/.zshrc, or ~/.config/fish/completions/hardneg.fish.
    """
    if shell not in SHELLS:
        raise SettingsError("BAD_SETTING", f"SHELL = {shell!r:.60}", f"choose one of {', '.join(SHELLS)}")
    from typer.completion import get_completion_script

    show(get_completion_script(prog_name="hardneg", complete_var=VARIABLE, shell=shell))


def prepare_completion() -> None:
    """Let the command line answer a shell that asks for words."""
    from typer.completion import completion_init

    completion_init()
