"""The notebook of the examples runs, on any table, and what its cells end in is shown."""

from __future__ import annotations

import ast
import json
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle import Lifecycle, LifecycleConfig
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages
from artemis_lifecycle_tests.test_docs import REPOSITORY


def test_every_cell_runs_and_its_result_is_shown(
    config: LifecycleConfig, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lifecycle.open(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t")
        set_ages(lifecycle, table, [timedelta(days=days) for days in (400, 300, 100, 0)])
        ids = ids_of(lifecycle, table)
    file = tmp_path / "lifecycle.yaml"
    file.write_text(config.model_dump_json(by_alias=True))
    monkeypatch.setenv("ARTEMIS_CONFIG", str(file))
    names: dict[str, object] = {}
    shown: list[str] = []
    for cell in json.loads((REPOSITORY / "examples" / "first_look.ipynb").read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        *before, last = ast.parse("".join(cell["source"])).body
        assert isinstance(last, ast.Expr)
        exec(compile(ast.Module(before, []), "<cell>", "exec"), names)
        result = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
        shown.append(result._repr_html_() if hasattr(result, "_repr_html_") else repr(result))
    assert shown[0] == repr(["db.t"])
    assert all("<table" in each for each in shown[1:-1]) and str(ids[0]) in shown[2]
    with Lifecycle.open(config, spark=spark) as lifecycle:
        assert lifecycle.plans("db.t") == []
