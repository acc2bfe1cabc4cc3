"""The model of garbage collection: what `make spec` wrote is of this model, and its small bounds hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.spec.tools import load, require_checker

PROTECTION = REPOSITORY / "docs" / "protection.md"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    return load("check")


@pytest.fixture(scope="module")
def result(check: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(check.RESULT.read_text())
    return found


def rows(title: str, page: Path = PROTECTION) -> list[str]:
    """The first cells of the first table below a heading."""
    below = page.read_text().partition(f"## {title}")[2].partition("\n## ")[0]
    table = [line for line in below.splitlines() if line.startswith("|")][2:]
    return [re.split(r"(?<!\\)\|", line)[1].strip() for line in table]


def test_the_last_run_was_of_this_model(check: ModuleType, result: dict[str, Any]) -> None:
    assert result["model"] == check.digest(), "run `make spec`"


def test_the_pages_have_what_the_last_run_wrote(check: ModuleType, result: dict[str, Any]) -> None:
    for page, tables in check.blocks(result).items():
        assert check.put(page.read_text(), tables) == page.read_text(), f"{page.name}: run `make spec`"
    assert check.counterexamples(result) == check.COUNTEREXAMPLES.read_text()


def test_every_guard_of_the_model_has_a_counterexample_or_a_reason(check: ModuleType, result: dict[str, Any]) -> None:
    assert {*result["guards"], *check.NO_LOSS} == set(check.guards())
    assert all(steps for part in ("guards", "limits", "known") for steps in result[part].values())


def test_every_source_of_protection_is_a_guard_of_the_model(check: ModuleType) -> None:
    assert sorted(check.SOURCES) == sorted(rows("Sources, in the order in which they are read"))
    named = {name for names in check.SOURCES.values() for name in names.split()}
    assert named <= set(check.guards())


def test_every_guard_that_a_test_takes_out_is_one_of_the_model(check: ModuleType) -> None:
    tested = set(rows("Which test fails when a guard is taken out"))
    modeled = {row for _, row in check.guards().values()} | set(check.OUTSIDE)
    assert tested <= modeled


def test_what_the_model_names_is_in_the_package(check: ModuleType) -> None:
    """Comments name the functions that steps stand for."""
    named = re.findall(r"\b(\w+/\w+\.py)(?: (\w+))?", check.MODEL.read_text())
    assert len(named) > 15
    for path, function in named:
        text = (REPOSITORY / "artemis_lifecycle" / path).read_text()
        assert not function or re.search(rf"\b(def|class) {function}\b", text), f"{path} {function}"


@pytest.mark.seconds
@pytest.mark.timeout(600)
def test_the_model_holds_with_every_guard_and_loses_a_file_without_each(
    check: ModuleType, result: dict[str, Any]
) -> None:
    require_checker()
    found = check.check()
    assert found | {"larger": result["larger"]} == result, "run `make spec`"
