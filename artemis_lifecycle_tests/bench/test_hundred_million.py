"""The listing of the bench's largest table is what the table reaches, and the orphans that it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.reachability.index import IndexInMemory
from artemis_lifecycle.reachability.index.files import deletable, reachable
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.storage.location import DEFAULT_RULES
from artemis_lifecycle.storage.stores import Stores
from bench import hundred_million, metadata


def test_the_listing_is_what_the_table_reaches_and_its_orphans(tmp_path: Path) -> None:
    shape = replace(hundred_million.shape_of(0), days=4, expire=2, appends=3, files=5, compacted=2)
    said = hundred_million.generate(shape, tmp_path, 1)
    table, stores = metadata.load(tmp_path / shape.key), Stores()
    base = read_table_metadata(stores, table.stages[0].metadata_location)
    view = indexed(None, stores, base, DEFAULT_RULES, "memory", files=IndexInMemory())
    planted = set(json.loads((Path(table.folder) / "planted.json").read_text()))
    listed = pq.read_table(f"{table.folder}/listing").to_pydict()
    sizes = dict(zip(listed["path"], listed["size_in_bytes"], strict=True))
    reached = reachable(view, [each.snapshot_id for each in base.snapshots]).to_pydict()
    assert {path: size for path, size in sizes.items() if path not in planted} == dict(
        zip(reached["path"], reached["size_in_bytes"], strict=True)
    )
    assert len(sizes) == len(listed["path"]) == said["listed"] == len(reached["path"]) + len(planted)
    assert planted and planted <= sizes.keys()
    # What the bench expects a plan to name.
    expired = [each.snapshot_id for each in base.snapshots if each.timestamp_ms < table.stages[0].cutoff_ms]
    assert deletable(view, expired).num_rows == hundred_million.leaving(shape) * shape.expire
