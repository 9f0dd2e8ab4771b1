"""``python -m hardneg``: the command line."""

from hardneg.cli import main

if __name__ == "__main__":
    main()
