"""A file's fate."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Explanation:
    """A file's fate. `verdict`: kept, planned, deleted, orphan or unknown. `holders` are snapshots, refs and holds.

    `since` is the commit of the first snapshot that still holds it. `until` is the first instant at which a plan would
    release it if nothing were committed until then (None: while a branch or a tag has it, or no hold has it).
    """

    path: str
    verdict: str
    reasons: tuple[str, ...]
    holders: tuple[str, ...]
    since: datetime | None = None
    until: datetime | None = None
