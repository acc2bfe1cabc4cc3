"""A silent catalog's warehouse on this machine may be written without a scheme: deletions there wait, too."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from artemis_lifecycle.config.deployment import Catalogs
from artemis_lifecycle.errors import OperationsUnavailable
from artemis_lifecycle.session.live_catalogs import AllReaders


class Live:
    def tables(self) -> list[str]:
        return []

    def others(self) -> list[Any]:
        return []


@pytest.mark.parametrize("warehouse", ["file:///mnt/finance", "/mnt/finance"])
def test_every_root_of_a_silent_catalog_counts(warehouse: str) -> None:
    sql = {"uri": "postgresql+psycopg2://a@h/d"}
    finance = {"type": "glue", "warehouse": warehouse, "roots": ["s3://other/finance"]}
    said = {"live": {**sql, "warehouse": "s3://lake/live"}, "cold": {**sql, "warehouse": "s3://lake/cold"}}
    catalogs = Catalogs.model_validate({**said, "finance": finance})

    def around(name: str) -> Any:
        if name == "finance":
            raise OperationsUnavailable("Catalog finance does not answer", hint="start it")
        return Live()

    readers = AllReaders("live", catalogs, around, lambda name: [], lambda: datetime.now(UTC))
    assert {each.location for each in readers.others()} >= {warehouse, "s3://other/finance"}
