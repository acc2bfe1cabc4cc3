"""Collected only when it is asked for by its path, as `make soak` does; what soaks tell is printed at their end.

`$ARTEMIS_SOAK_LOCK` names a file that heavy cases lock while they run, where a machine is shared with other work.
`$ARTEMIS_SOAK_HOME` names a folder in which the history for the killed walks stands and stays, for three hours.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from artemis_lifecycle_tests.soak import told

HERE = Path(__file__).resolve().parent

# Read before the fixture of the tests' conftest takes such variables away.
told.LOCK = os.environ.get("ARTEMIS_SOAK_LOCK")
told.HOME = os.environ.get("ARTEMIS_SOAK_HOME")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    return None if any(HERE in (path, *path.parents) for path in asked) else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for title, rows in told.TABLES.items():
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        terminalreporter.section(title)
        for row in rows:
            terminalreporter.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
