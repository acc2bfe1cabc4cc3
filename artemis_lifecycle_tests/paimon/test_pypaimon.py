"""Tables that pypaimon writes are tables to Paimon's Java, and the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from artemis_lifecycle_tests.paimon.bundle import Table, create
from artemis_lifecycle_tests.paimon.python_tables import pypaimon


def test_java_reads_and_expires_what_pypaimon_wrote(calls: Any, warehouse: Path) -> None:
    at = [str(warehouse), "db.t"]
    pypaimon(
        ("create", at, {"partitioned": True, "options": {"bucket": "-1"}}),
        ("write", [*at, [[1, "a", "one"], [2, "b", None]]], {}),
        ("tag", [*at, "first", 1], {"retained": "1d"}),
        ("create_branch", [*at, "side", "first"], {}),
        ("consume", [*at, "reader", 2], {}),
        ("write", [*at, [[3, "a", "three"]]], {}),
        ("write", [*at, [[4, "a", "four"]]], {"overwrite": True}),
        ("write", [*at, [[5, "s", "side"]]], {"branch": "side"}),
    )
    table = Table(calls, warehouse / "db.db" / "t")
    first, second = [(1, "a", "one"), (2, "b", None)], (3, "a", "three")

    assert table.contents() == {
        "main snapshot 1": first,
        "main snapshot 2": sorted([*first, second]),
        "main snapshot 3": [(2, "b", None), (4, "a", "four")],
        "main tag first": first,
        "side snapshot 1": first,
        "side snapshot 2": [*first, (5, "s", "side")],
        "side tag first": first,
    }
    assert table.expire(retain_max=1, retain_min=1) == 1  # The consumer has yet to read the second.
    assert table.snapshots() == [2, 3]


def test_pypaimon_reads_and_continues_what_java_wrote(calls: Any, warehouse: Path) -> None:
    table = create(calls, warehouse, keyed=True, options={"bucket": "1"})
    table.write([(1, "a", "one"), (2, "a", "two")])
    at = [str(warehouse), "db.t"]

    found = pypaimon(
        ("read", at, {"options": {}}),
        ("write", [*at, [[2, "a", "changed"]]], {}),
        ("read", at, {"options": {"scan.snapshot-id": "1"}}),
    )

    assert found == [[[1, "a", "one"], [2, "a", "two"]], 2, [[1, "a", "one"], [2, "a", "two"]]]
    assert table.read() == [(1, "a", "one"), (2, "a", "changed")]
