"""What all formats of delete files share: the manifest's description of a rewritten file, field ids, errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from artemis_lifecycle.errors import HandoffFailed

Mapped = Callable[[str], str]
"""Returns the cold path of a live path."""

Used = Callable[[str, int | None, bool], str]
"""Returns the cold path of a live path in a manifest entry, or in an entry of a list, that this snapshot added (None:
inherited); `True` for the path of a file of which the entry deletes rows. A path may be used for several files."""

DELETE_FILE_PATH = 2147483546
DELETE_POS = 2147483545
"""Field ids that the spec reserves for the columns of position-delete files."""


@dataclass(frozen=True)
class RewrittenDelete:
    """The manifest's description of a rewritten delete file. Paths are the least and greatest in its rows.

    `split_offsets` None means that the manifest's offsets, if any, are no longer valid. `column_sizes` are bytes by
    field id.
    """

    size_in_bytes: int
    lower_path: str | None = None
    upper_path: str | None = None
    split_offsets: tuple[int, ...] | None = None
    column_sizes: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(
            {
                "size": self.size_in_bytes,
                "lower": self.lower_path,
                "upper": self.upper_path,
                "splits": self.split_offsets,
                "columns": [[key, size] for key, size in sorted(self.column_sizes.items())],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> RewrittenDelete:
        values = json.loads(text)
        splits = values["splits"]
        return cls(
            values["size"],
            values["lower"],
            values["upper"],
            None if splits is None else tuple(splits),
            dict(values["columns"]),
        )


def unreadable_deletes(path: str, error: Exception) -> HandoffFailed:
    return HandoffFailed(
        f"A position-delete file cannot be read completely: {error}",
        path=path,
        untouched="the table and all its files",
        hint="restore the file, then run the handoff again",
    )


def not_copied(what: str, path: str) -> HandoffFailed:
    return HandoffFailed(
        f"{what} that the cold tier must reference was not copied",
        path=path,
        untouched="the table and all its files",
        hint="run the handoff again, which copies what is missing",
    )
