"""Whether the metadata that the index knows is still in the store. Belongs here: checking existence and length. Does
not belong here: opening any of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from artemis_lifecycle.errors import StorageError, UnreadableMetadata
from artemis_lifecycle.reachability.index.index import ManifestIndex
from artemis_lifecycle.reachability.index.view import IndexView
from artemis_lifecycle.storage.location import parent

_ONE_BY_ONE = 256
"""With more files in a folder than this, the folder is listed: one request returns a thousand names."""


def require_files(index: ManifestIndex, files: Mapping[str, int]) -> None:
    """Check files by path and length (-1: not recorded). Raises UnreadableMetadata for the first that differs."""
    stores = index.stores
    by_folder: dict[str, dict[str, int]] = {}
    for path, length in files.items():
        by_folder.setdefault(parent(path), {})[path] = length
    one_by_one: list[tuple[str, int]] = []
    for folder, those in by_folder.items():
        if len(those) <= _ONE_BY_ONE:
            one_by_one += those.items()
            continue
        try:
            # By name, because a store may spell the folder differently than the metadata.
            found = {file.path.rsplit("/", 1)[-1]: file.size_in_bytes for file in stores.children(folder)[1]}
        except StorageError as error:
            raise _unusable(folder, f"cannot be listed: {error.what}") from error
        for path, length in those.items():
            _compare(path, length, found.get(path.rsplit("/", 1)[-1]))

    def look_up(item: tuple[str, int]) -> None:
        path, length = item
        try:
            found = stores.head(path)
        except StorageError as error:
            raise _unusable(path, f"cannot be looked up: {error.what}") from error
        _compare(path, length, None if found is None else found.size_in_bytes)

    if one_by_one:
        with ThreadPoolExecutor(index.settings.threads) as pool:
            list(pool.map(look_up, one_by_one))


def require_present(view: IndexView, *, without: Collection[int] = ()) -> None:
    """Check that every list and manifest of the metadata is in the store with its recorded length; except those that
    only the snapshots `without` list.

    Files that the index knows are not opened again. Before a step relies on the index, they must still exist: every
    step then says the same of a lost file. Raises UnreadableMetadata.
    """
    require_files(view.index, _known_files(view, set(without)))


def _known_files(view: IndexView, without: set[int]) -> dict[str, int]:
    """Return path -> recorded length (-1: not recorded) of the lists and manifests of all snapshots but these."""
    state = view.state
    chosen = ~np.isin(state.snapshot_ids, np.array(list(without), np.int64))
    rows = np.flatnonzero(state.listed_by(chosen)) if without else np.arange(len(state.manifests))
    known = {state.manifests.path(row): int(state.manifests.lengths[row]) for row in rows.tolist()}
    sizes = dict(zip(state.snapshot_ids.tolist(), state.list_sizes.tolist(), strict=True))
    for snapshot in view.metadata.snapshots:
        if snapshot.manifest_list is not None and snapshot.snapshot_id not in without:
            known[snapshot.manifest_list] = sizes[snapshot.snapshot_id]
    return known


def _compare(path: str, length: int, found: int | None) -> None:
    if found is None:
        raise UnreadableMetadata.missing(path)
    if length >= 0 and found != length:
        raise _unusable(path, f"has {found} bytes, but {length} are recorded")


def _unusable(path: str, what: str) -> UnreadableMetadata:
    return UnreadableMetadata.of(f"A metadata file that the table needs {what}", path)
