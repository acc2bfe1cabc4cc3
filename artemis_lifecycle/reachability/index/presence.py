"""Whether the metadata that the index knows is still in the store. Belongs here: looking up presence and length. Does
not belong: opening any of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from artemis_lifecycle.errors import StorageError, UnreadableMetadata
from artemis_lifecycle.storage.location import parent

if TYPE_CHECKING:
    from artemis_lifecycle.reachability.index.index import IndexView, ManifestIndex

_ONE_BY_ONE = 256
"""Of more files in a folder than this, the folder is listed: a thousand names for the price of one question."""


def require_files(index: ManifestIndex, files: Mapping[str, int]) -> None:
    """Look files up by path and length (-1: none is recorded). Raises UnreadableMetadata for the first that differs."""
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
            # By name: a store may spell the folder otherwise than the metadata does.
            found = {file.path.rsplit("/", 1)[-1]: file.size_in_bytes for file in stores.children(folder)[1]}
        except StorageError as error:
            raise _absent(folder, f"cannot be listed: {error.what}") from error
        for path, length in those.items():
            _compare(path, length, found.get(path.rsplit("/", 1)[-1]))

    def look_up(item: tuple[str, int]) -> None:
        path, length = item
        try:
            found = stores.head(path)
        except StorageError as error:
            raise _absent(path, f"cannot be looked up: {error.what}") from error
        _compare(path, length, None if found is None else found.size_in_bytes)

    if one_by_one:
        with ThreadPoolExecutor(index.settings.threads) as pool:
            list(pool.map(look_up, one_by_one))


def known_files(view: IndexView) -> dict[str, int]:
    """Path -> recorded length (-1: none is recorded) of every list and manifest of the metadata."""
    state = view.state
    known = {state.manifests.path(row): int(length) for row, length in enumerate(state.manifests.lengths)}
    sizes = dict(zip(state.snapshot_ids.tolist(), state.list_sizes.tolist(), strict=True))
    for snapshot in view.metadata.snapshots:
        if snapshot.manifest_list is not None:
            known[snapshot.manifest_list] = sizes[snapshot.snapshot_id]
    return known


def _compare(path: str, length: int, found: int | None) -> None:
    if found is None:
        raise _absent(path, "is not in the store any more")
    if length >= 0 and found != length:
        raise _absent(path, f"has {found} bytes, and {length} are recorded")


def _absent(path: str, what: str) -> UnreadableMetadata:
    return UnreadableMetadata(
        f"A metadata file that the table needs {what}",
        path=path,
        untouched="the table and all its files",
        hint="restore the file; nothing of this table is planned or deleted until it is there",
    )
