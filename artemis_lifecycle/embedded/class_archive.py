"""The class archive: Spark's classes as a JVM has them after it loaded and verified them. Belongs here: making it once,
and naming it for sessions. Does not belong: sessions.

Mapped from it, a session's start and its first statements take about half the processor time. Java refuses by itself an
archive of another Java or of other jars, and goes on without.
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

from artemis_lifecycle.embedded.jars import spark_home
from artemis_lifecycle.embedded.java import export_java
from artemis_lifecycle.embedded.locks import file_lock
from artemis_lifecycle.errors import EnvironmentMissing

_SECONDS = 900
_BRIEFLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
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


def archive_options(java: Path, folder: Path) -> str:
    """The options by which `java` maps the archive in `folder`, that of the jars; empty where there is none."""
    archive = archive_file(java, folder)
    if not archive.is_file():
        return ""
    # Where Java refuses one it says so on the standard output, which is the caller's.
    return f"-XX:SharedArchiveFile={shlex.quote(str(archive))} -Xlog:cds=off -Xlog:cds+dynamic=off"


def make_archive(jars: Sequence[Path]) -> Path:
    """The archive beside `jars`. Where it is not there yet, a session that is used a little leaves it at its end.

    Raises EnvironmentMissing when that session fails.
    """
    archive = archive_file(export_java(), jars[0].parent)
    with file_lock(archive.parent / "lock", timeout=_SECONDS):
        if not archive.exists():
            with tempfile.TemporaryDirectory(prefix="classes-", dir=archive.parent) as work:
                made = Path(work) / archive.name
                done = subprocess.run(
                    [sys.executable, "-m", __name__, work, str(made), *map(str, jars)],
                    # Spark's own default is the first python3 of the path, which may lack what a worker imports.
                    env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=_SECONDS,
                )
                # Java takes away a file that it could not write to its end.
                if done.returncode != 0 or not made.exists():
                    # Java's own warnings are about classes that it leaves out.
                    lines = [line for line in done.stdout.splitlines() if line.strip() and not line.startswith("[")]
                    said = lines or ["it said nothing"]
                    raise EnvironmentMissing(
                        f"The session that makes the class archive failed: {said[-1]}",
                        path=str(archive),
                        hint="see whether Spark starts, and whether the disk has 200 MB",
                    )
                for old in archive.parent.glob("spark-*.jsa"):
                    old.unlink()
                made.replace(archive)
    return archive


def archive_file(java: Path, folder: Path) -> Path:
    """Where the archive for `java` and the installed Spark stands, or would stand, in `folder`."""
    program, jars = java.resolve(), Path(spark_home()) / "jars"
    made_by = [(str(path), path.stat().st_mtime_ns) for path in (program, jars)]
    return folder / f"spark-{sha256(repr(made_by).encode()).hexdigest()[:12]}.jsa"


def _use(work: Path, archive: Path, jars: Sequence[str]) -> None:
    """Start a session, do of everything a little, and have its JVM write what it loaded."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    conf = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={shlex.quote(str(archive))} {_BRIEFLY}",
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
    _use(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
