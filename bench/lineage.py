"""What the lineage gate adds to a commit: `validate_lineage` in Python (microseconds), and in the catalog's database
the round trip of `request_pass` and a whole pyiceberg append, gated beside plain. `python -m bench.lineage` prints
JSON. Each figure is the median of its repetitions; gated and plain appends alternate.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from artemis_lifecycle.catalogs.gate.installation import install_gate
from artemis_lifecycle.catalogs.gate.rules import GatedRow, request_pass, rules_of
from artemis_lifecycle.catalogs.sql import ensure_tables
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import Lineage, OverwritePermissions
from artemis_lifecycle.contracts import LineageRequirements, validate_lineage
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.errors import LineageRejected
from artemis_lifecycle.operations.database import connect

SUMMARY = {
    "operation": "append",
    "writer.id": "ingest-pipeline-prod-1",
    "writer.host": "ground-station-3.artemis.internal",
    "writer.commit_hash": "a1b2c3d4",
    "writer.invocation_id": "run-2024-03-15-1027",
    "input.row_count": "12000",
    "input.bytes_compressed": "24831044",
    "input.snapshot_ids": "[4727, 4728]",
    "trigger.type": "schedule",
}
STRICT = Lineage(
    patterns={"trigger.ticket": "[A-Z]+-[0-9]+", "writer.host": r"[a-z0-9-]+\.artemis\.internal"},
    overwrite=OverwritePermissions(writers=tuple(f"job-{number}" for number in range(50)), operators=("a.jones",)),
)


def validation() -> dict[str, float]:
    """Microseconds of one `validate_lineage`, by what it validates."""
    default, strict = LineageRequirements.from_config(Lineage()), LineageRequirements.from_config(STRICT)
    many = SUMMARY | {"input.snapshot_ids": json.dumps(list(range(5_000)))}

    def refused() -> None:
        with suppress(LineageRejected):
            validate_lineage({"operation": "overwrite"}, strict, table="artemis.passes")

    return {
        "passes, default requirements": _microseconds(lambda: validate_lineage(SUMMARY, default)),
        "passes, patterns and allow-lists": _microseconds(lambda: validate_lineage(SUMMARY, strict)),
        "passes, 5,000 input snapshots": _microseconds(lambda: validate_lineage(many, default), 200),
        "refused, every key missing": _microseconds(refused),
    }


def _microseconds(call: Callable[[], None], calls: int = 2_000, repetitions: int = 7) -> float:
    def once() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - began) / calls * 1e6

    once()
    return round(median(once() for _ in range(repetitions)), 1)


def database(home: Path, appends: int = 40) -> dict[str, float]:
    """Milliseconds of a `request_pass`, and of a pyiceberg append of one row to a gated and to a free table."""
    server = EmbeddedPostgres(home)
    server.start()
    try:
        engine = connect(server.uri("postgres"))
        ensure_tables(engine)
        config = LifecycleConfig.model_validate(
            {"tables": {"gated.*": {}, **{f"t{number}.*": {} for number in range(200)}}}
        )
        install_gate(engine, "live", rules_of(config))
        row, passes = GatedRow("live", "gated", "t"), list[float]()
        for number in range(201):
            began = time.perf_counter()
            with engine.begin() as connection:
                assert not request_pass(connection, row, [SUMMARY], base=None, location=f"file:/{number}")
            passes.append((time.perf_counter() - began) * 1e3)
        properties = {"uri": server.uri("postgres"), "warehouse": f"file://{home}/warehouse"}
        impl = "artemis_lifecycle.catalogs.pyiceberg_gate.GatedSqlCatalog"
        gated, plain = load_catalog("live", **properties, **{"py-catalog-impl": impl}), SqlCatalog("live", **properties)
        rows = pa.table({"id": [1]})
        lineage = {key: value for key, value in SUMMARY.items() if key != "operation"}
        for catalog, namespace in ((gated, "gated"), (plain, "free")):
            catalog.create_namespace(namespace)
            catalog.create_table(f"{namespace}.t", rows.schema)
        seconds: dict[str, list[float]] = {"gated": [], "free": []}
        for _ in range(appends):
            for catalog, namespace in ((gated, "gated"), (plain, "free")):
                table = catalog.load_table(f"{namespace}.t")
                began = time.perf_counter()
                table.append(rows, snapshot_properties=lineage)
                seconds[namespace].append((time.perf_counter() - began) * 1e3)
        engine.dispose()
        for catalog in (gated, plain):
            catalog.close()
        return {
            "request_pass, first of a session (compiles its patterns)": round(passes[0], 1),
            "request_pass, 200 rules": round(median(passes[1:]), 2),
            "pyiceberg append, plain": round(median(seconds["free"]), 1),
            "pyiceberg append, gated": round(median(seconds["gated"]), 1),
        }
    finally:
        server.remove()


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="artemis-bench-"))
    home.chmod(0o755)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = {"validate_lineage, microseconds": validation(), "database, milliseconds": database(home)}
        print(json.dumps(found, indent=2))
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
