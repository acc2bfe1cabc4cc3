"""The demo's own place: a folder below the home, two catalogs of its own, and its lifecycle.yaml. Belongs here: making
it, and wiping it for the next run. Does not belong: touching anything outside.

Two marks identify what the demo owns: files are below `<home>/demo`, which has a mark of its own; rows of catalogs
are those of the catalogs `demo_live` and `demo_cold` that point there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import delete, select

from artemis_lifecycle.catalogs.guard import lift_guard
from artemis_lifecycle.catalogs.settings import require_uri
from artemis_lifecycle.catalogs.sql import ensure_tables, iceberg_namespace_properties, iceberg_tables
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.addresses import fill
from artemis_lifecycle.embedded.locks import file_lock
from artemis_lifecycle.errors import MissingFile, Refused, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations.database import Operations, connect
from artemis_lifecycle.operations.plans import HOLDING
from artemis_lifecycle.storage.location import is_under, normalize
from artemis_lifecycle.storage.stores import Stores, StoreSettings

from .schedule import ARCHIVE, REGISTRY, TELEMETRY

LIVE, COLD = "demo_live", "demo_cold"

MARK = ".artemis-demo"
_OWN = ("warehouse", "state", "lifecycle.yaml")

SET_ASIDE = ("ARTEMIS_LIVE_WAREHOUSE", "ARTEMIS_COLD_WAREHOUSE", "ARTEMIS_OPERATIONS_ROOT", "ARTEMIS_HOME")
"""Variables that the demo does not follow: it sets file times back, so its warehouses must be its own and on a disk."""

OTHERS = "@others@"

CONFIG = f"""\
# Written by the demo (`make demo`), and again by its next run. Postgres is the embedded one, or $ARTEMIS_POSTGRES_URI.
home: ..
catalogs:
  live: {{name: {LIVE}, warehouse: warehouse/live}}
  cold: {{name: {COLD}, warehouse: warehouse/cold}}
{OTHERS}operations: {{root: state}}
defaults:
  # A demo cannot wait for a day. Where people read, keep the default of 24h: a running query may still need the files.
  deletion: {{grace: 1ms}}
prices:
  # Amazon's list prices for us-east-1, to show the figures: yours may differ.
  classes:
    STANDARD: {{gb_month: 0.023, put_per_1000: 0.005, get_per_1000: 0.0004, read_per_gb: 0}}
    GLACIER_IR: {{gb_month: 0.004, put_per_1000: 0.02, get_per_1000: 0.01, read_per_gb: 0.03}}
    DEEP_ARCHIVE: {{gb_month: 0.00099, put_per_1000: 0.05, get_per_1000: 0.0004, thaw_per_1000: 0.1, read_per_gb: 0.02}}
tables:
  # The registry's oldest history goes on to the deep archive: after 180 days here, after 7 years by default.
  {REGISTRY}: {{retention: {{window: 30d}}, cold_tier: {{retain: 180d}}}}
  {TELEMETRY}: {{retention: {{window: 7d}}}}
  {ARCHIVE}: {{retention: {{window: 365d}}}}
  # Tables of your own: make one in namespace `scratch` of catalog {LIVE}, and it will be discovered.
  "scratch.*": {{retention: {{window: 3d}}}}
"""


@dataclass(frozen=True)
class Area:
    """The demo's folder and the configuration in it, every address filled."""

    folder: Path
    config_path: Path
    config: LifecycleConfig


@contextmanager
def demo_area(home: Path, environment: Mapping[str, str] | None = None, others: str = "") -> Iterator[Area]:
    """The demo's place, empty, for the time of the block; one demo at a time. `others` are more lines of `catalogs`.

    Starts the embedded Postgres where no other is named. Raises Refused when `<home>/demo` or the catalogs hold what
    the demo did not make; Busy when another demo runs; what starting Postgres raises.
    """
    folder = home.resolve() / "demo"
    with file_lock(home.resolve() / "demo.lock", timeout=1):
        _refuse_foreign_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()
        config_path = folder / "lifecycle.yaml"
        config_path.write_text(CONFIG.replace(OTHERS, others))
        config = fill(load_config(config_path, demo_environment(os.environ if environment is None else environment)))
        _wipe(config, folder)
        yield Area(folder, config_path, config)


def demo_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the demo follows."""
    return {key: value for key, value in environment.items() if key not in SET_ASIDE}


def _refuse_foreign_folder(folder: Path) -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    foreign = folder.is_symlink() or not folder.is_dir()
    if foreign or (not (folder / MARK).is_file() and any(folder.iterdir())):
        raise Refused(
            "The demo's folder holds something that the demo did not make",
            path=str(folder),
            untouched="all of it",
            hint="move it away, or name another folder with --home",
        )


def _wipe(config: LifecycleConfig, folder: Path) -> None:
    """Rows before files: a run that dies in between leaves no row that points at nothing."""
    engine = connect(require_uri(config.catalogs.live))
    try:
        ensure_tables(engine)
        rows = iceberg_tables.c.catalog_name.in_((LIVE, COLD))
        with engine.connect() as connection:
            locations = list(connection.execute(select(iceberg_tables.c.metadata_location).where(rows)).scalars())
        root = normalize(f"file://{folder}")
        strangers = [location for location in locations if not is_under(normalize(location), root)]
        if strangers:
            raise Refused(
                f"Catalogs {LIVE} and {COLD} of this Postgres have {len(strangers)} tables outside this demo's folder",
                path=strangers[0],
                hint="run the demo with the home that made them, or name another Postgres in ARTEMIS_POSTGRES_URI",
            )
        _close_plans(config, locations)
        with engine.begin() as connection:
            lift_guard(connection, COLD)
            connection.execute(delete(iceberg_tables).where(rows))
            connection.execute(
                delete(iceberg_namespace_properties).where(
                    iceberg_namespace_properties.c.catalog_name.in_((LIVE, COLD))
                )
            )
    finally:
        engine.dispose()
    for name in _OWN:
        place = folder / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)


def _close_plans(config: LifecycleConfig, locations: list[str]) -> None:
    """End the plans of the tables that go: otherwise they would look due forever."""
    assert config.operations.uri is not None
    stores = Stores(StoreSettings())
    with Operations.open(config.operations.uri) as operations:
        for location in locations:
            try:
                table_uuid = read_table_metadata(stores, location).table_uuid
            except (MissingFile, UnreadableMetadata):
                continue
            for record in operations.plans.of_table(table_uuid, HOLDING):
                operations.plans.close(record.plan_id, "artemis demo", "the demo's tables are made anew")
