"""Every published figure's part of `make records` (bench/records.py): the commands that give it, and the peer's own
call and settings. `<!-- record: PART -->` stands above each table of figures in docs/; a test holds the two together.

Commands are what anybody could type in a clone, but for places: `{home}` is the folder with Spark's jars (`.artemis`),
`{tables}` the bench's generated tables below it, `{work}` the part's own folder there, `{metadata}` a metadata file of
100,000 snapshots that the bench made, `{database}` a new database of the embedded Postgres.
"""

from __future__ import annotations

from dataclasses import dataclass

EXPIRE = "ExpireSnapshotsSparkAction.expireFiles()"
BEST = "spark.sql.shuffle.partitions=2, spark.sql.adaptive.enabled=false"
BENCH = "python -m bench --work {tables} --jars {home}"
BEFORE = ("f89a50c9~1", "bad6b69e")
"""The tree in which a command that begins with BEFORE runs, and the commit whose bench it takes: metadata was read by
Spark's Python workers, and nothing measured a first plan yet."""


@dataclass(frozen=True)
class Part:
    """`minutes`: about so many on two idle cores. `peer`: what it is compared with. `needs`: a program on the path."""

    gives: str
    minutes: int
    commands: tuple[str, ...]
    peer: str = ""
    needs: str = ""


PLANS = ("plans", "plans-10m", "tags", "fleet", "commits", "metadata")
"""The parts whose tables bench/report.py writes."""

PARTS: dict[str, Part] = {
    "plans": Part(
        "full plan and next day, 2 million files, warm; the peer's settings tried; memory; the size of the index",
        60,
        (f"{BENCH} --sides tune,best,defaults,ours",),
        f"{EXPIRE}, at Spark's defaults and at the fastest of eight settings",
    ),
    "plans-10m": Part(
        "the same on 10 million files",
        60,
        (f"{BENCH} --scale 10 --sides ours", f"{BENCH} --scale 10 --sides best --full 1 --nights 0 --memory 8g"),
        f"{EXPIRE}, fastest settings, 8 GB",
    ),
    "tags": Part("the same with 50 tags", 10, (f"{BENCH} --tags 50 --sides ours --repetitions 3",)),
    "fleet": Part("the same on 200 small tables", 15, (f"{BENCH} --shape fleet --sides ours",)),
    "commits": Part(
        "the same on 50,400 snapshots",
        40,
        (
            f"{BENCH} --shape many-small-commits --sides ours",
            f"{BENCH} --shape many-small-commits --sides best --full 0 --nights 1 --memory 8g",
        ),
        f"{EXPIRE}, fastest settings, 8 GB",
    ),
    "metadata": Part(
        "metadata.json of many snapshots: reading it, and publishing one more night",
        10,
        (
            f"{BENCH} --shape metadata --repetitions 3",
            "python -m bench.cold {metadata} {home} 20000 400",
            "python -m bench.cold {metadata} {home} 50000 400",
        ),
        "Iceberg's TableMetadataParser, for its part of the time",
    ),
    "first": Part(
        "the first plan of a process, processor seconds, before and after",
        30,
        (
            *(
                "BEFORE python -m bench.first {tables} {home}",
                "python -m bench.first {tables} {home}",
                "python -m bench.first {tables} {home} --without-session",
            )
            * 3,
        ),
        "this project before f89a50c, where Spark's Python workers read metadata",
    ),
    "pairs": Part(
        "full plan and next day, nothing warm",
        25,
        ("python -m bench.first {tables} {home} --pairs 2",),
        f"{EXPIRE}, {BEST}",
    ),
    "executors": Part("a full plan on 1, 2 and 4 executors", 5, ("python -m bench.executors {tables} {home}",)),
    "night": Part("a night of 1,000 tables", 30, ("python -m bench.walk {work} {home}",)),
    "launchers": Part(
        "warm workers beside a process per run",
        40,
        ("python -m bench.walk {work} {home} --launcher both --tables 24 --busy 6 --commits 6",),
        "Dagster's default: a process, and a JVM, for each run",
    ),
    "audit": Part("audit questions on a million snapshots", 10, ("python -m bench.audit {work} --repetitions 3",)),
    "gate": Part(
        "what the REST gate adds",
        5,
        ("python -m bench.gate {work} {home} --commits 200 --megabytes 300",),
        "the same requests to Nessie without the gate",
    ),
    "past": Part("which snapshot was current", 10, ("python -m bench.history {work} --entries 1000000",)),
    "handoff": Part(
        "a handoff",
        5,
        ("python -m bench.handoff {work} {home}",),
        "rewrite_table_path, a parallel copy, register_table; plain copies by eight threads",
    ),
    "handoff-s3": Part(
        "a handoff of 300 files of a megabyte on S3 at 30 ms a request, with checksums by the server and without",
        12,
        (
            "python -m bench.handoff {work} {home} --store s3 --latency 30 --gateway versitygw",
            "python -m bench.handoff {work} {home} --store s3 --latency 30 --gateway versitygw --without-checksums",
        ),
        "copies by the server, 32 at once, through boto3; the same, with both sides read and compared",
        needs="versitygw",
    ),
    "orphans": Part(
        "an orphan scan of two million listed files; of few",
        25,
        (
            "python -m bench.orphans {tables} {home} --parts scan --repetitions 1",
            "python -m bench.orphans {work} {home} --small --parts scan --repetitions 1",
        ),
        "remove_orphan_files(file_list_view, dry_run): 8 shuffle partitions and stream_results; 2; Spark's defaults",
    ),
    "hundred-million": Part(
        "both plans and an orphan scan of a table of five million files, as bench.hundred_million makes it",
        15,
        (
            "python -m bench.hundred_million {work} {home} --scale 1",
            "python -m bench.hundred_million {work} {home} --scale 5",
            "python -m bench.hundred_million {work} {home} --scale 5 --expire 165 --part generate --part full",
        ),
    ),
    "deletion": Part(
        "listing and deleting 200,000 orphans on a disk",
        20,
        ("python -m bench.orphans {tables} {home} --parts listing,deletion --deleted 200000",),
        "remove_orphan_files without a view, 2 shuffle partitions and Spark's defaults; dry, and for real",
    ),
    "expiry": Part(
        "an expiration of 20,000 files with its deletes, on a disk",
        10,
        ("python -m bench.expiry {work} {home} --parts disk --files 20000 --repetitions 1",),
        "expire_snapshots: 2 shuffle partitions; 8 and stream_results; Spark's defaults",
    ),
    "expiry-s3": Part(
        "the same on S3",
        15,
        ("python -m bench.expiry {work} {home} --parts s3 --repetitions 3 --gateway versitygw",),
        "expire_snapshots: 2 shuffle partitions; 8 and stream_results; Spark's defaults",
        needs="versitygw",
    ),
    "expiry-s3-30ms": Part(
        "the same on S3 at 30 ms a request, its deletes also at the pace of the store's limit and at the shipped one",
        15,
        ("python -m bench.expiry {work} {home} --parts s3 --repetitions 2 --gateway versitygw --latency 30",),
        "expire_snapshots: 2 shuffle partitions; 8 and stream_results; Spark's defaults; it never waits for a pace",
        needs="versitygw",
    ),
    "listing": Part("a listing of 200,000 keys of S3", 3, ("python -m bench.listing",), "boto3 alone"),
    "tasks": Part("a Python task of Spark", 2, ("python -m bench.workers",), "pyspark.daemon"),
    "lineage": Part("what the lineage gate adds", 3, ("python -m bench.lineage",), "the same appends without a gate"),
    "refs": Part("100,000 refs and properties", 5, ("python -m bench.refs {work} {home}",)),
    "commands": Part(
        "the demo, and commands on its tables",
        12,
        ("artemis demo", "python -m bench.commands {home}/demo/lifecycle.yaml"),
    ),
    "assess": Part("assess, of 1,000 tables", 10, ("python -m bench.assess {database} {work}/fleet-{now}",)),
    "pace": Part(
        "a compaction's pace at an S3 server",
        10,
        ("python -m bench.compaction_pace {work} {home}", "python -m bench.compaction_pace {work} {home} --configured"),
    ),
    "upkeep": Part("a table brought back in a week", 30, ("python -m bench.upkeep {work} {home} --files 10000",)),
    "live-sets": Part("a mark of a whole Nessie catalog", 15, ("python -m bench.live_sets {work}",)),
    "query-plans": Part(
        "planning a scan",
        10,
        (
            "python -m bench.planning {work} {home} --manifests 300 --entries 100 --pyiceberg",
            "python -m bench.planning {work} {home} --manifests 3000 --entries 10 --pyiceberg",
        ),
        "planFiles() of Iceberg in a warm JVM; pyiceberg's scan",
    ),
    "image": Part(
        "the image, and its parts in MB",
        10,
        ("make image", "docker run --rm --entrypoint du artemis-lifecycle:{version} -xm --threshold=4M /"),
        needs="docker",
    ),
}
