"""Errors for metadata that cannot be read, and the read function that raises them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from artemis_lifecycle.errors import EncryptedTable, MissingFile, StorageError, TooLarge, UnreadableMetadata

if TYPE_CHECKING:
    from artemis_lifecycle.storage.stores import Stores


def read_file(stores: Stores, path: str) -> bytes:
    """Read a metadata file. Raises UnreadableMetadata if the store cannot read it; TooLarge beyond the read limits."""
    try:
        return stores.read(path)
    except TooLarge:
        raise
    except MissingFile as error:
        raise UnreadableMetadata.missing(path) from error
    except StorageError as error:
        raise unreadable(f"The file cannot be read: {error.what}", path) from error


def unreadable(what: str, path: str) -> UnreadableMetadata:
    return UnreadableMetadata.of(what, path)


def encrypted(what: str, path: str | None, table: str | None = None) -> EncryptedTable:
    return EncryptedTable(
        f"{what} is encrypted and cannot be read exactly without the table's keys",
        table=table,
        path=path,
        untouched="the table and all its files",
        hint="exclude this table from lifecycle.yaml",
    )
