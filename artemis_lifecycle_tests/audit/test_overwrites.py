"""Overwrites of a time range are exactly those that a search by hand finds, with what they miss."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.audit.answers import REMOVING, overwrites_of
from artemis_lifecycle.audit.ledger import ROWS
from artemis_lifecycle.catalogs.results import Where

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_texts = st.sampled_from([None, "", "j.smith", "OPS-7"])
_rows = st.lists(
    st.fixed_dictionaries(
        {
            "table_name": st.sampled_from(["ns.a", "ns.b"]),
            "snapshot_id": st.integers(1, 50),
            "committed_at": st.none() | st.integers(0, 9).map(lambda hours: _BEGIN + timedelta(hours=hours)),
            "operation": st.sampled_from(["append", "overwrite", "delete", "replace", "expiration", None]),
            "trigger_operator": _texts,
            "writer_id": _texts,
            "trigger_type": _texts,
            "trigger_ticket": _texts,
        }
    ),
    unique_by=lambda row: (row["table_name"], row["snapshot_id"]),
)


@given(_rows, st.integers(0, 9), st.integers(0, 9))
def test_they_are_what_a_search_by_hand_finds(rows: list[dict[str, object]], first: int, last: int) -> None:
    since, until = _BEGIN + timedelta(hours=first), _BEGIN + timedelta(hours=last)
    table = pa.Table.from_pylist(rows, ROWS)
    conditions = [Where("operation", "in", REMOVING), Where("committed_at", ">=", since)]
    for condition in [*conditions, Where("committed_at", "<", until)]:
        table = condition.matches(table)
    # One that was recorded while it was read from metadata comes twice.
    found = overwrites_of(pa.concat_tables([table, table]), since, until, None, 0)

    keys = {
        "trigger_operator": "trigger.operator",
        "writer_id": "writer.id",
        "trigger_type": "trigger.type",
        "trigger_ticket": "trigger.ticket",
    }
    expected = {}
    for row in rows:
        at = row["committed_at"]
        if row["operation"] in ("overwrite", "delete") and isinstance(at, datetime) and since <= at < until:
            missing = {key for column, key in keys.items() if row[column] in (None, "")}
            expected[row["table_name"], row["snapshot_id"]] = (
                at,
                row["trigger_operator"],
                row["trigger_ticket"],
                missing,
            )
    assert {(r.table, r.snapshot_id): (r.committed_at, r.who, r.ticket, set(r.missing)) for r in found.rows} == expected
    assert len(found.rows) == len(expected)
    assert [r.committed_at for r in found.rows] == sorted(r.committed_at for r in found.rows)
    assert {(r.table, r.snapshot_id) for r in found.incomplete} == {key for key, row in expected.items() if row[3]}
