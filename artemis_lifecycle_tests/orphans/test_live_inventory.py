"""The tables of S3 Metadata as a listing: which objects of a bucket it has, and when it is refused."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle import pipes
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import BadInput, LifecycleError
from artemis_lifecycle.fleet.assess import assess
from artemis_lifecycle.orphans.live_inventory import LiveInventory, is_live_inventory, read_live_inventory
from artemis_lifecycle.storage.location import DEFAULT_RULES
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

CATALOG = "s3_metadata"
OLD = datetime(2026, 1, 1, 12, 30, 15, 250_000, tzinfo=UTC)

# As in the S3 user guide.
OBJECT = (
    "bucket string NOT NULL, key string NOT NULL, sequence_number string NOT NULL, {changes}version_id string, "
    "is_delete_marker boolean, size bigint, last_modified_date timestamp_ntz, e_tag string, storage_class string, "
    "is_multipart boolean, encryption_status string, is_bucket_key_enabled boolean, kms_key_arn string, "
    "checksum_algorithm string, object_tags map<string, string>, user_metadata map<string, string>"
)
INVENTORY = OBJECT.format(changes="")
JOURNAL = OBJECT.format(changes="record_type string NOT NULL, record_timestamp timestamp_ntz NOT NULL, ") + (
    ", requester string, source_ip_address string, request_id string"
)


@dataclass
class Bucket:
    """The tables that S3 would keep of a bucket, in a catalog of their own. Sequence numbers are those of the docs."""

    spark: SparkSession
    name: str
    inventory_columns: str = INVENTORY
    journal_columns: str = JOURNAL

    @property
    def table(self) -> str:
        return f"{CATALOG}:b_{self.name}.inventory"

    def create(self) -> Bucket:
        for table, columns in (("inventory", self.inventory_columns), ("journal", self.journal_columns)):
            if columns:
                self.sql(f"CREATE TABLE {self.at(table)} ({columns}) USING iceberg")
        return self

    def at(self, table: str) -> str:
        return f"{CATALOG}.`b_{self.name}`.{table}"

    def sql(self, statement: str) -> None:
        self.spark.sql(statement)

    def write(self, table: str, columns: str, *rows: dict[str, Any]) -> None:
        """Write rows, with every column that they do not say null."""
        kinds = {each.split()[0]: each for each in columns.replace("map<string, string>", "map").split(", ")}
        said = [name for name in kinds if any(name in row for row in rows)]
        frame = self.spark.createDataFrame(
            [tuple(row.get(name) for name in said) for row in rows],
            ", ".join(kinds[name].removesuffix(" NOT NULL") for name in said),
        )
        frame.writeTo(self.at(table)).append()

    def has(self, *objects: dict[str, Any]) -> None:
        defaults = {"bucket": self.name, "is_delete_marker": False, "size": 5, "last_modified_date": OLD}
        self.write("inventory", self.inventory_columns, *(naive(defaults | each) for each in objects))

    def records(self, *changes: dict[str, Any]) -> None:
        defaults = {"bucket": self.name, "record_timestamp": datetime.now(UTC)}
        self.write("journal", self.journal_columns, *(naive(defaults | each) for each in changes))

    def read(self) -> LiveInventory:
        return read_live_inventory(self.spark, self.table, "live")

    def files(self, *locations: str) -> dict[str, tuple[datetime | None, int | None]]:
        found = self.read().files(self.spark, locations or [f"s3://{self.name}/t"], DEFAULT_RULES)
        assert found.columns == ["path", "last_modified", "size_in_bytes"]
        rows = found.selectExpr("path", "unix_micros(last_modified) AS at", "size_in_bytes AS size").collect()
        assert len({row["path"] for row in rows}) == len(rows)
        return {
            row["path"]: (
                None if row["at"] is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row["at"]),
                row["size"],
            )
            for row in rows
        }

    def names(self, *locations: str) -> set[str]:
        return {path.rpartition("/")[2] for path in self.files(*locations)}


def naive(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.replace(tzinfo=None) if isinstance(value, datetime) else value for name, value in row.items()}


def version(key: str, number: int, **said: Any) -> dict[str, Any]:
    return {"key": f"t/{key}", "sequence_number": f"80e737d8b4d82f776a{number:064x}", **said}


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A catalog of the session that no lifecycle.yaml names as its own."""
    setting = f"spark.sql.catalog.{CATALOG}"
    conf = {
        setting: "org.apache.iceberg.spark.SparkCatalog",
        f"{setting}.type": "hadoop",
        f"{setting}.warehouse": str(tmp_path_factory.mktemp("aws-s3")),
    }
    for key, value in conf.items():
        spark.conf.set(key, value)
    yield spark
    for key in conf:
        spark.conf.unset(key)


@pytest.fixture
def bucket(catalog: SparkSession) -> Bucket:
    return Bucket(catalog, f"lake-{uuid.uuid4().hex[:8]}").create()


# --- which objects it has ---------------------------------------------------------------------------------------------


def test_objects_have_their_keys_as_stored_their_size_and_their_time(bucket: Bucket) -> None:
    keys = ["plain.parquet", "a b+c%20d.parquet", 'ümlaut,"quoted"\n.parquet', "日本/😀?x#y", "p=1/..parquet"]
    bucket.has(*(version(key, 1, size=number) for number, key in enumerate(keys)))
    bucket.has(version("ageless", 1, last_modified_date=None, size=None))
    expected: dict[str, Any] = {f"s3a://{bucket.name}/t/{key}": (OLD, size) for size, key in enumerate(keys)}
    expected[f"s3a://{bucket.name}/t/ageless"] = (None, None)
    assert bucket.files(f"s3a://{bucket.name}/t/") == expected


def test_times_are_in_utc_whatever_the_sessions_zone_is(bucket: Bucket) -> None:
    # An hour that does not exist in the zone.
    at = datetime(2026, 3, 29, 2, 30, tzinfo=UTC)
    bucket.has(version("a", 1, last_modified_date=at))
    bucket.records(version("a", 2, record_type="CREATE", record_timestamp=datetime.now(UTC) - timedelta(hours=25)))
    zone = bucket.spark.conf.get("spark.sql.session.timeZone")
    bucket.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert [found[0] for found in bucket.files().values()] == [at]
    finally:
        bucket.spark.conf.set("spark.sql.session.timeZone", zone)


def test_only_what_is_below_a_location_in_its_bucket_is_listed(bucket: Bucket) -> None:
    bucket.has(version("a", 1), {**version("", 1), "key": "t2/b"}, {**version("c", 1), "bucket": "another"})
    bucket.has({**version("", 1), "key": "former/d"}, {**version("", 1), "key": "/t/e"})
    assert bucket.names() == {"a"}
    assert set(bucket.files(f"s3://{bucket.name}/t", f"s3n://{bucket.name}/former", "s3://nowhere/t")) == {
        f"s3://{bucket.name}/t/a",
        f"s3n://{bucket.name}/former/d",
    }
    assert set(bucket.files(f"s3://{bucket.name}//t")) == {f"s3://{bucket.name}//t/e"}


def test_of_each_key_the_newest_version_is_listed(bucket: Bucket) -> None:
    newer = OLD + timedelta(days=1)
    bucket.has(version("a", 2, version_id="v2", size=20, last_modified_date=newer))
    bucket.has(version("a", 1, version_id="v1", size=10), version("b", 0xA, size=1), version("b", 0x9, size=2))
    files = bucket.files()
    assert files[f"s3://{bucket.name}/t/a"] == (newer, 20)
    assert files[f"s3://{bucket.name}/t/b"] == (OLD, 1)


def test_an_object_behind_a_delete_marker_is_not_listed(bucket: Bucket) -> None:
    bucket.has(version("deleted", 1, version_id="v1"), version("deleted", 2, is_delete_marker=True, size=0))
    bucket.has(version("again", 1, is_delete_marker=True, size=0), version("again", 2, version_id="v2"))
    bucket.has(version("without-versions", 1, is_delete_marker=None))
    assert bucket.names() == {"again", "without-versions"}


@pytest.mark.parametrize("change", ["CREATE", "DELETE", "SOMETHING_NEW"])
def test_a_key_that_the_journal_changed_after_the_inventory_is_not_listed(bucket: Bucket, change: str) -> None:
    bucket.has(*(version(key, 5, version_id="v1") for key in ("changed", "same", "known")))
    marker = True if change == "DELETE" else None
    bucket.records(
        version("changed", 6, record_type=change, version_id="v2", is_delete_marker=marker),
        version("known", 5, record_type=change, version_id="v1"),
        version("same", 4, record_type=change),
        {**version("same", 6, record_type=change), "bucket": "another"},
        version("never-listed", 1, record_type="CREATE", size=7, last_modified_date=OLD),
    )
    assert bucket.names() == {"same", "known"}


def test_a_change_of_tags_leaves_the_object(bucket: Bucket) -> None:
    bucket.has(version("a", 1))
    bucket.records(version("a", 2, record_type="UPDATE_METADATA", storage_class="GLACIER_IR"))
    assert bucket.names() == {"a"}


def test_a_change_long_before_the_inventorys_last_one_is_in_it(bucket: Bucket) -> None:
    bucket.has(version("expired-version", 5), version("overwritten", 5))
    now = datetime.now(UTC)
    bucket.records(
        version(
            "expired-version", 6, record_type="DELETE", version_id="v0", record_timestamp=now - timedelta(hours=25)
        ),
        version("overwritten", 6, record_type="CREATE", record_timestamp=now - timedelta(hours=23)),
    )
    assert bucket.names() == {"expired-version"}


def test_what_has_no_sequence_number_counts_as_newest_and_is_not_listed(catalog: SparkSession) -> None:
    loose = (columns.replace(" NOT NULL", "") for columns in (INVENTORY, JOURNAL))
    bucket = Bucket(catalog, f"lake-{uuid.uuid4().hex[:8]}", *loose).create()
    bucket.has(version("a", 1), version("a", 2, sequence_number=None), version("b", 1), version("c", 1))
    bucket.has(version("d", 1))
    bucket.records(
        version("b", 2, sequence_number=None, record_type="CREATE"),
        version("c", 2, record_type=None, record_timestamp=None),
    )
    assert bucket.names() == {"d"}


def test_it_stays_at_the_snapshots_with_which_it_was_read(bucket: Bucket) -> None:
    bucket.has(version("a", 1))
    found = bucket.read()
    bucket.has(version("b", 1))
    bucket.records(version("a", 2, record_type="CREATE"))
    assert bucket.names() == {"b"}
    rows = found.files(bucket.spark, [f"s3://{bucket.name}/t"], DEFAULT_RULES).collect()
    # The journal had no snapshot yet: what it has by now counts.
    assert rows == []
    pinned = replace(found, journal=bucket.read().journal)
    bucket.records(version("b", 2, record_type="CREATE"))
    assert [
        row["path"]
        for row in replace(pinned, inventory=bucket.read().inventory)
        .files(bucket.spark, [f"s3://{bucket.name}/t"], DEFAULT_RULES)
        .collect()
    ] == [f"s3://{bucket.name}/t/b"]


# --- up to when it is true --------------------------------------------------------------------------------------------


def test_it_was_begun_when_the_inventorys_last_change_was_committed(bucket: Bucket) -> None:
    bucket.has(version("a", 1))
    bucket.has(version("b", 1))
    java = core_tables.java_table(bucket.spark, bucket.at("inventory"))
    changed_at = java.currentSnapshot().timestampMillis()
    bucket.sql(
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{bucket.at('inventory')}', "
        "options => map('rewrite-all', 'true'))"
    )
    java.refresh()
    assert java.currentSnapshot().operation() == "replace"
    bucket.records(version("c", 1, record_type="CREATE"))
    assert bucket.read().begun_at == datetime.fromtimestamp(changed_at / 1000, UTC)
    assert bucket.names() == {"a", "b"}
    # S3 keeps snapshots for a day: then the compaction's own time is the earliest that is known.
    compacted_at = java.currentSnapshot().timestampMillis()
    java.expireSnapshots().expireOlderThan(compacted_at).retainLast(1).commit()
    assert bucket.read().begun_at == datetime.fromtimestamp(compacted_at / 1000, UTC)


# --- when it is refused -----------------------------------------------------------------------------------------------


def test_an_inventory_that_s3_has_not_filled_is_refused(bucket: Bucket) -> None:
    with pytest.raises(BadInput, match=r"no snapshot.*ACTIVE"):
        bucket.read()
    bucket.has({**version("a", 1), "bucket": "another"})
    with pytest.raises(BadInput, match=f"no object of bucket {bucket.name}.*ACTIVE"):
        bucket.files()


def test_the_inventory_of_another_bucket_is_refused(bucket: Bucket) -> None:
    bucket.has(version("a", 1))
    with pytest.raises(BadInput, match=r"no object of bucket another.*all files"):
        bucket.files("s3://another/t")


@pytest.mark.parametrize(
    ("table", "before", "after", "says"),
    [
        ("inventory", "sequence_number string NOT NULL, ", "", "sequence_number of its inventory is missing"),
        ("inventory", "is_delete_marker boolean, ", "", "is_delete_marker of its inventory is missing"),
        ("inventory", "timestamp_ntz", "string", "last_modified_date of its inventory is string"),
        ("journal", "record_type string NOT NULL, ", "", "record_type of its journal is missing"),
        ("journal", "timestamp_ntz NOT NULL", "string", "record_timestamp of its journal is string"),
    ],
)
def test_a_table_without_a_needed_column_is_refused(
    catalog: SparkSession, table: str, before: str, after: str, says: str
) -> None:
    columns = {"inventory": INVENTORY, "journal": JOURNAL}
    columns[table] = columns[table].replace(before, after)
    bucket = Bucket(catalog, f"lake-{uuid.uuid4().hex[:8]}", columns["inventory"], columns["journal"]).create()
    with pytest.raises(BadInput, match=says):
        bucket.read()


def test_times_with_a_zone_are_taken_as_they_are(catalog: SparkSession) -> None:
    zoned = (columns.replace("timestamp_ntz", "timestamp") for columns in (INVENTORY, JOURNAL))
    bucket = Bucket(catalog, f"lake-{uuid.uuid4().hex[:8]}", *zoned).create()
    for table in ("inventory", "journal"):
        extra = ", 'CREATE', current_timestamp()" if table == "journal" else ""
        names = ", record_type, record_timestamp" if table == "journal" else ""
        bucket.sql(
            f"INSERT INTO {bucket.at(table)} (bucket, key, sequence_number, last_modified_date{names}) "
            f"VALUES ('{bucket.name}', 't/a', '1', timestamp'{OLD.isoformat()}'{extra})"
        )
    assert [found[0] for found in bucket.files().values()] == [OLD]


@pytest.mark.parametrize("name", ["nowhere:b_lake.inventory", f"{CATALOG}:b_nothing.inventory", f"{CATALOG}:inventory"])
def test_an_inventory_that_is_not_there_is_reported(catalog: SparkSession, name: str) -> None:
    assert is_live_inventory(name) == (name != f"{CATALOG}:inventory")
    with pytest.raises(BadInput):
        read_live_inventory(catalog, name, "live")


def test_an_inventory_without_its_journal_is_refused(catalog: SparkSession) -> None:
    bucket = Bucket(catalog, f"lake-{uuid.uuid4().hex[:8]}", journal_columns="").create()
    bucket.has(version("a", 1))
    with pytest.raises(BadInput, match="its journal cannot be found"):
        bucket.read()


# --- in a scan --------------------------------------------------------------------------------------------------------


@pytest.fixture
def local(catalog: SparkSession, lifecycle: Lifecycle) -> tuple[Bucket, Callable[..., dict[str, Any]]]:
    """Tables of S3 Metadata for a folder of this machine, whose objects are in no bucket; and a function that describes
    a file below db.t."""
    live = lifecycle.config.catalogs.live
    core_tables.sql(catalog, f"CREATE NAMESPACE IF NOT EXISTS {live.name}.db")
    core_tables.sql(catalog, f"CREATE TABLE {live.name}.db.t (id bigint) USING iceberg")
    core_tables.sql(catalog, f"INSERT INTO {live.name}.db.t VALUES (1)")
    place = Path(lifecycle.steps.table_state("db.t").metadata.location.removeprefix("file://"))

    def file(name: str, number: int = 1, **said: Any) -> dict[str, Any]:
        path = place / "data" / name
        path.write_bytes(b"12345")
        os.utime(path, (OLD.timestamp(), OLD.timestamp()))
        return {**version("", number), "bucket": "", "key": str(path)[1:], **said}

    return Bucket(catalog, f"disk-{uuid.uuid4().hex[:8]}").create(), file


def test_a_scan_finds_and_deletes_what_the_bucket_has_and_no_snapshot_reaches(
    lifecycle: Lifecycle, local: tuple[Bucket, Callable[..., dict[str, Any]]]
) -> None:
    bucket, file = local
    place = Path(lifecycle.steps.table_state("db.t").metadata.location.removeprefix("file://")) / "data"
    (committed,) = place.glob("*.parquet")
    names = ["left %20,ü\n.parquet", "written-again.parquet", "changed-later.parquet"]
    bucket.has(
        *(file(name) for name in names),
        file("unlisted.parquet", is_delete_marker=True),
        {**version("", 1), "bucket": "", "key": str(committed)[1:]},
        file("young.parquet", last_modified_date=datetime.now(UTC) - timedelta(days=1)),
    )
    bucket.records(file("written-again.parquet", 2, record_type="CREATE"))
    found = lifecycle.inventory(bucket.table)
    scan = lifecycle.scan_orphans("db.t", listing=found)
    assert scan.listed_at == found.begun_at < scan.metadata_read_at
    paths = {row["path"].rpartition("/")[2] for row in scan.files().collect()}
    assert paths == {names[0], names[2]} and scan.summary.too_young == 1
    # The launchpad and Pipes name it alike, and ages count from an earlier time that is given.
    asked = {"inventory": bucket.table}
    assert pipes.scanned(lifecycle, "db.t", asked).summary == scan.summary
    assert pipes.scanned(lifecycle, "db.t", asked | {"listed_at": OLD.isoformat()}).summary.too_young == 3
    (place / names[2]).write_bytes(b"another file")
    lifecycle.approve(scan, who="Ada", why="most of the listing are orphans")
    report = lifecycle.delete_orphans(scan)
    assert (report.deleted, report.failed) == (1, 0)
    left = {path.name for path in place.iterdir() if not path.name.startswith(".")}
    assert left == {committed.name, *names[1:], "unlisted.parquet", "young.parquet"}


def test_a_file_that_is_committed_after_the_inventory_stays(
    lifecycle: Lifecycle, local: tuple[Bucket, Callable[..., dict[str, Any]]]
) -> None:
    bucket, file = local
    bucket.has(file("left.parquet"))
    found = lifecycle.inventory(bucket.table)
    core_tables.sql(bucket.spark, f"INSERT INTO {lifecycle.config.catalogs.live.name}.db.t VALUES (2)")
    (row,) = lifecycle.scan_orphans("db.t", listing=found).files().collect()
    assert row["path"].endswith("/left.parquet")


def test_a_scan_of_an_unusable_inventory_records_nothing(
    lifecycle: Lifecycle, local: tuple[Bucket, Callable[..., dict[str, Any]]]
) -> None:
    bucket, _ = local
    with pytest.raises(BadInput, match="no snapshot"):
        lifecycle.inventory(bucket.table)
    bucket.has({**version("a", 1), "bucket": "another"})
    with pytest.raises(BadInput, match="no object of bucket"):
        lifecycle.scan_orphans("db.t", listing=lifecycle.inventory(bucket.table))
    bucket.has({**version("a", 1), "bucket": ""})
    found = lifecycle.inventory(bucket.table)
    java = core_tables.java_table(bucket.spark, bucket.at("inventory"))
    for data in Path(java.location()).glob("data/*.parquet"):
        data.unlink()
    with pytest.raises(LifecycleError):
        lifecycle.scan_orphans("db.t", listing=found)
    assert lifecycle.latest_scan("db.t") is None


def test_an_assessment_counts_its_orphans(
    lifecycle: Lifecycle, local: tuple[Bucket, Callable[..., dict[str, Any]]]
) -> None:
    bucket, file = local
    bucket.has(file("left.parquet"), file("again.parquet"), file("young.parquet", last_modified_date=datetime.now(UTC)))
    bucket.records(file("again.parquet", 2, record_type="CREATE"))
    found = assess(lifecycle.config, listing=bucket.table)
    (row,) = (row for row in found.tables if row.table == "db.t")
    assert (row.orphan_files, row.orphan_bytes, row.problems) == (1, 5, ())
    assert found.listed_at == bucket.read().begun_at
    assert lifecycle.assess("db.t", bucket.read()).tables[0].orphan_files == 1


def test_a_scan_of_a_bucket_with_versions_deletes_only_what_it_has_now(
    catalog: SparkSession, make_config: MakeConfig, s3: S3Server
) -> None:
    name, client = s3.bucket(), s3.client()
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    access = {
        "s3.endpoint": s3.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
    }
    config = make_config(
        catalogs={"live": {"warehouse": f"s3://{name}/live", "properties": access}},
        defaults=WITHOUT_COLD,
        tables={"db.*": {}},
    )
    live = config.catalogs.live.name
    with open_lifecycle(config, catalog) as lifecycle:
        core_tables.sql(catalog, f"CREATE NAMESPACE {live}.db")
        core_tables.sql(catalog, f"CREATE TABLE {live}.db.t (id int) USING iceberg")
        core_tables.sql(catalog, f"INSERT INTO {live}.db.t VALUES (1)")
        # Without a newline: moto routes no such key.
        hostile = [f"live/db/t/data/{key}.parquet" for key in ("a b+c%20d", "100%", "日本 😀", "p=x/é")]
        deleted, written_again = "live/db/t/data/deleted.parquet", "live/db/t/data/again.parquet"
        for key in (*hostile, *hostile[:1], deleted, written_again):
            client.put_object(Bucket=name, Key=key, Body=b"nobody's")
        client.delete_object(Bucket=name, Key=deleted)
        pages = client.get_paginator("list_object_versions").paginate(Bucket=name)
        versions = [each for page in pages for kind in ("Versions", "DeleteMarkers") for each in page.get(kind, ())]
        # The newest of a key last, as S3 numbers them.
        objects = [
            {
                **version("", 2 if each["IsLatest"] else 1, version_id=each["VersionId"]),
                "key": each["Key"],
                "size": each.get("Size", 0),
                "last_modified_date": each["LastModified"].astimezone(UTC),
                "is_delete_marker": "Size" not in each,
            }
            for each in versions
        ]
        tables = Bucket(catalog, name).create()
        tables.has(*objects)
        client.put_object(Bucket=name, Key=written_again, Body=b"somebody's")
        tables.records({**version("", 3, record_type="CREATE"), "key": written_again})
        scan = lifecycle.scan_orphans("db.t", listing=lifecycle.inventory(tables.table))
        found = {row["path"].removeprefix(f"s3://{name}/") for row in scan.files().collect()}
        assert found == set(hostile)
        assert lifecycle.delete_orphans(scan).deleted == len(hostile)
        (left,) = lifecycle.read("db.t").collect()
    assert left["id"] == 1
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=name)
    keys = {each["Key"] for page in pages for each in page["Contents"]}
    assert written_again in keys and not keys.intersection(hostile)
