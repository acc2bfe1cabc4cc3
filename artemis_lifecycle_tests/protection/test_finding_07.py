"""Finding 7: the dry run was another program. For each kind of deletion it says, file by file and with the reason, what
the real run does next."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import Refused
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import AT_ONCE, WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import (
    files_below,
    ids,
    make_all_old,
    outcomes,
    overwrite,
    place,
    sql,
    stray,
    take_up,
    warehouse,
)


def require_the_same(foreseen: DeletionReport, done: DeletionReport) -> dict[str, tuple[str, str]]:
    """The dry run promised what the real run did; the real outcomes."""
    real = outcomes(done)
    said = {
        path: ("deleted" if what == "would_delete" else what, why) for path, (what, why) in outcomes(foreseen).items()
    }
    assert said == real
    assert (foreseen.would_delete, foreseen.kept, foreseen.already_absent) == (
        done.deleted,
        done.kept,
        done.already_absent,
    )
    assert (foreseen.would_delete_bytes, foreseen.deleted, foreseen.bytes) == (done.bytes, 0, 0)
    return real


def test_a_dry_run_of_an_orphan_scan_says_what_the_real_run_does(
    make_config: MakeConfig, spark: SparkSession, anywhere: str
) -> None:
    config = make_config(defaults=WITHOUT_COLD)
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        folder = place(lifecycle, table)
        names = ("goes", "rewritten", "longer", "younger", "absent", "committed", "in-flight/written", "inner/nested")
        files = {name: stray(folder, f"data/{name}.parquet") for name in names}
        [real] = list((folder / "data").glob("00000-*.parquet"))[:1]
        files["committed"].write_bytes(real.read_bytes())
        make_all_old(folder)
        hidden = stray(folder, "_checkpoints/0")
        scan = lifecycle.scan_orphans(table)
        assert {Path(row["path"]).name for row in scan.files().collect()} == {path.name for path in files.values()}

        size = files["rewritten"].stat().st_size
        files["rewritten"].write_bytes(b"#" * size)
        with files["longer"].open("ab") as file:
            before = files["longer"].stat()
            file.write(b"more")
        os.utime(files["longer"], ns=(before.st_atime_ns, before.st_mtime_ns))
        os.utime(files["younger"])
        files["absent"].unlink()
        take_up(lifecycle, table, folder / "data", "committed.parquet")
        sql(lifecycle, f"CREATE TABLE {{live}}.db.inner (id int) USING iceberg LOCATION 'file://{folder}/data/inner'")
        untouched = files_below(warehouse(lifecycle, "live"))
        with lifecycle.writing(table, "loader", prefix="data/in-flight"):
            foreseen = lifecycle.delete_orphans(scan, dry_run=True)
            assert files_below(warehouse(lifecycle, "live")) == untouched
            assert lifecycle.operations.journal.job(scan.scan_id) is None
            done = lifecycle.delete_orphans(scan)

        real_outcomes = require_the_same(foreseen, done)
        outcome_of = {name: real_outcomes[str(path)] for name, path in files.items()}
        assert outcome_of == {
            "goes": ("deleted", outcome_of["goes"][1]),
            "rewritten": ("kept", "changed_since_listing"),
            "longer": ("kept", "changed_since_listing"),
            "younger": ("kept", "changed_since_listing"),
            "absent": ("absent", outcome_of["goes"][1]),
            "committed": ("kept", "reachable"),
            "in-flight/written": ("kept", "in_flight"),
            "inner/nested": ("kept", "other_table"),
        }
        assert hidden.exists() and not files["goes"].exists()
        # When it is over, both say what became of it.
        again = outcomes(lifecycle.delete_orphans(scan))
        assert again == real_outcomes


def test_a_dry_run_says_what_became_hidden_or_outside_by_the_policy_of_now(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    defaults = {**WITHOUT_COLD, "orphans": {**AT_ONCE["orphans"], "hidden": "scan", "max_share": 1}}
    config = make_config(defaults=defaults)
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 1)
        files = [stray(place(lifecycle, table), name) for name in ("data/a.parquet", "_checkpoints/0")]
        scan = lifecycle.scan_orphans(table)
    orphans = config.defaults.orphans.model_copy(update={"hidden": "keep"})
    config = config.model_copy(update={"defaults": config.defaults.model_copy(update={"orphans": orphans})})
    with open_lifecycle(config, spark=spark) as lifecycle:
        outcome_of = require_the_same(
            lifecycle.delete_orphans(scan.scan_id, dry_run=True), lifecycle.delete_orphans(scan.scan_id)
        )
        assert [outcome_of[str(path)][0] for path in files] == ["deleted", "kept"]


def test_a_dry_run_is_refused_where_the_real_run_is(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 1)
    stray(place(at_once, table))
    scan = at_once.scan_orphans(table)
    hold = at_once.hold(table, "legal", "case 7")
    said = []
    for dry_run in (True, False):
        with pytest.raises(Refused) as refused:
            at_once.delete_orphans(scan, dry_run=dry_run)
        said.append(str(refused.value))
    assert said[0] == said[1] and hold.hold_id in said[0]


def test_a_dry_run_of_an_expiration_says_what_the_real_run_does(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 3)
    overwrite(at_once, table, 9)
    plan = at_once.plan_expiration(table)
    early = at_once.delete_files(plan, dry_run=True)
    assert early.would_delete == plan.summary.files
    at_once.commit_expiration(plan)
    data = sorted(path for path in (place(at_once, table) / "data").glob("*.parquet") if str(path) in outcomes(early))
    data[0].unlink()
    take_up(at_once, table, data[1].parent, data[1].name)
    first = at_once.delete_files(plan, dry_run=True)
    assert outcomes(first)[str(data[0])][0] == "absent" and outcomes(first)[str(data[1])] == ("kept", "reachable")

    outcome_of = require_the_same(first, at_once.delete_files(plan))

    assert Counter(outcome for outcome, _ in outcome_of.values())["deleted"] == plan.summary.files - 2
    assert ids(at_once, table) == sorted([9, ids(at_once, table)[0]])


def test_a_dry_run_after_a_part_of_an_expiration_says_what_is_left(at_once: Lifecycle) -> None:
    table = make_table(at_once, "t", 2)
    overwrite(at_once, table, 9)
    plan = at_once.plan_expiration(table)
    at_once.commit_expiration(plan)
    with at_once.writing(table, "loader", prefix="data"):
        done = at_once.delete_files(plan)
        assert done.kept == done.pending > 0
        foreseen = at_once.delete_files(plan, dry_run=True)
        # What is gone is absent to a run that would begin now.
        assert (foreseen.kept, foreseen.would_delete, foreseen.already_absent) == (done.kept, 0, done.deleted)
    foreseen = at_once.delete_files(plan, dry_run=True)
    assert foreseen.would_delete == done.pending
    assert at_once.delete_files(plan).deleted == done.deleted + foreseen.would_delete


def test_a_dry_run_of_a_dropped_table_says_what_the_real_run_does(make_config: MakeConfig, spark: SparkSession) -> None:
    defaults = {**WITHOUT_COLD, "dropped": {"keep": "0s", "approval": "guards"}}
    with open_lifecycle(make_config(defaults=defaults, tables={"db.*": {}}), spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 3)
        folder = place(lifecycle, table)
        lifecycle.observe_catalog()
        make_all_old(folder)
        sql(lifecycle, f"DROP TABLE {{live}}.{table}")
        lifecycle.observe_catalog()
        scan = lifecycle.scan_dropped(table)
        data = sorted((folder / "data").glob("*.parquet"))
        data[0].unlink()
        data[1].write_bytes(b"another one")
        reader = make_table(lifecycle, "reader", 0)
        take_up(lifecycle, reader, folder / "data", data[2].name)

        outcome_of = require_the_same(lifecycle.delete_dropped(scan, dry_run=True), lifecycle.delete_dropped(scan))

        assert outcome_of[str(data[0])][0] == "absent"
        assert outcome_of[str(data[1])] == ("kept", "changed_since_listing")
        assert outcome_of[str(data[2])] == ("kept", f"reachable from {reader}")
        assert ids(lifecycle, reader) == [2]


def test_a_dry_run_of_a_quarantine_says_what_the_real_run_does(make_config: MakeConfig, spark: SparkSession) -> None:
    defaults = {**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}}
    config = make_config(defaults=defaults, quarantine={"retain": "1ms"})
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 1)
        files = [stray(place(lifecycle, table), f"data/{name}.parquet") for name in "abc"]
        scan = lifecycle.scan_orphans(table)
        files[0].unlink()
        os.utime(files[1])
        foreseen, done = lifecycle.delete_orphans(scan, dry_run=True), lifecycle.delete_orphans(scan)
        assert (foreseen.would_delete, foreseen.kept, foreseen.already_absent) == (
            done.deleted,
            done.kept,
            done.already_absent,
        )
        assert [outcomes(done)[str(path)][0] for path in files] == ["absent", "kept", "quarantined"]
        dry = lifecycle.purge_quarantine(table, dry_run=True)
        wet = lifecycle.purge_quarantine(table)
        assert [(each.deleted, each.kept) for each in dry] == [(each.deleted, each.kept) for each in wet]
