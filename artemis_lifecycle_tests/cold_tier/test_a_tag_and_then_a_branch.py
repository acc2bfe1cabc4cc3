"""A name of a ref is not the ref: what a tag meant, where a branch has its name at the handoff."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle_tests.cold_tier.test_as_live_did import Place, make_place

__all__ = ["make_place"]


@pytest.mark.parametrize("night", ["before-the-branch", "while-there-is-the-branch"])
def test_what_a_tag_meant_is_no_later_branch(make_place: Callable[[str], Place], night: str) -> None:
    place = make_place(f"tag_{night[:6]}".replace("-", "_"))
    place.sql("CREATE TABLE {t} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    place.sql("INSERT INTO {t} VALUES (1)")
    place.sql("ALTER TABLE {t} CREATE TAG release")
    released = datetime.now(UTC)
    place.sql("INSERT OVERWRITE {t} VALUES (2)")
    place.sql("ALTER TABLE {t} DROP TAG release")
    place.sql("INSERT OVERWRITE {t} VALUES (3)")
    if night == "before-the-branch":
        place.lifecycle.expire(place.table)
    # The same name goes on as a branch, on which people work.
    place.sql("ALTER TABLE {t} CREATE BRANCH release")
    place.sql("INSERT OVERWRITE {t} VALUES (4)")
    place.lifecycle.expire(place.table)
    place.sql("ALTER TABLE {t} DROP BRANCH release")

    try:
        rows = [tuple(row) for row in place.lifecycle.read(place.table, tag="release", as_of=released).collect()]
    except LifecycleError as error:
        rows = [(type(error).__name__,)]

    # docs/tags.md: what it meant then; an error if there was no such tag.
    assert rows in ([(1,)], [("NoSuchSnapshot",)])
