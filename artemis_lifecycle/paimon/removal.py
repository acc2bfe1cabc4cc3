"""What one commit removes from a Paimon table: documents, each with its text, so that the commit can be resumed, and
undone where a rollback overtook it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.paimon.documents import Document
from artemis_lifecycle.paimon.reached import PaimonFiles, Reader, reaches_of
from artemis_lifecycle.paimon.table import PaimonTable, metadata_of

_LOOKS = 8


@dataclass(frozen=True)
class Gone:
    """One document that goes. `changelog` is where its text stays as a long-lived changelog."""

    role: str
    number: int
    path: str
    text: bytes
    name: str | None = None
    changelog: str | None = None


@dataclass(frozen=True)
class Removal:
    """Documents of one branch, in the order in which they go: snapshots, then changelogs, each oldest first; or tags.

    `following` is the number of the first snapshot that stays, and `following_text` its text: while it is there, the
    branch has not been rolled back behind it. `first_changelog` is the number of the first changelog that stays.
    `overrides` are options that the call set in place of the table's.
    """

    branch: str
    folder: str
    gone: tuple[Gone, ...]
    following: int | None
    following_text: bytes | None
    first_changelog: int | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        content = {
            "branch": self.branch,
            "folder": self.folder,
            "following": self.following,
            "first_changelog": self.first_changelog,
            "overrides": dict(self.overrides),
            "following_text": None if self.following_text is None else _packed(self.following_text),
            "gone": [
                [each.role, each.number, each.path, _packed(each.text), each.name, each.changelog] for each in self.gone
            ],
        }
        return json.dumps(content).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Removal:
        content = json.loads(data)
        text = content["following_text"]
        return cls(
            content["branch"],
            content["folder"],
            tuple(
                Gone(role, number, path, base64.b64decode(packed), name, changelog)
                for role, number, path, packed, name, changelog in content["gone"]
            ),
            content["following"],
            None if text is None else base64.b64decode(text),
            content["first_changelog"],
            content["overrides"],
        )


def _packed(text: bytes) -> str:
    return base64.b64encode(text).decode()


def removal_of(
    table: PaimonTable,
    branch: str,
    snapshots: Sequence[Document],
    changelogs: Sequence[Document],
    outlived: Iterable[Document],
    following: Document | None,
    tags: Sequence[Document] = (),
) -> Removal:
    folder = table.branches[branch].folder
    become = {each.snapshot_id: f"{folder}/changelog/changelog-{each.snapshot_id}" for each in outlived}
    gone = [
        Gone(each.role, each.snapshot_id, each.path, each.text, each.name, become.get(each.snapshot_id))
        for each in snapshots
    ]
    gone += [Gone(each.role, each.snapshot_id, each.path, each.text, each.name) for each in (*changelogs, *tags)]
    return Removal(
        branch,
        folder,
        tuple(gone),
        None if following is None else following.snapshot_id,
        None if following is None else following.text,
    )


def without(table: PaimonTable, removed: Iterable[Document], added: Iterable[Document] = ()) -> PaimonTable:
    """Return the table as it is when the removed documents are gone, and `added` changelogs are there."""
    paths = {each.path for each in removed}
    new = list(added)
    branches = {}
    for name, branch in table.branches.items():
        mine = [each for each in new if each.branch == name]
        changelogs = sorted([*branch.changelogs, *mine], key=lambda each: each.snapshot_id)
        branches[name] = replace(
            branch,
            snapshots=tuple(each for each in branch.snapshots if each.path not in paths),
            tags=tuple(each for each in branch.tags if each.path not in paths),
            changelogs=tuple(each for each in changelogs if each.path not in paths),
        )
    return replace(table, branches=branches)


def files_of(reader: Reader, table: PaimonTable) -> PaimonFiles:
    """Read everything that a table reaches. Raises UnreadableMetadata."""
    files = PaimonFiles(metadata_of(table), reader, reaches_of(reader, table, table.documents))
    # Only now is it known that no snapshot deletes what it does not add.
    _ = files.live
    return files


def whole_table(
    reader: Reader, read: Callable[[], PaimonTable], first: PaimonTable | None = None
) -> tuple[PaimonTable, PaimonFiles]:
    """Read a table (`first`, if it was read just now) and everything that it reaches, again as long as another process
    removes documents meanwhile: a writer that expires by itself removes manifests before their snapshot. Raises
    UnreadableMetadata if a file is missing although its document stays."""
    table = read() if first is None else first
    for _ in range(_LOOKS):
        try:
            return table, files_of(reader, table)
        except UnreadableMetadata:
            again = read()
            if set(table.documents) <= set(again.documents):
                raise
            table = again
    return table, files_of(reader, table)
