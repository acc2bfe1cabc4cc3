"""Spark's classes as a JVM has them once it has loaded and verified them, so that the tests' sessions start with less
work: about half the processor time of a session's start and first statements.

`make test` runs this module, which makes the archive once, in `.artemis/classes`; `conftest.py` has every session of
the run use it. Java refuses an archive of another Java or of other jars, and runs without it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from artemis_lifecycle.embedded.jars import export_java, resolve, spark_home
from artemis_lifecycle.embedded.locks import file_lock

FOLDER = Path(__file__).resolve().parents[1] / ".artemis" / "classes"
_SECONDS = 900
# The last one: Java collects all garbage each time that classes have filled a few more megabytes.
BRIEFLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
_STATEMENTS = (
    "CREATE NAMESPACE made.ns",
    "CREATE TABLE made.ns.t (id bigint, name string, day date) USING iceberg PARTITIONED BY (days(day))",
    "INSERT INTO made.ns.t VALUES (1, 'a', DATE '2020-01-01'), (2, 'b', DATE '2020-01-02')",
    "INSERT INTO made.ns.t SELECT id, 'c', DATE '2020-01-03' FROM range(10)",
    "DELETE FROM made.ns.t WHERE id = 1",
    "UPDATE made.ns.t SET name = 'd' WHERE id = 2",
    "MERGE INTO made.ns.t USING (SELECT 3L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
    "ALTER TABLE made.ns.t ADD COLUMN note string",
    "SELECT name, count(DISTINCT id) FROM made.ns.t GROUP BY name ORDER BY name",
    "SELECT a.file_path FROM made.ns.t.all_data_files a JOIN made.ns.t.files b ON a.file_path = b.file_path",
    "SELECT committed_at FROM made.ns.t.snapshots",
    "CALL made.system.rewrite_data_files(table => 'ns.t', options => map('rewrite-all', 'true'))",
    "DROP TABLE made.ns.t",
)


def archive_file() -> Path:
    """Where the archive for the installed Java and Spark is, or would be."""
    program, jars = export_java().resolve(), Path(spark_home()) / "jars"
    made_by = [(str(path), path.stat().st_mtime_ns) for path in (program, jars)]
    return FOLDER / f"spark-{sha256(repr(made_by).encode()).hexdigest()[:12]}.jsa"


def submit_options() -> str:
    """What SPARK_SUBMIT_OPTS has to be for sessions to map the archive; empty if there is none."""
    archive = archive_file()
    if not archive.exists():
        return ""
    # Java reports a refused archive on the standard output, which is the caller's.
    return f"-XX:SharedArchiveFile={shlex.quote(str(archive))} -Xlog:cds=off -Xlog:cds+dynamic=off"


def make_archive() -> str:
    """Make the archive if there is none; return what came of it. Sessions start without one, too, only later."""
    archive = archive_file()
    with file_lock(FOLDER / "lock", timeout=_SECONDS), tempfile.TemporaryDirectory(dir=FOLDER) as work:
        if archive.exists():
            return str(archive)
        made, jars = Path(work) / archive.name, map(str, resolve(FOLDER.parent))
        done = subprocess.run(
            [sys.executable, "-m", "artemis_lifecycle_tests.class_archive", work, str(made), *jars],
            # Spark's own default is the first python3 of the path, which may lack what a worker imports.
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
        )
        # Java removes a file that it could not write to its end.
        if done.returncode != 0 or not made.exists():
            # Java's own warnings are about classes that it leaves out.
            lines = [line for line in done.stdout.splitlines() if line.strip() and not line.startswith("[")]
            return f"none: the session that makes it failed: {(lines or ['no output'])[-1]}"
        for old in FOLDER.glob("spark-*.jsa"):
            old.unlink()
        made.replace(archive)
    return str(archive)


def _use(work: Path, archive: Path, jars: Sequence[str]) -> None:
    """Start a session, do of everything a little, and have its JVM write what it loaded."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    conf = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={shlex.quote(str(archive))} {BRIEFLY}",
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(jars),
        "spark.sql.catalog.made": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.made.type": "hadoop",
        "spark.sql.catalog.made.warehouse": str(work / "warehouse"),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for statement in _STATEMENTS:
        spark.sql(statement).collect()
    spark.range(3).mapInArrow(_unchanged, "id bigint").toPandas()
    gateway = SparkContext._gateway
    spark.stop()
    assert gateway is not None
    process: subprocess.Popen[bytes] = gateway.proc
    assert process.stdin is not None
    process.stdin.close()  # The JVM ends when its input does.
    if process.wait(timeout=_SECONDS) != 0:
        sys.exit("its JVM failed")


def _unchanged(batches: Iterable[Any]) -> Iterable[Any]:
    yield from batches


if __name__ == "__main__":
    if sys.argv[1:]:
        _use(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    else:
        print(f"class archive: {make_archive()}")
