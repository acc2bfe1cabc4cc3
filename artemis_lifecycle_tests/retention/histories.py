"""Random table histories: the operations that people run, on a model of a table that keeps Iceberg's books."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from artemis_lifecycle.metadata.types import LogEntry, Ref
from artemis_lifecycle.retention.rules import HistoryView, SnapshotView
from artemis_lifecycle_tests.metadata.metadata_json import metadata_node, snapshot_node

MINUTE = 60_000


def examples(count: int) -> settings:
    """Settings for so many examples; `ARTEMIS_SOAK` multiplies them. No deadline: the machine may be shared."""
    return settings(
        max_examples=count * int(os.environ.get("ARTEMIS_SOAK", "1")),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@dataclass
class TableModel:
    """A table as its metadata file tells it. `clock` is what the next commit is stamped with."""

    clock: int
    snapshots: list[SnapshotView] = field(default_factory=list)
    refs: dict[str, Ref] = field(default_factory=dict)
    log: list[LogEntry] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    made: int = 0

    @property
    def current(self) -> int | None:
        return self.refs["main"].snapshot_id if "main" in self.refs else None

    def ids(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.snapshots]

    def _new(self, parent: int | None) -> int:
        self.made += 1
        # Neither sorted nor dense, and beyond 32 bits, as real ids are.
        snapshot_id = (self.made * 7_919 % 100_003 + 1) << 33
        self.snapshots.append(SnapshotView(snapshot_id, parent, self.clock))
        return snapshot_id

    def set_main(self, snapshot_id: int) -> None:
        old = self.refs.get("main")
        if old is not None and old.snapshot_id == snapshot_id:
            return
        settings = () if old is None else (old.min_snapshots_to_keep, old.max_snapshot_age_ms, old.max_ref_age_ms)
        self.refs["main"] = Ref("main", snapshot_id, "branch", *settings)
        self.log.append(LogEntry(self.clock, snapshot_id))

    def append(self) -> None:
        self.set_main(self._new(self.current))

    def replace(self) -> None:
        self.set_main(self._new(None))

    def stage(self) -> None:
        self._new(self.current)

    def append_to(self, branch: str) -> None:
        if branch == "main":
            self.append()
            return
        old = self.refs[branch]
        new = self._new(old.snapshot_id)
        self.refs[branch] = Ref(
            branch, new, "branch", old.min_snapshots_to_keep, old.max_snapshot_age_ms, old.max_ref_age_ms
        )

    def remove(self, gone: set[int]) -> None:
        """As TableMetadata.Builder: dangling refs go, and the log is cleared up to each entry without its snapshot."""
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot.snapshot_id not in gone]
        left = set(self.ids())
        self.refs = {name: ref for name, ref in self.refs.items() if ref.snapshot_id in left}
        log: list[LogEntry] = []
        for entry in self.log:
            log = [*log, entry] if entry.snapshot_id in left else []
        self.log = log

    def view(self) -> HistoryView:
        return HistoryView(tuple(self.snapshots), dict(self.refs), tuple(self.log), self.current, dict(self.properties))

    def metadata(self) -> dict[str, Any]:
        """The metadata file, as Iceberg would have written it."""
        refs = {}
        for name, ref in self.refs.items():
            node: dict[str, Any] = {"snapshot-id": ref.snapshot_id, "type": ref.type}
            for key, value in (
                ("min-snapshots-to-keep", ref.min_snapshots_to_keep),
                ("max-snapshot-age-ms", ref.max_snapshot_age_ms),
                ("max-ref-age-ms", ref.max_ref_age_ms),
            ):
                if value is not None:
                    node[key] = value
            refs[name] = node
        return metadata_node(
            [
                snapshot_node(s.snapshot_id, s.parent_id, s.timestamp_ms, sequence_number=number + 1)
                for number, s in enumerate(self.snapshots)
            ],
            current=self.current,
            refs=refs,
            log=[(entry.timestamp_ms, entry.snapshot_id) for entry in self.log],
            properties=self.properties,
            last_updated_ms=self.clock,
        )


_number = st.integers(0, 30)
_minutes = st.integers(0, 12)
_optional_count = st.none() | st.integers(1, 5)
# Iceberg refuses a ref with an age of 0.
_optional_age = st.none() | st.integers(1, 12).map(lambda minutes: minutes * MINUTE)


@st.composite
def tables(draw: st.DrawFn, *, skew: bool = True, gaps: bool = False, start: int = 1_700_000_000_000) -> TableModel:
    """A table after up to 30 operations. `skew`: clocks may go back a little, and commits may share a millisecond.
    `gaps`: the log may name snapshots that are gone, as writers other than Iceberg's core leave it."""
    table = TableModel(start)
    operations = draw(
        st.lists(
            st.tuples(
                st.sampled_from(
                    ["append"] * 6
                    + ["stage", "rollback", "branch", "tag", "append_branch", "append_branch"]
                    + ["forward", "drop", "expire", "replace", "settings", "drop_main", "lose"]
                ),
                _number,
                _number,
            ),
            max_size=30,
        )
    )
    for operation, one, two in operations:
        step = one % 5
        table.clock += (step - 1 if skew else step + 1) * MINUTE
        if table.log:
            # Iceberg refuses metadata whose log goes back by more than a minute.
            table.clock = max(table.clock, table.log[-1].timestamp_ms - MINUTE)
        ids = table.ids()
        branches = sorted(name for name, ref in table.refs.items() if ref.is_branch)
        if operation == "append":
            table.append()
        elif operation == "stage":
            table.stage()
        elif operation == "replace" and two < 5:
            table.replace()
        elif operation == "rollback" and ids:
            table.set_main(ids[two % len(ids)])
        elif operation in ("branch", "tag") and ids:
            name = f"{operation}{one % 3}"
            count, of = (draw(_optional_count), draw(_optional_age)) if operation == "branch" else (None, None)
            age = draw(_optional_age | st.just(2**63 - 1))
            table.refs[name] = Ref(
                name, ids[two % len(ids)], "branch" if operation == "branch" else "tag", count, of, age
            )
        elif operation == "append_branch" and branches:
            table.append_to(branches[two % len(branches)])
        elif operation == "forward" and branches:
            table.set_main(table.refs[branches[two % len(branches)]].snapshot_id)
        elif operation == "drop" and branches[1:]:
            table.refs.pop(branches[two % len(branches)] if two % len(branches) else "branch0", None)
            if table.current is None and table.log:
                table.set_main(ids[-1])
        elif operation == "drop_main" and two < 3:
            table.refs.pop("main", None)
        elif operation == "settings" and "main" in table.refs:
            main = table.refs["main"]
            table.refs["main"] = Ref("main", main.snapshot_id, "branch", draw(_optional_count), draw(_optional_age))
        elif operation == "expire" and ids:
            heads = {ref.snapshot_id for ref in table.refs.values()}
            table.remove({i for number, i in enumerate(ids) if i not in heads and (number * 7 + one) % 3 == 0})
        elif operation == "lose" and gaps and ids:
            heads = {ref.snapshot_id for ref in table.refs.values()}
            gone = ids[two % len(ids)]
            if gone not in heads:
                table.snapshots = [s for s in table.snapshots if s.snapshot_id != gone]
    if draw(st.booleans()):
        table.properties = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "history.expire.max-snapshot-age-ms": _minutes.map(lambda m: str(m * MINUTE)),
                    "history.expire.min-snapshots-to-keep": st.integers(1, 5).map(str),
                    "history.expire.max-ref-age-ms": _minutes.map(lambda m: str(m * MINUTE)),
                },
            )
        )
    return table
