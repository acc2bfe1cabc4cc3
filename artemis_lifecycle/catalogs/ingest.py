"""A pyiceberg catalog for writers with a separate connection pool, so that lifecycle work and ingest cannot exhaust
each other's pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from artemis_lifecycle.catalogs.settings import pyiceberg_properties, require_uri
from artemis_lifecycle.catalogs.tables import ensure_tables
from artemis_lifecycle.config import deployment
from artemis_lifecycle.operations.database import Purpose, connect

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as PyIcebergCatalog


def ingest_catalog(catalog: deployment.Catalog) -> PyIcebergCatalog:
    """Return the catalog for writers: pyiceberg's own of that type; on Postgres with the ingest pool."""
    return pyiceberg_catalog(catalog, purpose="ingest")


def pyiceberg_catalog(catalog: deployment.Catalog, *, purpose: Purpose = "lifecycle") -> PyIcebergCatalog:
    """Return the catalog as pyiceberg's own type, with the pool of `purpose`. Raises OperationsUnavailable;
    ConfigError."""
    from pyiceberg.catalog import load_catalog

    from artemis_lifecycle.catalogs.pyiceberg_gate import GatedSqlCatalog

    properties = pyiceberg_properties(catalog)
    if catalog.type != "sql":
        return load_catalog(catalog.name, **properties)
    engine = connect(require_uri(catalog), purpose=purpose)
    ensure_tables(engine)

    return GatedSqlCatalog(catalog.name, engine, **properties)
