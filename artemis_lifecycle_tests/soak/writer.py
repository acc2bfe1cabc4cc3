"""A writer of the storm that uses pyiceberg; a process of its own, which `nursery` forks.

It commits until it is stopped or killed. Whatever goes wrong it notes, and goes on: what it leaves behind is the
lifecycle's to clear.
"""

from __future__ import annotations

import random
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table

from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle_tests.soak import place, rows
from artemis_lifecycle_tests.soak.journal import Journal

_REFS = 5
"""Tags and branches of a table, main left out, beyond which the next is removed and not made."""


class Writer:
    def __init__(self, where: place.Place, name: str, seed: int) -> None:
        self.place = where
        self.name = name
        self.dice = random.Random(seed)
        self.journal = Journal(where.journal(name))
        self.config = where.config
        live = self.config.catalogs.live
        properties = pyiceberg_properties(live)
        properties["uri"] = place.uri_of(name, properties["uri"])
        self.catalog = load_catalog(live.name, **properties)
        self.operations = Operations.open(str(self.config.operations.uri))
        self.did: dict[str, Any] = {}

    def run(self) -> None:
        while not self.place.stopping:
            table = self.dice.choice([each for each in self.place.tables if each in place.BY_PYICEBERG])
            try:
                self._attempt(table)
            except Exception as error:
                self.journal.write("error", table=table, kind=type(error).__name__, said=str(error)[:300])
            time.sleep(self.dice.uniform(0, self.place.pause))

    def _attempt(self, name: str) -> None:
        table = self.catalog.load_table(name)
        choices = self._choices(table)
        op = self.dice.choices(list(choices), [weight for weight, _ in choices.values()])[0]
        with place.attempt(self.place, self.operations, self.name, name, str(table.metadata.table_uuid)):
            self.did = {"table": name, "op": op, "token": uuid.uuid4().hex}
            choices[op][1](table)
        self.journal.write("commit", **self.did)

    def _choices(self, table: Table) -> Mapping[str, tuple[float, Callable[[Table], None]]]:
        current = table.current_snapshot()
        if current is None:
            return {"append": (1, self._append)}
        summary = current.summary
        files = int(summary["total-data-files"] or 0) if summary is not None else 0
        refs = [name for name in table.refs() if name != "main"]
        branches = [name for name, ref in table.refs().items() if name != "main" and ref.snapshot_ref_type == "branch"]
        found: dict[str, tuple[float, Callable[[Table], None]]] = {
            "append": (12 if files < self.place.most_files else 1, self._append),
            "delete": (2, self._delete),
            "overwrite": (2, self._overwrite),
            "compact": (1 if files < self.place.most_files else 20, self._compact),
            "rollback": (1, self._rollback),
        }
        if table.spec().fields:
            found["overwrite partitions"] = (2, self._overwrite_partitions)
        if len(refs) < _REFS:
            found |= {"tag": (1.5, self._tag), "branch": (1, self._branch)}
        if refs:
            found["drop ref"] = (1 if len(refs) < _REFS else 3, lambda table: self._drop(table, refs))
        if branches:
            found["append to branch"] = (1.5, lambda table: self._append(table, self.dice.choice(branches)))
        return found

    def _properties(self) -> dict[str, str]:
        return {"soak.token": self.did["token"], "soak.op": self.did["op"], "soak.engine": "pyiceberg"}

    def _append(self, table: Table, branch: str = "main") -> None:
        new = rows.make(self.dice, self.dice.randrange(1, 60))
        # Before the commit: afterward this process may no longer be able to report it.
        self.journal.write("intent", op=self.did["op"], token=self.did["token"], added=rows.total(new))
        table.append(new, snapshot_properties=self._properties(), branch=branch)
        self.did["snapshot"] = table.refs()[branch].snapshot_id

    def _delete(self, table: Table) -> None:
        table.delete(self._some(), snapshot_properties=self._properties())
        self._current(table)

    def _overwrite(self, table: Table) -> None:
        new = rows.make(self.dice, self.dice.randrange(1, 60))
        table.overwrite(new, overwrite_filter=self._some(), snapshot_properties=self._properties())
        self._current(table)

    def _overwrite_partitions(self, table: Table) -> None:
        new = rows.make(self.dice, self.dice.randrange(1, 10))
        table.dynamic_partition_overwrite(new, snapshot_properties=self._properties())
        self._current(table)

    def _compact(self, table: Table) -> None:
        # Rows beyond a bound go: tables must not grow all the while.
        table.overwrite(table.scan(limit=2000).to_arrow(), snapshot_properties=self._properties())
        self._current(table)

    def _rollback(self, table: Table) -> None:
        current = table.current_snapshot()
        known = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
        ancestors: list[int] = []
        while current is not None and current.parent_snapshot_id in known and len(ancestors) < 5:
            current = known[current.parent_snapshot_id]
            ancestors.append(current.snapshot_id)
        if ancestors:
            table.manage_snapshots().rollback_to_snapshot(self.dice.choice(ancestors)).commit()

    def _tag(self, table: Table) -> None:
        # Any snapshot: one that a plan is about to remove, too.
        chosen = self.dice.choice(table.snapshots()).snapshot_id
        age = self.dice.choice([None, 20_000, 2**63 - 1])
        table.manage_snapshots().create_tag(chosen, f"t-{self.did['token'][:6]}", max_ref_age_ms=age).commit()

    def _branch(self, table: Table) -> None:
        chosen = self.dice.choice(table.snapshots()).snapshot_id
        table.manage_snapshots().create_branch(chosen, f"b-{self.did['token'][:6]}").commit()

    def _drop(self, table: Table, refs: list[str]) -> None:
        name = self.dice.choice(refs)
        manage = table.manage_snapshots()
        drop = manage.remove_tag if table.refs()[name].snapshot_ref_type == "tag" else manage.remove_branch
        drop(name).commit()

    def _some(self) -> BooleanExpression:
        """A tenth of a partition's rows, or all of it."""
        part = EqualTo("part", self.dice.choice(rows.PARTS))  # type: ignore[call-arg,arg-type]
        if self.dice.random() < 0.3:
            return part
        begin = self.dice.getrandbits(rows.BITS)
        least = GreaterThanOrEqual("id", begin)  # type: ignore[call-arg,arg-type]
        below = LessThan("id", begin + 2**rows.BITS // 10)  # type: ignore[call-arg,arg-type]
        return And(part, And(least, below))

    def _current(self, table: Table) -> None:
        current = table.current_snapshot()
        self.did["snapshot"] = None if current is None else current.snapshot_id


def live(where: place.Place, name: str, seed: int) -> None:
    """Commit until the storm is over."""
    # pyiceberg warns of deletes that match nothing, of Puffin files it does not know, and the like.
    warnings.simplefilter("ignore")
    Writer(where, name, seed).run()
