"""A Paimon table for the demo (`--with paimon`): three weeks of commits by Paimon's own Java, a tag, and a file that a
crashed writer left. Belongs here: writing it, and reading it again. Does not belong: what the walk does to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.embedded.jars import Jar

from . import ivy
from .proofs import Proof

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "lake"
TABLE = f"{CATALOG}:mission.satellite_passes"

BUNDLE = Jar(
    "org.apache.paimon",
    "paimon-bundle",
    "1.4.2",
    "85a1587409e6c044b46eb20370a46ecd288576b8bc7aadf6b0432a4f2370f5d1",
)

COMMITS = 20
"""One a day; each makes two snapshots, an append and a compaction."""

WINDOW = timedelta(days=7)
_TAG, _TAGGED = "launch", 4
_OPTIONS = {
    "bucket": "1",
    # Nobody but the walk expires snapshots.
    "write-only": "true",
    "snapshot.time-retained": "7 d",
    "snapshot.num-retained.min": "3",
    "snapshot.expire.limit": "1000",
}


@dataclass(frozen=True)
class PaimonHistory:
    """The table as it was written: what each of its snapshots reads, by number, and what was left behind."""

    table: Any
    folder: Path
    prints: Mapping[int, str]
    orphan: Path


def write_history(
    spark: SparkSession, home: Path, warehouse: Path, now: datetime, on_done: Callable[[int], None]
) -> PaimonHistory:
    """Write the table. Its snapshots and files are set back in time; `on_done` hears how many commits there are."""
    folder = warehouse / "mission.db" / "satellite_passes"
    table = _new_table(spark, home, str(warehouse))
    with TemporaryDirectory(prefix="paimon-") as spilled:
        for number in range(COMMITS):
            table.write(number * 50, number * 50 + 100, f"station {number % 7}", spilled)
            on_done(number + 1)
    table.tag(_TAG, _TAGGED)
    last = 2 * COMMITS
    prints = {number: table.fingerprint("scan.snapshot-id", str(number)) for number in range(1, last + 1)}
    orphan = folder / "bucket-0" / "data-left-by-a-crashed-writer-0.parquet"
    orphan.write_bytes(b"half a file")
    began = now - timedelta(days=COMMITS)
    for number in range(1, last + 1):
        _place(folder, number, began + timedelta(hours=12 * number))
    for path in folder.rglob("*"):
        if path.is_file():
            at = (now - timedelta(days=COMMITS)).timestamp()
            os.utime(path, (at, at))
    return PaimonHistory(table, folder, prints, orphan)


def prove(history: PaimonHistory) -> list[Proof]:
    """Read what is left of the table with Paimon, and hold it against what was written."""
    left = sorted(int(file.name.rpartition("-")[2]) for file in (history.folder / "snapshot").glob("snapshot-*"))
    same = [number for number in left if _read(history, "scan.snapshot-id", str(number)) == history.prints[number]]
    tagged = _read(history, "scan.tag-name", _TAG) == history.prints[_TAGGED]
    gone = len(history.prints) - len(left)
    return [
        Proof(
            TABLE,
            "Paimon reads every snapshot that stays as before",
            bool(left) and same == left,
            f"{len(same)} of {len(left)} snapshots",
        ),
        Proof(TABLE, "snapshots past snapshot.time-retained are gone", gone > 0, f"{gone} of {len(history.prints)}"),
        Proof(TABLE, f"the tag {_TAG}, whose snapshot expired, reads as before", tagged, f"snapshot {_TAGGED}"),
        Proof(TABLE, "the file of a crashed writer is gone", not history.orphan.exists(), history.orphan.name),
    ]


def _read(history: PaimonHistory, option: str, value: str) -> str:
    return str(history.table.fingerprint(option, value))


def _place(folder: Path, number: int, at: datetime) -> None:
    """Set a snapshot, and a tag on it, back in time, as if it had been committed then."""
    for file in (folder / "snapshot" / f"snapshot-{number}", *(folder / "tag").glob("tag-*")):
        document = json.loads(file.read_text())
        if document["id"] == number:
            file.write_text(json.dumps({**document, "timeMillis": round(at.timestamp() * 1000)}))


def _new_table(spark: SparkSession, home: Path, warehouse: str) -> Any:
    """Make the table with Paimon's Java in the session's JVM, in a class loader of its own."""
    (jar,) = ivy.fetch(home, [BUNDLE])
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(jar)).toURI().toURL()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setTargetVersion(8)
    compiler.setParentClassLoader(jvm.java.net.URLClassLoader(urls, jvm.Thread.currentThread().getContextClassLoader()))
    compiler.cook(Path(__file__).with_name("PaimonTable.java").read_text())
    arguments = gateway.new_array(jvm.Object, 4)
    options = jvm.java.util.HashMap()
    for key, value in _OPTIONS.items():
        options.put(key, value)
    for place, value in enumerate((warehouse, "mission", "satellite_passes", options)):
        arguments[place] = value
    return compiler.getClassLoader().loadClass("PaimonTable").getConstructors()[0].newInstance(arguments)
