"""Stores with folders of their own rename a file and keep its time and ETag: the first look tells them apart.

ADLS Gen2, GCS with hierarchical namespace and S3 Express do. None runs in tests: its answers are made here.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from artemis_lifecycle.deletion.batches import DeletionJob, sealed_pieces
from artemis_lifecycle.deletion.identities import Identities, first_look, look
from artemis_lifecycle.protection.protection import ANOTHER_FILE
from artemis_lifecycle.storage.frames import arrow_schema, write_batches
from artemis_lifecycle.storage.instants import microseconds
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import StoredFile, object_tag

SEALED = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    "place", ["file:///lake/t/data", "abfss://lake@account.dfs.core.windows.net/t/data"], ids=["disk", "adls-gen2"]
)
def test_a_file_that_was_renamed_to_an_expired_path_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = f"{place}/a.parquet"
    expired = StoredFile(path, 10, SEALED - timedelta(days=30), object_tag('"0x1"'), '"0x1"')
    # Written before the plan, of the same size, and renamed to the path after the commit.
    renamed = StoredFile(path, 10, SEALED - timedelta(days=2), object_tag('"0x2"'), '"0x2"')
    there = {path: expired}
    real = Stores.heads

    def heads(stores: Stores, paths: Any) -> Any:
        return [there[each] if each in there else real(stores, [each])[0] for each in paths]

    monkeypatch.setattr(Stores, "heads", heads)
    stores, listed = Stores(), arrow_schema("path string, kind string, size_in_bytes bigint, reason string")
    rows = pa.RecordBatch.from_pydict(
        {"path": [path], "kind": ["data"], "size_in_bytes": [10], "reason": ["expired"]}, schema=listed
    )
    location = f"file://{tmp_path}/plan/files"
    write_batches([rows], listed, location, stores)
    # As the commit does.
    seen = first_look(stores, location)
    job = DeletionJob("plan", "expiration", "uuid", "db.t", seen, 1, (1,), microseconds(SEALED))
    context: Any = SimpleNamespace(stores=stores, archived_files=None, renew=None)
    [files] = sealed_pieces(stores, job, 10)

    there[path] = renamed

    assert Identities(context, job).others(files, look(stores, files.column("path").combine_chunks()).now) == {
        0: ANOTHER_FILE
    }
