"""Paimon's own Java in the tests' Spark JVM: real tables, and what Paimon does to them.

The bundle is one jar, resolved by the Ivy among Spark's jars into the repository's .artemis. It has a class loader of
its own: no session, and no other test, sees its classes. `PaimonCalls.java` is compiled against it by Spark's Janino.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from artemis_lifecycle.embedded.jars import Jar
from examples.mission import ivy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(__file__).parents[2] / ".artemis"
BUNDLE = Jar(
    "org.apache.paimon",
    "paimon-bundle",
    "1.4.2",
    "85a1587409e6c044b46eb20370a46ecd288576b8bc7aadf6b0432a4f2370f5d1",
)

Kind = Literal["+I", "-U", "+U", "-D"]
Row = tuple[int | str | None, ...]
"""By default the columns k, p and v. A BIGINT is a number; all else is its text, as CAST takes it."""
NO_OPTIONS: Mapping[str, str] = {}


@functools.lru_cache(maxsize=1)
def paimon(spark: SparkSession) -> Any:
    """The one PaimonCalls of this process."""
    (jar,) = ivy.fetch(HOME, [BUNDLE])
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(jar)).toURI().toURL()
    loader = jvm.java.net.URLClassLoader(urls, jvm.Thread.currentThread().getContextClassLoader())
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setTargetVersion(8)
    compiler.setParentClassLoader(loader)
    compiler.cook(Path(__file__).with_name("PaimonCalls.java").read_text())
    return compiler.getClassLoader().loadClass("PaimonCalls").newInstance()


@dataclass(frozen=True)
class Table:
    """A table by its folder, as Paimon sees it. Each call opens it anew."""

    calls: Any
    folder: Path

    @property
    def name(self) -> str:
        """As the catalog of its warehouse has it: db.table."""
        return f"{self.folder.parent.name.removesuffix('.db')}.{self.folder.name}"

    @property
    def warehouse(self) -> Path:
        return self.folder.parent.parent

    def write(
        self,
        rows: Sequence[Row],
        kind: Kind = "+I",
        *,
        branch: str = "main",
        compact: Literal["never", "at will", "fully"] = "never",
        expire: bool = False,
        overwrite: bool = False,
        options: Mapping[str, str] = NO_OPTIONS,
    ) -> int:
        """Commit rows; return the number of the snapshot that is then the latest.

        `compact`: the writer leaves it to others, does it where it sees fit, or compacts all of each bucket that the
        rows are in. `expire` lets the commit expire snapshots, as a writer without write-only does.
        """
        given = [[kind, *row] for row in rows]
        how = (compact != "never", compact == "fully", expire, overwrite)
        return int(self.calls.write(str(self.folder), branch, given, *how, dict(options)))

    def read(self, branch: str = "main", **options: object) -> list[Row]:
        """The rows, sorted, of the latest snapshot or of what `scan_snapshot_id` or `scan_tag_name` names."""
        named = {key.replace("_", "-").replace("scan-", "scan.", 1): str(value) for key, value in options.items()}
        return sorted((tuple(row) for row in self.calls.read(str(self.folder), branch, named)), key=_in_order)

    def alter(self, options: Mapping[str, str | None] = NO_OPTIONS, columns: Sequence[str] = ()) -> None:
        """Set options (None removes one) and add string columns."""
        database = self.folder.parent.name.removesuffix(".db")
        self.calls.alter(str(self.warehouse), database, self.folder.name, dict(options), list(columns))

    def analyze(self, branch: str = "main") -> None:
        """Commit statistics."""
        self.calls.analyze(str(self.folder), branch)

    def truncate(self, partition: Mapping[str, str] = NO_OPTIONS, branch: str = "main") -> None:
        """Drop a partition, or all rows."""
        self.calls.truncate(str(self.folder), branch, dict(partition))

    def compact_manifests(self, branch: str = "main") -> None:
        self.calls.compactManifests(str(self.folder), branch)

    def tag(self, name: str, snapshot: int, *, retained: timedelta | None = None, branch: str = "main") -> None:
        """Tag a snapshot, for ever or for a time from now on."""
        self.calls.tag(str(self.folder), branch, name, snapshot, -1 if retained is None else _ms(retained))

    def delete_tag(self, name: str, branch: str = "main") -> None:
        self.calls.deleteTag(str(self.folder), branch, name)

    def create_branch(self, name: str, tag: str | None = None) -> None:
        """Make a branch from a tag, or an empty one."""
        self.calls.branch(str(self.folder), name, tag)

    def delete_branch(self, name: str) -> None:
        self.calls.deleteBranch(str(self.folder), name)

    def fast_forward(self, branch: str) -> None:
        self.calls.fastForward(str(self.folder), branch)

    def consume(self, consumer: str, next_snapshot: int, branch: str = "main") -> None:
        """Set the next snapshot that a consumer reads."""
        self.calls.consume(str(self.folder), branch, consumer, next_snapshot)

    def delete_consumer(self, consumer: str, branch: str = "main") -> None:
        self.calls.deleteConsumer(str(self.folder), branch, consumer)

    def expire(
        self,
        *,
        retain_max: int | None = None,
        retain_min: int | None = None,
        older_than: datetime | None = None,
        max_deletes: int | None = None,
        options: Mapping[str, str] = NO_OPTIONS,
        branch: str = "main",
    ) -> int:
        """Paimon's procedure `expire_snapshots`; return how many snapshots it expired."""
        before = _given(older_than)
        return int(
            self.calls.expire(str(self.folder), branch, retain_max, retain_min, before, max_deletes, dict(options))
        )

    def expire_as_writer(self, options: Mapping[str, str] = NO_OPTIONS, branch: str = "main") -> int:
        """What the commit of a writer without write-only expires; decoupled changelogs live on."""
        return int(self.calls.expireAsWriter(str(self.folder), branch, dict(options)))

    def expire_changelogs(self, options: Mapping[str, str] = NO_OPTIONS, branch: str = "main") -> int:
        """What the commit of a writer without write-only expires of changelogs, where they are decoupled.

        Fails where `changelog.num-retained.min` keeps all: Paimon then looks for a changelog that there never was.
        """
        return int(self.calls.expireChangelogs(str(self.folder), branch, dict(options)))

    def auto_tags(self, options: Mapping[str, str] = NO_OPTIONS, branch: str = "main") -> None:
        """What the commit of a writer without write-only does about automatic tags."""
        self.calls.autoTags(str(self.folder), branch, dict(options))

    def expire_tags(self, older_than: datetime | None = None, branch: str = "main") -> list[str]:
        """Paimon's procedure `expire_tags`; return the tags that it deleted."""
        return sorted(self.calls.expireTags(str(self.folder), branch, _given(older_than)))

    def remove_orphans(self, older_than: datetime, *, dry_run: bool = False) -> list[Path]:
        """Paimon's procedure `remove_orphan_files`; return what it removed, or would."""
        removed = self.calls.removeOrphans(str(self.folder), epoch_ms(older_than), dry_run)
        return sorted(map(Path, removed))

    def unreached(self) -> set[str]:
        """The files that nothing reaches, whatever their age, by relative path, as Paimon's orphan clean finds them."""
        found = self.remove_orphans(datetime.now(UTC) + timedelta(days=1), dry_run=True)
        return {str(file.relative_to(self.folder)) for file in found}

    def rollback_to(self, target: int | str, branch: str = "main") -> None:
        """Go back to a snapshot, or to a tag."""
        if isinstance(target, int):
            self.calls.rollbackTo(str(self.folder), branch, target)
        else:
            self.calls.rollbackToTag(str(self.folder), branch, target)

    def root(self, branch: str = "main") -> Path:
        """Where a branch has its snapshots, tags and consumers."""
        return self.folder if branch == "main" else self.folder / "branch" / f"branch-{branch}"

    def snapshots(self, branch: str = "main") -> list[int]:
        """The numbers of the snapshots that have a file."""
        return _numbers(self.root(branch) / "snapshot", "snapshot-")

    def changelogs(self, branch: str = "main") -> list[int]:
        """The numbers of the long-lived changelogs that have a file."""
        return _numbers(self.root(branch) / "changelog", "changelog-")

    def tags(self, branch: str = "main") -> dict[str, int]:
        """The snapshot of each tag."""
        files = (self.root(branch) / "tag").glob("tag-*")
        return {file.name.removeprefix("tag-"): json.loads(file.read_text())["id"] for file in files}

    def branches(self) -> list[str]:
        return sorted(each.name.removeprefix("branch-") for each in (self.folder / "branch").glob("branch-*"))

    def snapshot_file(self, number: int, branch: str = "main") -> Path:
        return self.root(branch) / "snapshot" / f"snapshot-{number}"

    def place(self, number: int, instant: datetime, branch: str = "main") -> None:
        """Move a snapshot in time, with its tags, as if it had been committed then."""
        for file in (self.snapshot_file(number, branch), *(self.root(branch) / "tag").glob("tag-*")):
            document = json.loads(file.read_text())
            if document["id"] == number:
                file.write_text(json.dumps({**document, "timeMillis": epoch_ms(instant)}))

    def files(self) -> dict[str, bytes]:
        """Every file below the folder with what it holds, by relative path."""
        return {name: (self.folder / name).read_bytes() for name in self.listing()}

    def listing(self) -> list[str]:
        """Every file below the folder, by relative path. This project's own receipts do not count."""
        return self._below(Path.is_file)

    def folders(self) -> list[str]:
        """Every folder below the folder, by relative path, without those of receipts."""
        return self._below(Path.is_dir)

    def _below(self, kind: Callable[[Path], bool]) -> list[str]:
        found = (str(each.relative_to(self.folder)) for each in self.folder.rglob("*") if kind(each))
        return sorted(name for name in found if name.partition("/")[0] != "metadata")

    def copy(self, warehouse: Path) -> Table:
        """A byte copy in another warehouse, with the times of its files."""
        target = warehouse / self.folder.relative_to(self.warehouse)
        shutil.copytree(self.folder, target)
        return Table(self.calls, target)

    def contents(self) -> dict[str, list[Row]]:
        """The rows of every snapshot and tag of every branch, as Paimon reads them."""
        found: dict[str, list[Row]] = {}
        for branch in ("main", *self.branches()):
            for number in self.snapshots(branch):
                found[f"{branch} snapshot {number}"] = self.read(branch, scan_snapshot_id=number)
            for tag, number in self.tags(branch).items():
                # Paimon looks for a named tag on the main branch.
                how = {"scan_tag_name": tag} if branch == "main" else {"scan_snapshot_id": number}
                found[f"{branch} tag {tag}"] = self.read(branch, **how)
        return found


COLUMNS = (("k", "BIGINT NOT NULL"), ("p", "STRING NOT NULL"), ("v", "STRING"))


def create(
    calls: Any,
    warehouse: Path,
    name: str = "db.t",
    *,
    columns: Sequence[tuple[str, str]] = COLUMNS,
    partitioned: bool | Sequence[str] = False,
    keyed: bool = False,
    options: Mapping[str, str] = NO_OPTIONS,
) -> Table:
    """Make a table, by default with the columns k, p and v; partitioned by p or the columns named, keyed by these and
    k."""
    database, _, table = name.rpartition(".")
    warehouse.mkdir(parents=True, exist_ok=True)
    partition = list(partitioned) if not isinstance(partitioned, bool) else ["p"] if partitioned else []
    key = [*partition, "k"] if keyed else []
    given = [list(column) for column in columns]
    return Table(calls, Path(calls.create(str(warehouse), database, table, given, partition, key, dict(options))))


def _in_order(row: Row) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in row]


def _numbers(folder: Path, prefix: str) -> list[int]:
    names = (file.name.removeprefix(prefix) for file in folder.glob(f"{prefix}*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def epoch_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def _given(instant: datetime | None) -> int | None:
    return None if instant is None else epoch_ms(instant)
