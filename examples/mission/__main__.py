"""`artemis demo`: the demo from a terminal. Exits 0 when proofs hold and checks are green."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from artemis_lifecycle.cli.output import plain
from artemis_lifecycle.errors import LifecycleError

from .others import KINDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns its exit code: that of the error it met, 1 for a proof that failed, else 0."""
    parser = argparse.ArgumentParser(
        prog="artemis demo",
        description="Three tables with 420 days of history, the whole walk on them through Dagster, and proofs.",
    )
    parser.add_argument(
        "--home",
        type=Path,
        default=Path(os.environ.get("ARTEMIS_HOME") or ".artemis"),
        help="the folder of the embedded parts; the demo's own is `demo` in it (default: $ARTEMIS_HOME, then .artemis)",
    )
    parser.add_argument(
        "--with",
        dest="kinds",
        default="",
        metavar="KIND,…",
        help="also tables of other formats, which the same walk cleans: " + ", ".join(KINDS),
    )
    chosen = parser.parse_args(arguments)
    kinds = [kind.strip() for kind in chosen.kinds.split(",") if kind.strip()]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        parser.error(f"--with: {unknown[0]} is not one of {', '.join(KINDS)}")
    console = Console(highlight=False)
    try:
        # Dagster and its integrations take a second to load; `--help` does without.
        from .run import run_demo

        report = run_demo(chosen.home.resolve(), console, kinds)
    except LifecycleError as error:
        console.print(f"[red]{type(error).__name__}[/red]: {plain(str(error))}", soft_wrap=True)
        return error.exit_code
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
