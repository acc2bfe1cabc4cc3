"""A deletion looks at the catalog: what it saw is known once it is dropped, also without sensor and orphan scans."""

from __future__ import annotations

from contextlib import suppress

import pytest

from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import make_all_old, outcomes, overwrite, sql, take_up, warehouse
from artemis_lifecycle_tests.protection.test_finding_10 import bring_back, create
from artemis_lifecycle_tests.protection.test_two_names_of_one_uuid import Opened, opened

__all__ = ["opened"]


@pytest.mark.parametrize("sensor", [True, False], ids=["sensor", "deletions-alone"])
def test_a_reader_that_deletions_saw_is_a_dropped_table_once_it_is_dropped(opened: Opened, sensor: bool) -> None:
    lifecycle = opened({**WITHOUT_COLD, "dropped": {"keep": "30d"}})
    owner = create(lifecycle, "db.owner")
    create(lifecycle, "db.reader")
    [shared] = (owner / "data").glob("*.parquet")
    take_up(lifecycle, "db.reader", owner / "data")
    overwrite(lifecycle, "db.owner", 9)
    # A night: the deletion sees that the reader reads it.
    done = lifecycle.expire("db.owner")
    assert outcomes(done)[str(shared)] == ("kept", "reachable from db.reader")
    if sensor:
        lifecycle.observe_catalog()
    pointer = lifecycle.get_current("db.reader").metadata_location
    sql(lifecycle, "DROP TABLE {live}.db.reader")
    make_all_old(warehouse(lifecycle, "live"))
    # The kept file is an orphan by now; an orphan scan records the catalog only after the drop.
    with suppress(LifecycleError):
        lifecycle.delete_orphans(lifecycle.scan_orphans("db.owner"))

    assert local(str(shared)).exists()
    assert bring_back(lifecycle, "db.reader", pointer) == [1, 1]
