"""``python -m hardneg``: the command line."""

from hardneg.cli import main

main()
