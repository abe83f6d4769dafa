"""The command `lamplighter`."""

import sys

from orchestrator.cli.app import run


def main() -> None:
    sys.exit(run())


if __name__ == "__main__":
    main()
