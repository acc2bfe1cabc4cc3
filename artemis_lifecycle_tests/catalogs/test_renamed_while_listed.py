"""A catalog that is not in SQL is listed, then each table is loaded: one that is renamed in between is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField

from artemis_lifecycle.catalogs.identifier import Identifier
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.protection.absence import Absence
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.rest.homes import glue

pytestmark = pytest.mark.seconds


@pytest.fixture
def reader(tmp_path: Any) -> Iterator[CatalogReader]:
    with glue() as home:
        said = {"name": "finance", **home.live, "warehouse": f"file://{tmp_path}/finance"}
        with CatalogReader(Catalog.model_validate(said)) as opened:
            opened._source._catalog().create_namespace("db")  # type: ignore[union-attr]
            schema = Schema(NestedField(1, "id", IntegerType(), required=False))
            opened._source._catalog().create_table(("db", "a"), schema)  # type: ignore[union-attr]
            yield opened


@pytest.mark.parametrize("renamed", [False, True])
def test_a_table_that_is_renamed_meanwhile_is_in_the_answer(
    reader: CatalogReader, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    source: Any = reader._source
    load = source._loaded_entry

    def meanwhile(identifier: Identifier) -> Any:
        if renamed and identifier.name == "a":
            source._catalog().rename_table(("db", "a"), ("db", "b"))
        return load(identifier)

    monkeypatch.setattr(source, "_loaded_entry", meanwhile)
    try:
        found = reader.pointers()
    except LifecycleError:
        return  # It may also say that it does not know.
    assert found, "the catalog has a table, and had one all the time"


@pytest.mark.parametrize("renamed", [False, True])
def test_a_dropped_table_that_is_back_is_found(
    reader: CatalogReader, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    """What each batch of a dropped table's deletion asks: the table was registered again, and is renamed meanwhile."""
    source: Any = reader._source
    load, stores = source._loaded_entry, Stores()
    (pointer,) = reader.pointers().values()
    absence = Absence(reader, stores, read_table_metadata(stores, pointer.metadata_location), "db.dropped")

    def meanwhile(identifier: Identifier) -> Any:
        if renamed and identifier.name == "a":
            source._catalog().rename_table(("db", "a"), ("db", "b"))
        return load(identifier)

    monkeypatch.setattr(source, "_loaded_entry", meanwhile)
    with pytest.raises(LifecycleError):
        absence.require()


def test_a_database_with_a_dot_in_its_name_is_one_level(reader: CatalogReader, tmp_path: Any) -> None:
    source: Any = reader._source
    catalog = source._catalog()
    database = {"Name": "dotted.db", "LocationUri": f"file://{tmp_path}/dotted"}
    catalog.glue.create_database(DatabaseInput=database)
    try:
        schema = Schema(NestedField(1, "id", IntegerType(), required=False))
        made = catalog.create_table(("dotted.db", "t"), schema, location=f"file://{tmp_path}/dotted/t")
        name = Identifier(("dotted.db",), "t")
        assert ("dotted.db",) in source.namespaces()
        assert {each.parts for each in source.tables()} == {("db", "a"), name.parts}
        found = reader.pointers()[str(name)]
        assert found.metadata_location == made.metadata_location and found.problem is None
        assert reader.entry(str(name)).metadata_location == made.metadata_location
    finally:
        catalog.glue.delete_table(DatabaseName="dotted.db", Name="t")
        catalog.glue.delete_database(Name="dotted.db")
