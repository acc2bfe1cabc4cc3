"""Files that no snapshot of a Paimon table has, in all its folders."""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime, timedelta

from artemis_lifecycle_tests.paimon.bundle import Table

OLD = datetime.now(UTC) - timedelta(days=3)

_NAMES = {
    "manifest": ("manifest-{}-0", "manifest-list-{}-0", "index-manifest-{}-0", ".manifest-{}-0.tmp"),
    "index": ("index-{}-0",),
    "statistics": ("stat-{}-0",),
    "snapshot": (".snapshot-7.{}.tmp", "{}.tmp"),
    "schema": (".schema-1.{}.tmp", "{}.tmp"),
    "tag": (".tag-a.{}.tmp", "{}.tmp"),
    "consumer": (".consumer-a.{}.tmp",),
    "": ("{}", ".{}", "_SUCCESS-{}"),
    "elsewhere": ("data-{}-0.parquet",),
    "_delta_log": ("{}.json",),
}
_IN_A_BUCKET = ("data-{}-0.parquet", "changelog-{}-0.parquet", "data-{}-0.parquet.index", ".data-{}.tmp", "below/{}")


def plant(table: Table) -> set[str]:
    """Make old files in every folder of the table, and a young one beside each; return their relative paths."""
    buckets = [folder for folder in table.folders() if folder.rpartition("/")[2].startswith("bucket-")]
    named = _NAMES | dict.fromkeys(buckets, _IN_A_BUCKET)
    named |= {
        f"branch/branch-{branch}/{kind}": _NAMES[kind] for branch in table.branches() for kind in ("snapshot", "tag")
    }
    planted = set()
    for folder, names in named.items():
        for name in names:
            for old in (True, False):
                file = table.folder / folder / name.format(uuid.uuid4())
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(b"nobody's")
                if old:
                    os.utime(file, (OLD.timestamp(), OLD.timestamp()))
                planted.add(str(file.relative_to(table.folder)))
    return planted


def age(table: Table) -> None:
    """Make every file of the table, and every folder, old."""
    for path in table.folder.rglob("*"):
        os.utime(path, (OLD.timestamp(), OLD.timestamp()))
