"""The night fits in three hours, its parts are what CONTRIBUTING says, and none begins a test after its minutes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from artemis_lifecycle_tests.nightly import PARTS, main

HERE = Path(__file__).parent


def test_the_night_fits_in_three_hours() -> None:
    assert sum(part.minutes for part in PARTS.values()) <= 180


def test_each_part_is_documented_with_its_minutes_and_names_files_that_exist() -> None:
    page = (HERE.parent / "CONTRIBUTING.md").read_text()
    assert dict(re.findall(r"^\| `([a-z]+)` \| (\d+) \|", page, re.MULTILINE)) == {
        name: str(part.minutes) for name, part in PARTS.items()
    }
    assert [path for part in PARTS.values() for path in part.paths if not (HERE / path).exists()] == []


def test_a_part_that_does_not_exist_is_an_error_that_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["moon"]) == 2
    said = capsys.readouterr().err
    assert [name for name in PARTS if f"\n  {name} " not in said] == []


@pytest.mark.slow
def test_no_test_begins_after_the_minutes_of_its_part() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(HERE / "test_nightly.py"),
        "-k",
        "fits",
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "ARTEMIS_PART_SECONDS": "0"},
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parent,
    )
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "this part of the night is out of time" in done.stdout
