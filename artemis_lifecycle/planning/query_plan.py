"""The result of planning a query: passes, figures, files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

import pyarrow as pa

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.planning.advice import Advice
from artemis_lifecycle.planning.passes import Pass
from artemis_lifecycle.planning.picture import plan_picture
from artemis_lifecycle.spark.runner import Runner, Spark

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


FILES = pa.schema(
    [
        ("path", pa.large_string()),
        ("size_in_bytes", pa.int64()),
        ("record_count", pa.int64()),
        ("spec_id", pa.int64()),
        ("sequence_number", pa.int64()),
        ("residual", pa.large_string()),
        ("deletes", pa.large_list(pa.large_string())),
        ("delete_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True)
class QueryPlan:
    """What a scan of one snapshot with one predicate reads: exactly the files that Iceberg's planner selects.

    Pass one counts data manifests and delete manifests together. `files_total` counts the live data files of the whole
    snapshot, from the manifest list, and None is what an old list does not say; `files_read` are the entries of the
    manifests that pass one left. `delete_files` are those that apply to a selected file; `delete_opens` counts one for
    each file they apply to, as readers open them. Row groups are None unless footers were read, of `footers_read`
    files.
    """

    table: str
    metadata_location: str
    snapshot_id: int | None
    predicate: str
    manifests: Pass
    files_pass: Pass
    row_groups: Pass | None
    manifests_total: int
    manifests_selected: int
    delete_manifests_total: int
    delete_manifests_selected: int
    files_total: int | None
    files_read: int
    files_in_partition: int
    files_selected: int
    files_without_residual: int
    bytes_selected: int
    records_selected: int
    delete_files: Mapping[str, int]
    delete_bytes: int
    delete_opens: int
    footers_read: int
    footers_skipped: Mapping[str, int]
    advice: tuple[Advice, ...]
    seconds: float
    _files: pa.Table = field(repr=False, compare=False)
    _spark: Spark | None = field(default=None, repr=False, compare=False)

    @property
    def row_groups_total(self) -> int | None:
        """The row groups of the files whose footers were read."""
        return None if self.row_groups is None else self.row_groups.total

    @property
    def row_groups_selected(self) -> int | None:
        return None if self.row_groups is None else self.row_groups.selected

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes that ran."""
        return tuple(each for each in (self.manifests, self.files_pass, self.row_groups) if each is not None)

    def figures(self) -> dict[str, object]:
        """Return the plan without its files, by name: the passes and the advice as dictionaries."""
        names = [each.name for each in fields(self) if not each.name.startswith("_")]
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        saved = ("requests_saved", "bytes_saved", "seconds_saved")
        found["advice"] = [asdict(each) | {name: getattr(each, name) for name in saved} for each in self.advice]
        return found

    def to_arrow(self) -> pa.Table:
        """Return the selected data files with the columns of FILES: `residual` is what remains of the predicate for the
        rows of the file, `deletes` the paths of the delete files that apply to it."""
        return self._files

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as pandas."""
        frame: pd.DataFrame = self._files.to_pandas()
        return frame

    def files(self) -> DataFrame:
        """Return `to_arrow` as a DataFrame of Spark, which this starts if necessary."""
        if self._spark is None:
            raise BadInput("The plan has no Spark session", table=self.table, hint="use to_arrow() or to_pandas()")
        kinds = {pa.large_string(): pa.string(), pa.large_list(pa.large_string()): pa.list_(pa.string())}
        schema = pa.schema([(each.name, kinds.get(each.type, each.type)) for each in FILES])
        return Runner(self._spark).rows(self._files.cast(schema)).frame()

    def plot(self, kind: str = "png") -> bytes:
        """Return the passes as a picture: what each gets and leaves, and what maintenance would spare."""
        return plan_picture(f"{self.table}: {self.predicate}", self.passes, self.advice, kind)
