"""Tables of a Nessie server for the demo (`--with nessie`), written by Spark on branches: one branch stays, with a
table of its own, and one is deleted, which leaves the files of its commits. Belongs here: writing them, and reading
them again. Does not belong: what the walk does to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import requests

from .proofs import Fingerprint, Proof, fingerprint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "versions"
MAIN, EXPERIMENT, ABANDONED = "main", "experiment", "abandoned"
LAUNCHES, TRIALS = "mission.launches", "mission.trials"
TABLES = (f"{CATALOG}:{LAUNCHES}", f"{CATALOG}:{TRIALS}@{EXPERIMENT}")
"""The first is on every branch; the second on one branch alone."""

COMMITS = 7
_AGE = timedelta(days=20)
_SECONDS = 60


@dataclass(frozen=True)
class NessieHistory:
    """The tables as they were written: what each reads on each branch, and the files of the deleted branch's commit."""

    spark: SparkSession
    prints: Mapping[tuple[str, str], Fingerprint]
    left: tuple[Path, ...]


def write_history(
    spark: SparkSession, api: str, warehouse: Path, now: datetime, on_done: Callable[[int], None]
) -> NessieHistory:
    """Write the tables through Iceberg's NessieCatalog. Their files are set back in time; `on_done` hears how many
    commits there are."""

    def sql(branch: str, statement: str, done: int) -> None:
        spark.sql(statement.format(_catalog(branch)))
        on_done(done)

    for branch in (MAIN, EXPERIMENT, ABANDONED):
        _add_catalog(spark, api, branch, warehouse)
    spark.sql(f"CREATE NAMESPACE {_catalog(MAIN)}.mission")
    sql(MAIN, f"CREATE TABLE {{}}.{LAUNCHES} (launch INT, site STRING) USING iceberg", 1)
    sql(MAIN, f"INSERT INTO {{}}.{LAUNCHES} VALUES (1, 'Kourou'), (2, 'Vandenberg')", 2)
    for branch in (EXPERIMENT, ABANDONED):
        _branch(api, branch)
    sql(EXPERIMENT, f"CREATE TABLE {{}}.{TRIALS} (trial INT) USING iceberg", 3)
    sql(EXPERIMENT, f"INSERT INTO {{}}.{TRIALS} VALUES (1), (2), (3)", 4)
    sql(EXPERIMENT, f"INSERT INTO {{}}.{LAUNCHES} VALUES (3, 'a trial')", 5)
    before = _data_files(warehouse)
    sql(ABANDONED, f"INSERT INTO {{}}.{LAUNCHES} VALUES (4, 'a mistake')", 6)
    left = _data_files(warehouse) - before
    sql(MAIN, f"INSERT INTO {{}}.{LAUNCHES} VALUES (5, 'Wallops')", 7)
    _delete(api, ABANDONED)
    at = (now - _AGE).timestamp()
    for path in warehouse.rglob("*"):
        if path.is_file():
            os.utime(path, (at, at))
    places = ((MAIN, LAUNCHES), (EXPERIMENT, LAUNCHES), (EXPERIMENT, TRIALS))
    return NessieHistory(spark, {place: _read(spark, *place) for place in places}, tuple(sorted(left)))


def prove(history: NessieHistory) -> list[Proof]:
    """Read the tables on their branches again, and hold them against what was written."""

    def same(table: str) -> Proof:
        wanted = {place: rows for place, rows in history.prints.items() if place[1] == table}
        found = [place for place, rows in wanted.items() if _read(history.spark, *place) == rows]
        name = TABLES[0] if table == LAUNCHES else TABLES[1]
        return Proof(
            name,
            "Spark reads the same rows on each branch as before",
            len(found) == len(wanted),
            ", ".join(f"{branch}: {wanted[branch, table].rows} rows" for branch, _ in wanted),
        )

    gone = sum(1 for path in history.left if not path.exists())
    claim = f"the files of the deleted branch {ABANDONED} are gone"
    cleaned = Proof(
        TABLES[0], claim, gone == len(history.left) > 0, f"{gone} of {len(history.left)} data files, no reference shows"
    )
    return [same(LAUNCHES), cleaned, same(TRIALS)]


def _catalog(branch: str) -> str:
    return f"demo_{CATALOG}_{branch}"


def _add_catalog(spark: SparkSession, api: str, branch: str, warehouse: Path) -> None:
    prefix = f"spark.sql.catalog.{_catalog(branch)}"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
        ".uri": api,
        ".ref": branch,
        ".warehouse": f"file://{warehouse}",
        ".client-api-version": "2",
        ".cache-enabled": "false",
    }
    for key, value in settings.items():
        spark.conf.set(f"{prefix}{key}", value)


def _read(spark: SparkSession, branch: str, table: str) -> Fingerprint:
    return fingerprint(spark.table(f"{_catalog(branch)}.{table}"))


def _head(api: str, branch: str) -> str:
    answer = requests.get(f"{api}/trees/{branch}", timeout=_SECONDS)
    answer.raise_for_status()
    return str(answer.json()["reference"]["hash"])


def _branch(api: str, name: str) -> None:
    source = {"type": "BRANCH", "name": MAIN, "hash": _head(api, MAIN)}
    wanted = {"name": name, "type": "BRANCH"}
    requests.post(f"{api}/trees", params=wanted, json=source, timeout=_SECONDS).raise_for_status()


def _delete(api: str, name: str) -> None:
    requests.delete(f"{api}/trees/{name}@{_head(api, name)}", timeout=_SECONDS).raise_for_status()


def _data_files(warehouse: Path) -> set[Path]:
    return {path for path in warehouse.rglob("data/*.parquet") if path.is_file()}
