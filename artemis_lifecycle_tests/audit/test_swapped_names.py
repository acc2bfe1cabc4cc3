"""Two names of one uuid are two tables, whatever their names are now: also for what is asked of their pasts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from artemis_lifecycle.errors import HandoffFailed, LifecycleError
from artemis_lifecycle_tests.cold_tier.test_as_live_did import Place, Rows, make_place

__all__ = ["make_place"]


@pytest.mark.parametrize("looked", [True, False], ids=["looked-since", "not-looked-since"])
def test_each_of_two_tables_whose_names_were_swapped_answers_for_itself(
    make_place: Callable[[str], Place], looked: bool
) -> None:
    one = make_place(f"swapped_{looked}".lower())
    lifecycle = one.lifecycle
    other = Place(lifecycle, f"{one.name}_copy")
    one.sql("CREATE TABLE {t} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    one.sql("INSERT INTO {t} VALUES (1)")
    location = lifecycle.snapshot_history(one.table).metadata_location
    one.sql(f"CALL {{catalog}}.system.register_table(table => '{other.table}', metadata_file => '{location}')")
    lifecycle.observe_catalog()
    at: list[datetime] = [datetime.now(UTC)]
    for number in (2, 3):
        one.sql(f"INSERT OVERWRITE {{t}} VALUES ({number})")
        other.sql(f"INSERT OVERWRITE {{t}} VALUES ({number * 10})")
        at.append(datetime.now(UTC))
    one.sql("INSERT OVERWRITE {t} VALUES (4)")
    lifecycle.expire(one.table)

    # The copy goes live under the name that everybody reads.
    one.sql(f"ALTER TABLE {{t}} RENAME TO {one.table}_old")
    one.sql(f"ALTER TABLE {{catalog}}.{other.table} RENAME TO {one.table}")
    one.sql(f"ALTER TABLE {{catalog}}.{one.table}_old RENAME TO {other.table}")
    if looked:
        lifecycle.observe_catalog()
    first, second = other, one

    def rows(place: Place, as_of: datetime) -> Rows | str:
        try:
            return [tuple(row) for row in lifecycle.read(place.table, as_of=as_of).collect()]
        except LifecycleError as error:
            return type(error).__name__

    by_spark = [second.sql(f"SELECT * FROM {{t}} TIMESTAMP AS OF '{each:%Y-%m-%d %H:%M:%S.%f}'") for each in at]
    assert by_spark == [[(1,)], [(20,)], [(30,)]]
    assert [rows(second, each) for each in at] == by_spark
    assert [rows(first, each) for each in at] == [[(1,)], [(2,)], [(3,)]]
    # The archive goes on with the table that it belongs to.
    second.sql("INSERT OVERWRITE {t} VALUES (40)")
    with pytest.raises(HandoffFailed, match=f"belongs to {first.table}"):
        lifecycle.expire(second.table)
    at.append(datetime.now(UTC))
    first.sql("INSERT OVERWRITE {t} VALUES (5)")
    assert lifecycle.expire(first.table).failed == 0
    assert [rows(first, each) for each in at] == [[(1,)], [(2,)], [(3,)], [(4,)]]
