"""A writer of Paimon's own that compacts, tags and expires on its commits, while this project plans, commits and
deletes: whatever is there in the end reads as it was written."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.end_report import add_lines
from artemis_lifecycle_tests.paimon import ours
from artemis_lifecycle_tests.paimon.bundle import Row, Table, create

COMMITS = 15
OPTIONS = {
    "bucket": "1",
    "snapshot.num-retained.min": "1",
    "snapshot.num-retained.max": "3",
    "snapshot.time-retained": "1 ms",
}


@dataclass
class Writer:
    """Upserts five keys over and over. `written` are the rows of each snapshot; each third commit expires, each fifth
    is tagged, and older tags go."""

    table: Table
    written: dict[int, list[Row]] = field(default_factory=dict)
    failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self.failure = error

    def _write(self) -> None:
        state: dict[int, Row] = {}
        latest = 0
        for number in range(COMMITS):
            row: Row = (number % 5, "a", f"v{number}")
            state[number % 5] = row
            before = latest
            latest = self.table.write([row], compact="fully", expire=number % 3 == 2)
            self.written |= {each: sorted(state.values()) for each in range(before + 1, latest + 1)}
            if number % 5 == 4:
                self.table.tag(f"t{number}", latest)
                if number > 10:
                    self.table.delete_tag(f"t{number - 10}")


def test_what_is_left_reads_as_it_was_written(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    table = create(calls, tmp_path / "lake", keyed=True, options=OPTIONS)
    table.write([(0, "a", "first")])
    writer = Writer(table)
    writer.written[1] = [(0, "a", "first")]
    thread = threading.Thread(target=writer.run)
    outcomes: Counter[str] = Counter()

    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        thread.start()
        while thread.is_alive():
            try:
                outcomes["files deleted"] += ours.expire(lifecycle, table).deleted
                outcomes["rounds"] += 1
            except LifecycleError as refusal:
                outcomes[f"refused: {type(refusal).__name__}"] += 1
        thread.join()
        if writer.failure is not None:
            raise writer.failure
        latest = table.write([(9, "a", "last")], compact="fully")
        ours.expire(lifecycle, table)

    assert table.snapshots() == [latest]
    assert table.read() == [*writer.written[max(writer.written)], (9, "a", "last")]
    assert table.tags()
    for tag, snapshot in table.tags().items():
        assert table.read(scan_tag_name=tag) == writer.written[snapshot]
    add_lines("Against a Paimon writer that expires", (f"{what}: {count}" for what, count in sorted(outcomes.items())))
