"""Which snapshots, changelogs and tags of a Paimon table go. Pure. Source: Paimon's ExpireSnapshotsImpl,
ExpireChangelogImpl and TagTimeExpire.

Snapshots expire from the old end only. A hold on a snapshot therefore keeps that and every later one, as a consumer
does: a gap in the numbers would confuse Paimon's own readers. Tags and branches keep files, not snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from artemis_lifecycle.formats.paimon.documents import Document
from artemis_lifecycle.formats.paimon.options import ExpireOptions
from artemis_lifecycle.formats.paimon.table import Branch
from artemis_lifecycle.metadata.types import MAIN_BRANCH, Ref
from artemis_lifecycle.retention.rules import Decision, HistoryView, HoldView, SnapshotView, decide


@dataclass(frozen=True)
class PaimonDecision:
    """`rule` is about the snapshots. `snapshots` and `changelogs` go, in the order of their ids; `following` is the
    first snapshot that stays, and `first_changelog` the number of the first changelog that does. Snapshots in
    `outlived` go, and become long-lived changelogs."""

    rule: Decision
    snapshots: tuple[Document, ...]
    changelogs: tuple[Document, ...]
    outlived: tuple[Document, ...]
    following: Document | None
    first_changelog: int | None = None


def decide_expiration(
    branch: Branch, options: ExpireOptions, now_ms: int, holds: Sequence[HoldView] = ()
) -> PaimonDecision:
    """Decide at `now_ms`. Raises BadInput for options that cannot be followed."""
    snapshots = branch.snapshots
    ids = [each.snapshot_id for each in snapshots]
    latest = ids[-1] if ids else 0
    view = HistoryView(
        [SnapshotView(each.snapshot_id, each.snapshot_id - 1, each.committed_ms) for each in snapshots],
        {MAIN_BRANCH: Ref(MAIN_BRANCH, latest, "branch")} if ids else {},
        (),
        latest if ids else None,
    )
    onwards = (replace(hold, kind="consumer") if hold.snapshot_ids else hold for hold in holds)
    every = [*_consumers(branch, latest), *onwards] if ids else []
    if not options.consumers_hold:
        every = [hold for hold in every if not hold.hold_id.startswith(_CONSUMER)]
    rule = decide(view, options.settings, now_ms, holds=every)
    gone = set(rule.expired)
    expired = tuple(each for each in snapshots if each.snapshot_id in gone)
    following = next((each for each in snapshots if each.snapshot_id not in gone), None)
    if not options.decoupled:
        return PaimonDecision(rule, expired, (), (), following)
    after = sorted([*branch.changelogs, *(changelog_of(each) for each in expired)], key=lambda each: each.snapshot_id)
    until = _changelogs_until(after, branch, options, latest, now_ms) if ids else 0
    old = tuple(each for each in branch.changelogs if each.snapshot_id < until)
    outlived = tuple(each for each in expired if each.snapshot_id >= until)
    first = next((each.snapshot_id for each in after if each.snapshot_id >= until), None)
    return PaimonDecision(rule, expired, old, outlived, following, first)


def changelog_of(snapshot: Document) -> Document:
    """Return the long-lived changelog that an expiring snapshot becomes: the same text in another folder."""
    folder = snapshot.path.rpartition("/snapshot/")[0]
    return replace(snapshot, role="changelog", path=f"{folder}/changelog/changelog-{snapshot.snapshot_id}")


def expired_tags(
    branch: Branch, local_now: datetime, older_than: datetime | None, modified: Callable[[Document], datetime | None]
) -> tuple[Document, ...]:
    """Return the tags that go: their retention is over, or they were made before `older_than`.

    Both instants are local times without a zone, as Paimon stores a tag's creation. A tag without one counts by its
    file's modification, but only for `older_than`.
    """
    found = []
    for tag in branch.tags:
        created = tag.created_at
        if created is None or tag.retained is None:
            created = None if older_than is None else modified(tag)
        if created is None:
            continue
        over = tag.retained is not None and local_now > created + tag.retained
        if over or (older_than is not None and older_than > created):
            found.append(tag)
    return tuple(found)


_CONSUMER = "consumer of the table "


def _consumers(branch: Branch, latest: int) -> list[HoldView]:
    # A consumer that has read everything keeps nothing; one whose next snapshot has expired keeps all.
    return [
        HoldView(f"{_CONSUMER}{name}", name, f"reads from snapshot {following}", (following,), kind="consumer")
        for name, following in branch.consumers.items()
        if following <= latest
    ]


def _changelogs_until(
    changelogs: Sequence[Document], branch: Branch, options: ExpireOptions, latest: int, now_ms: int
) -> int:
    """Return the first id whose changelog stays."""
    if not changelogs:
        return 0
    first, last = changelogs[0].snapshot_id, changelogs[-1].snapshot_id
    times = {each.snapshot_id: each.committed_ms for each in changelogs}
    end = latest - options.changelog_min + 1
    end = min([end, *branch.consumers.values()])
    if options.settings.expire_limit is not None:
        end = min(end, first + options.settings.expire_limit)
    # The newest changelog always stays.
    end = min(end, last)
    young = now_ms - options.changelog_ms
    for number in range(max(latest - options.changelog_max + 1, first), end + 1):
        if number in times and young <= times[number]:
            return number
    return max(end, first)
