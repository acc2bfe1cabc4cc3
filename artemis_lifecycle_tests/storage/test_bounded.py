"""What one file may come to when it is read: every codec, every reader, on executors, under a limit of memory."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.deployment import Reading
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.errors import ConfigError, StorageError, TooLarge, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, Allowance, ReadLimits
from artemis_lifecycle.storage.columnar import ParquetReader
from artemis_lifecycle.storage.orc import read_orc
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.conftest import MakeConfig, on_executors
from artemis_lifecycle_tests.metadata.metadata_json import metadata_bytes
from artemis_lifecycle_tests.protection.foreign import append, sql
from artemis_lifecycle_tests.storage.hostile_files import readers
from artemis_lifecycle_tests.storage.limited_worker import Worker, case

pytestmark = pytest.mark.seconds

MB = 1 << 20
SEED = os.environ["ARTEMIS_SEED"]
SECONDS = 3 * int(os.environ.get("ARTEMIS_SOAK", "1"))
SMALL = ReadLimits(max_bytes=8 * MB, max_ratio=20, ratio_above=MB)


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": _raw_deflate,
    "zstd": lambda data: bytes(pa.compress(data, "zstd")),
    "lz4": lambda data: bytes(pa.compress(data, "lz4")),
    "snappy": lambda data: bytes(pa.compress(data, "snappy")),
}


@pytest.mark.parametrize("codec", PACKERS)
def test_a_codec_is_undone_up_to_the_allowance_and_allocates_no_more(codec: str) -> None:
    packed = PACKERS[codec](bytes(100 * MB))
    tracemalloc.start()
    pool = pa.total_allocated_bytes()
    try:
        with pytest.raises(TooLarge, match=r"reading\.max_ratio") as refused:
            SMALL.allowance("s3://b/bomb", 1000).undo(codec, packed)
        assert tracemalloc.get_traced_memory()[1] < 3 * MB + 2 * 4 * MB
    finally:
        tracemalloc.stop()
    assert refused.value.path == "s3://b/bomb"
    assert pa.total_allocated_bytes() - pool < 16 * MB
    for size in (0, 1, 100_000, MB):
        data = random.Random(size).randbytes(size)
        assert SMALL.allowance("x", MB).undo(codec, PACKERS[codec](data)) == data
    with pytest.raises(ValueError, match=codec):
        SMALL.allowance("x", MB).undo(codec, PACKERS[codec](b"a" * 1000)[:-6])


def test_small_files_have_no_ratio_and_large_ones_none_above_the_absolute_limit() -> None:
    assert SMALL.allowance("x", 10).left == MB
    assert SMALL.allowance("x", 100_000).left == 20 * 100_000
    assert SMALL.allowance("x", 8 * MB).left == 8 * MB
    with pytest.raises(TooLarge, match=r"reading\.max_bytes"):
        SMALL.allowance("x", 8 * MB + 1)
    # All blocks of one file draw on one allowance.
    allowance = Allowance(SMALL, "x", 10)
    allowance.take(MB)
    with pytest.raises(TooLarge):
        allowance.take(1)


def test_limits_are_those_of_lifecycle_yaml(tmp_path: Path) -> None:
    assert ReadLimits(**Reading().model_dump()) == DEFAULT_LIMITS
    file = tmp_path / "lifecycle.yaml"
    file.write_text("reading: {max_bytes: 8388608, max_ratio: 20, ratio_above: 1048576}")
    config = load_config(file, {})
    stores = Stores(StoreSettings.from_catalog(config.catalogs.live, reading=config.reading))
    assert stores.limits == SMALL
    (tmp_path / "large").write_bytes(bytes(9 * MB))
    with pytest.raises(TooLarge, match="large"):
        stores.read(f"file://{tmp_path}/large")
    file.write_text("reading: {max_ratio: 0}")
    with pytest.raises(ConfigError, match="max_ratio"):
        load_config(file, {})


@pytest.mark.slow
def test_a_metadata_file_of_many_properties_within_the_limits_is_read() -> None:
    """Real files compress well: the ratio must not stop them."""
    properties = {f"property.{number:08d}": "the same text for all of them" * 3 for number in range(500_000)}
    plain = metadata_bytes(properties=properties)
    packed = gzip.compress(plain)
    assert len(plain) > 50 * MB
    assert len(parse_table_metadata(packed, "s3://b/v1.gz.metadata.json").properties) == 500_000


def test_a_pipe_and_a_device_are_not_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (f"file://{tmp_path}/pipe", "file:///dev/zero"):
        with pytest.raises(StorageError, match="pipe"):
            Stores().read(path)


class _Parsing:
    """Reads the metadata files that it is given, on an executor."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    def __call__(self, batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            for path in batch.column("path").to_pylist():
                parse_table_metadata(self.stores.read(path), path, self.stores.limits)
            yield batch


def test_executors_keep_to_the_limits_of_lifecycle_yaml(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_executors(monkeypatch)
    path = tmp_path / "v1.gz.metadata.json"
    path.write_bytes(gzip.compress(metadata_bytes(properties={"x": "a" * 2 * MB})))
    rows = pa.table({"path": [f"file://{path}"]})
    Runner(spark).map(rows, _Parsing(Stores()), rows.schema).table()
    with pytest.raises(TooLarge, match=path.name):
        Runner(spark).map(rows, _Parsing(Stores(StoreSettings(limits=SMALL))), rows.schema).table()


def point(lifecycle: Lifecycle, metadata_location: str) -> None:
    """Have the catalog name another metadata file, which Spark is not asked to read."""
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text("UPDATE iceberg_tables SET metadata_location = :location WHERE catalog_name = :catalog"),
            {"location": metadata_location, "catalog": lifecycle.config.catalogs.live.name},
        )


def test_no_step_of_a_table_with_a_bomb_for_metadata_reaches_iceberg(
    make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    """Each step reads the metadata itself before Iceberg's core does, which has no limits."""
    with Lifecycle.open(make_config(tables={"db.*": {}}), spark=spark) as lifecycle:
        sql(lifecycle, "CREATE NAMESPACE {live}.db")
        sql(lifecycle, "CREATE TABLE {live}.db.t (id int) USING iceberg")
        append(lifecycle, "db.t", 1)
        plan = lifecycle.plan_expiration("db.t")
        before = lifecycle.snapshot_history("db.t")
        bomb = tmp_path / "v9.gz.metadata.json"
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        pieces = [packer.compress(b'{"format-version":2,"x":"'), *(packer.compress(b"a" * MB) for _ in range(200))]
        bomb.write_bytes(b"".join((*pieces, packer.flush())))
        point(lifecycle, f"file://{bomb}")
        steps: list[Callable[[], object]] = [
            lambda: lifecycle.snapshot_history("db.t"),
            lambda: lifecycle.plan_expiration("db.t"),
            lambda: lifecycle.commit_expiration(plan),
            lambda: lifecycle.tag("db.t", "x", before.snapshots[0].snapshot_id),
            lambda: lifecycle.scan_orphans("db.t"),
        ]
        for step in steps:
            with pytest.raises(UnreadableMetadata, match=bomb.name):
                step()
        point(lifecycle, before.metadata_location)


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_an_error_for_an_undecodable_column_name_names_the_file(kind: str) -> None:
    table = pa.table({"outer": pa.array([{"file_path": "x"}])})
    out = pa.BufferOutputStream()
    if kind == "orc":
        orc.write_table(table, out, compression="uncompressed")
    else:
        pq.write_table(table, out, compression="none", store_schema=False)
    data = out.getvalue().to_pybytes().replace(b"file_path", b"file\x86path")
    read = {"orc": read_orc, "parquet": ParquetReader}[kind]
    with pytest.raises(StorageError, match="utf-8") as refused:
        read(data, "s3://b/named", DEFAULT_LIMITS)
    assert refused.value.path == "s3://b/named"


@pytest.mark.parametrize(("seed", "number"), [(7002, 62358), (136109, 66471), (7003, 103455)])
def test_a_damaged_orc_file_that_ends_arrows_process_ends_no_other(tmp_path: Path, seed: int, number: int) -> None:
    every = readers()
    name, data = case(every, seed, number)
    assert "ORC" in name
    worker = Worker(tmp_path / "read")
    worker.read(name, every[name], data)
    worker.read(name, every[name], every[name].valid)
    assert worker.findings == []
    assert worker.outcomes["read"] >= 1


@pytest.mark.nightly
def test_every_reader_under_a_memory_limit_reads_a_file_or_names_it(tmp_path: Path) -> None:
    """Bombs and mutated files in a process that may not grow (RLIMIT_AS). `ARTEMIS_SOAK` multiplies the time."""
    root = Path(__file__).resolve().parents[2]
    worker = [sys.executable, "-m", "artemis_lifecycle_tests.storage.limited_worker", str(SECONDS), SEED]
    done = subprocess.run(
        worker,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"killed at: {done.stderr[-3_000:]}"
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert sum(report["outcomes"].values()) > 200
    assert report["outcomes"]["TooLarge"] > 10
