"""Reasons to keep a file that depend only on its path: whose folder it is in, its name, and who is writing there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.protection.identity import Folders
from artemis_lifecycle.protection.ownership import owned, subject_array
from artemis_lifecycle.storage.location import FOLDERS_KEPT, ByFolder, LocationRules, folder_and_name, relative_to

NOT_OWNED = "not_owned"
"""The file is outside the table's own locations, or its path is ambiguous."""

OUTSIDE_ROOTS = "outside_roots"
"""Nothing references the file, and it is neither below the live warehouse nor below `catalogs.live.roots`."""

OTHER_TABLE = "other_table"
"""The file is in the location of another table, or of a dropped one, or is one of this project's own files."""

RECEIPTS = "artemis-receipts"
"""The folder for receipts in a table's metadata folder."""

RECEIPT = "receipt"
"""The file is a receipt of an earlier deletion, which is stored with the table for auditors."""

HIDDEN = "hidden"
"""A component of the name starts with `_` or `.`: streaming checkpoints, other table formats, staging."""

OUTSIDE_LAYOUT = "outside_layout"
"""The file is not where writers of the table's format put files."""

HELD = "held"
"""Another table with a hold is located or reads here."""

IN_FLIGHT = "in_flight"
"""A live writer's heartbeat covers the file."""

_HIDDEN_NAME = r"/[._][^/]*\z"


@dataclass(frozen=True)
class Places:
    """`own` locations, those of tables `nested` in them, the `roots` below which orphans may be collected (empty:
    anywhere), folders of `receipts`, what other tables' `holds` cover, and what is `in_flight`.

    `layout` returns which paths may be orphans at all. `partition_fields` are names that may start with `_` or `.` as
    `name=value`; None if hidden names are not kept.
    Pickled for executors, each of which reads identities again.
    """

    own: tuple[str, ...]
    nested: tuple[str, ...]
    in_flight: tuple[str, ...]
    rules: LocationRules
    receipts: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    partition_fields: frozenset[str] | None = None
    layout: Callable[[pa.Array], NDArray[np.bool_]] | None = None
    _links: dict[tuple[str, str], bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    _why: dict[str, str | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _folders: list[Folders] = field(default_factory=list, init=False, repr=False, compare=False)

    def why(self, path: str) -> str | None:
        """Return the reason; None if nothing about the path keeps the file."""
        return self.of(pa.array([path], pa.string())).get(0)

    def of(self, paths: pa.Array) -> dict[int, str]:
        """Return the rows that are kept, with the reason. Most files share their folders, and are checked together."""
        paths = subject_array(paths)
        files = ByFolder.of(paths)
        reasons: dict[int, str] = {}
        for low, high in pairwise([*files.starts.tolist(), len(paths)]):
            folder = files.folder(low)
            why = self._of_path(paths[low].as_py()) if folder is None else self._of_folder(f"{folder}/x")
            if why is not None:
                reasons.update(dict.fromkeys(range(low, high), why))
        # Names with these two characters are checked separately, because stores may interpret them.
        for row in np.flatnonzero(files.cut).tolist():
            if (why := self._of_path(paths[row].as_py())) is not None:
                reasons[row] = why
        if self.partition_fields is not None:
            for row in pc.indices_nonzero(pc.match_substring_regex(paths, _HIDDEN_NAME)).to_pylist():
                reasons.setdefault(row, HIDDEN)
        if self.layout is not None:
            for row in np.flatnonzero(~self.layout(paths)).tolist():
                reasons.setdefault(row, OUTSIDE_LAYOUT)
        return reasons

    def _of_folder(self, path: str) -> str | None:
        parts = folder_and_name(path)
        if parts is None:
            return self._of_path(path)
        if parts[0] not in self._why:
            if len(self._why) >= FOLDERS_KEPT:
                self._why.clear()
            self._why[parts[0]] = self._of_path(path)
        return self._why[parts[0]]

    def _of_path(self, path: str) -> str | None:
        if not owned(path, self.own, self.rules, self._links):
            return NOT_OWNED
        if not self._folders:
            self._folders.append(Folders(self.rules))
        folders, folder = self._folders[0], path.rpartition("/")[0]

        def among(roots: Iterable[str]) -> bool:
            return any(folders.is_in(folder, root) for root in roots)

        if self.roots and not any(folders.leads_into(folder, root) for root in self.roots):
            return OUTSIDE_ROOTS
        if among(self.nested):
            return OTHER_TABLE
        if among(self.receipts):
            return RECEIPT
        if self.partition_fields is not None and self._is_hidden(path, self.partition_fields):
            return HIDDEN
        if among(self.held):
            return HELD
        return IN_FLIGHT if among(self.in_flight) else None

    def _is_hidden(self, path: str, fields: frozenset[str]) -> bool:
        """Return True if a component below the table's own location starts with `_` or `.`, except a partition's folder
        (Iceberg's `PartitionAwareHiddenPathFilter`)."""
        below = [rest for root in self.own if (rest := relative_to(path, root, self.rules)) is not None]
        parts = min(below, key=len, default="").split("/")
        return any(
            part.startswith(("_", ".")) and not ("=" in part and part.partition("=")[0] in fields)
            for part in parts[:-1]
        )
