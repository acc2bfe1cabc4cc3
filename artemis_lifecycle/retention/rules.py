"""`decide`: which snapshots and refs of a table stay under its rule, and every reason why.

Rules:
- `iceberg`: Iceberg's RemoveSnapshots, exactly.
- `as-of` (the default): as `iceberg`, and a query AS OF any instant inside the window answers as it did.
- `paimon`: Apache Paimon's expiration.

Holds and calendar thinning add to each. Times are epoch milliseconds. Work and memory are linear in the history, plus,
for each branch, the snapshots that it keeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from artemis_lifecycle.config.calendar_units import Unit
from artemis_lifecycle.config.policies import Retention, Rule
from artemis_lifecycle.errors import BadInput, ReferencedSnapshot, Refused
from artemis_lifecycle.metadata.types import FOREVER_MS, MAIN_BRANCH, Ref
from artemis_lifecycle.retention.paimon import paimon_bounds
from artemis_lifecycle.retention.snapshot_log import needs_of
from artemis_lifecycle.retention.thinning import ThinningTier, thinned
from artemis_lifecycle.retention.views import (
    HistoryView,
    HoldView,
    Keepers,
    Reason,
    ReasonKind,
    ReasonLedger,
    SnapshotView,
    TagView,
    WasMain,
    few,
    format_instant,
    view_of,
)

__all__ = [
    "Decision",
    "HistoryView",
    "HoldView",
    "Keepers",
    "Reason",
    "RetentionSettings",
    "SnapshotView",
    "TagView",
    "ThinningTier",
    "decide",
    "held_by",
    "ref_ends",
    "view_of",
]

MAX_SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS_TO_KEEP = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE = "history.expire.max-ref-age-ms"
MAX_SNAPSHOT_AGE_DEFAULT_MS = 5 * 24 * 3_600_000
"""Iceberg's own default: five days."""

_DAY_MS = 24 * 3_600_000
_CALENDAR_BEGINS_MS = -62_135_596_800_000


@dataclass(frozen=True)
class RetentionSettings:
    """A table's policy and a call's arguments.

    `window_ms` is the policy's window (under `paimon` its `time-retained`), and `explicit_window` whether
    lifecycle.yaml sets it for this table itself. `older_than_ms` and `retain_last` are arguments of the call and
    replace the window and the count. `explicit_ids` are snapshots to expire by name. `min_snapshots` counts as set
    when it is above 1, which is everybody's default.

    Only under `paimon`: `max_snapshots` (num-retained.max), `expire_limit` (snapshot.expire.limit), and
    `next_timestamp`, which judges a snapshot's age by its successor's time, as newer Paimon does.
    """

    rule: Rule = "as-of"
    window_ms: int = 30 * _DAY_MS
    min_snapshots: int = 1
    max_snapshots: int | None = None
    older_than_ms: int | None = None
    retain_last: int | None = None
    explicit_ids: tuple[int, ...] = ()
    explicit_window: bool = False
    expire_limit: int | None = None
    next_timestamp: bool = False
    thinning: tuple[ThinningTier, ...] = ()

    def __post_init__(self) -> None:
        # Settings are stored as JSON with a plan; what asdict and JSON made of the nested ones is taken back here.
        tiers = tuple(ThinningTier(**tier) if isinstance(tier, Mapping) else tier for tier in self.thinning)
        object.__setattr__(self, "thinning", tiers)
        object.__setattr__(self, "explicit_ids", tuple(self.explicit_ids))

    @classmethod
    def of(
        cls,
        policy: Retention,
        *,
        explicit_window: bool = False,
        older_than_ms: int | None = None,
        retain_last: int | None = None,
        explicit_ids: Sequence[int] = (),
    ) -> RetentionSettings:
        """The settings of lifecycle.yaml, and a call's arguments."""
        return cls(
            rule=policy.rule,
            window_ms=policy.window // timedelta(milliseconds=1),
            min_snapshots=policy.min_snapshots,
            max_snapshots=policy.max_snapshots,
            expire_limit=policy.expire_limit,
            next_timestamp=policy.next_timestamp,
            thinning=tuple(map(ThinningTier.of, policy.thin)),
            explicit_window=explicit_window,
            older_than_ms=older_than_ms,
            retain_last=retain_last,
            explicit_ids=tuple(explicit_ids),
        )


@dataclass(frozen=True)
class Decision:
    """What stays and what goes.

    `kept` gives each kept snapshot's reasons, in the order of the history; `expired` the others' ids, in that order.
    `expired_refs` are the refs that go, by name: aged out, or pointing at no snapshot. `cutoff_ms` is the window's
    edge: a snapshot of exactly that time is inside. `unknown_ids` were named for expiration and are not in the table.
    """

    kept: Mapping[int, tuple[Reason, ...]]
    expired: tuple[int, ...]
    expired_refs: tuple[str, ...]
    cutoff_ms: int
    unknown_ids: tuple[int, ...] = ()


def decide(
    history: HistoryView,
    settings: RetentionSettings,
    now_ms: int,
    *,
    holds: Sequence[HoldView] = (),
    tags: Sequence[TagView] = (),
    was_main: WasMain = frozenset,
) -> Decision:
    """Apply `settings` to `history` at `now_ms`. `holds` are in force, whatever `now_ms` is: a plan for a later instant
    is committed today. `was_main` is asked only where thinning needs it.

    Explicit ids go whatever keeps them, except refs' heads, holds and, but for rule `iceberg`, anything inside the
    window; ids that are not there are named in the result and otherwise ignored.

    Raises ReferencedSnapshot (naming the refs) or Refused (naming hold or window) when an explicit id may not go;
    BadInput when a setting or a table property cannot be followed.
    """
    return _Decider(history, settings, now_ms, holds, tags, was_main).decide()


def ref_ends(
    history: HistoryView, settings: RetentionSettings, now_ms: int, *, tags: Sequence[TagView] = ()
) -> Mapping[str, int | None]:
    """The last instant at which each ref stays under its own terms; None: forever. `decide` goes by the same.

    A hold on the whole table keeps its refs beyond that. A ref whose snapshot is gone ended before now.
    """
    decider = _Decider(history, settings, now_ms, (), tags)
    return {
        name: decider.ends(ref) if ref.name == MAIN_BRANCH or ref.snapshot_id in decider.position else now_ms - 1
        for name, ref in history.refs.items()
    }


def held_by(history: HistoryView, holds: Sequence[HoldView], now_ms: int) -> Mapping[int, tuple[str, ...]]:
    """The holds on each snapshot that has any, as `decide` gives them among its reasons."""
    decider = _Decider(history, RetentionSettings(), now_ms, holds, ())
    decider.keep_held()
    kept = decider.ledger.collect(decider.ids, set())
    return {snapshot_id: tuple(map(str, reasons)) for snapshot_id, reasons in kept.items()}


def newest_of_each(history: HistoryView, every: Unit, was_main: WasMain) -> frozenset[int]:
    """The newest snapshot of each calendar `every` (UTC) of the history, as thinning chooses it, and what refs name.

    It answers the same as the history goes on and its older part expires, but for what expires out of order.
    """
    # The window and the properties have no say in this.
    decider = _Decider(
        replace(history, properties={}), RetentionSettings(thinning=(ThinningTier(every),)), 0, (), (), was_main
    )
    decider.keep_thinned(history.refs)
    named = {ref.snapshot_id for ref in history.refs.values()}
    return frozenset(decider.ledger.collect(decider.ids, set())) | (named & decider.position.keys())


class _Decider:
    def __init__(
        self,
        history: HistoryView,
        settings: RetentionSettings,
        now_ms: int,
        holds: Sequence[HoldView],
        tags: Sequence[TagView],
        was_main: WasMain = frozenset,
    ) -> None:
        self.history = history
        self.settings = settings
        self.now = now_ms
        self.holds = holds
        self.tags = {tag.name: tag for tag in tags}
        self.was_main = was_main
        self.cutoff = self._cutoff()
        self.minimum = self._minimum()
        self.max_ref_age = _long_property(history.properties, MAX_REF_AGE, FOREVER_MS)
        self.ids = [snapshot.snapshot_id for snapshot in history.snapshots]
        self.times = [snapshot.timestamp_ms for snapshot in history.snapshots]
        self.position = {snapshot_id: position for position, snapshot_id in enumerate(self.ids)}
        find = self.position.get
        self.parents = [
            -1 if snapshot.parent_id is None else find(snapshot.parent_id, -1) for snapshot in history.snapshots
        ]
        self.ledger = ReasonLedger(len(self.ids))

    def decide(self) -> Decision:
        unknown = tuple(dict.fromkeys(i for i in self.settings.explicit_ids if i not in self.position))
        if not self.ids:
            return Decision({}, (), (), self.cutoff, unknown)
        retained, expired_refs = self._refs()
        self._keep_heads(retained)
        self.keep_held()
        if self.settings.rule == "paimon":
            self._keep_paimon(retained)
        else:
            self._keep_branches(retained)
            self._keep_unreferenced(retained)
        if self.settings.rule == "as-of":
            self._keep_as_of()
        if self.settings.thinning:
            self.keep_thinned(retained)
        removed = self._explicit()
        kept = self.ledger.collect(self.ids, removed)
        expired = tuple(snapshot_id for snapshot_id in self.ids if snapshot_id not in kept)
        return Decision(kept, expired, expired_refs, self.cutoff, unknown)

    # --- settings ---------------------------------------------------------------------------------------------------

    def _cutoff(self) -> int:
        settings = self.settings
        if settings.older_than_ms is not None:
            return settings.older_than_ms
        if settings.rule != "iceberg" or settings.explicit_window:
            return self.now - settings.window_ms
        age = _long_property(self.history.properties, MAX_SNAPSHOT_AGE, MAX_SNAPSHOT_AGE_DEFAULT_MS)
        # An age of 2**63 - 1 is how people write "never"; no snapshot is older than the calendar.
        return max(self.now - age, _CALENDAR_BEGINS_MS)

    def _minimum(self) -> int:
        settings = self.settings
        if settings.retain_last is not None:
            if settings.retain_last < 1:
                raise BadInput(
                    f"retain_last must be at least 1, and is {settings.retain_last}",
                    untouched="the table",
                    hint="keep at least the current snapshot",
                )
            return settings.retain_last
        if settings.min_snapshots > 1 or settings.rule == "paimon":
            return settings.min_snapshots
        return _long_property(self.history.properties, MIN_SNAPSHOTS_TO_KEEP, 1)

    # --- refs -------------------------------------------------------------------------------------------------------

    def _refs(self) -> tuple[dict[str, Ref], tuple[str, ...]]:
        """Refs that stay, and the names of those that go."""
        refs = self.history.refs
        if any(not hold.snapshot_ids for hold in self.holds):
            # The whole table is held, and its names with it; a ref without its snapshot names nothing.
            return {name: ref for name, ref in refs.items() if ref.snapshot_id in self.position}, ()
        retained = {name: ref for name, ref in refs.items() if self._stays(ref)}
        return retained, tuple(sorted(refs.keys() - retained.keys()))

    def _stays(self, ref: Ref) -> bool:
        if ref.name == MAIN_BRANCH:
            return True
        position = self.position.get(ref.snapshot_id)
        if position is None:
            return False
        ends = self.ends(ref)
        return ends is None or self.now <= ends

    def _record(self, ref: Ref) -> TagView | None:
        # Under rule iceberg a tag's age is its snapshot's, to the letter.
        tag = self.tags.get(ref.name)
        if tag is None or ref.is_branch or self.settings.rule == "iceberg" or tag.snapshot_id != ref.snapshot_id:
            return None
        altered = tag.max_ref_age_ms is not None and tag.max_ref_age_ms != ref.max_ref_age_ms
        return None if altered else tag

    def _keep_heads(self, retained: Mapping[str, Ref]) -> None:
        for name in sorted(retained):
            ref = retained[name]
            position = self.position.get(ref.snapshot_id)
            if position is not None:
                self.ledger.add(Reason("ref", f"{ref.type} {name}", name=name, until_ms=self.ends(ref)), (position,))

    def ends(self, ref: Ref) -> int | None:
        """The last instant at which `ref` stays; None: forever."""
        if ref.name == MAIN_BRANCH:
            return None
        age = self.max_ref_age if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        own = None if age >= FOREVER_MS else self.times[self.position[ref.snapshot_id]] + age
        tag = self._record(ref)
        if tag is None:
            return own
        recorded = None if tag.retain_ms is None else tag.created_at_ms + tag.retain_ms
        if tag.max_ref_age_ms is not None or ref.max_ref_age_ms is None:
            return recorded
        # The record does not have the tag's own age, which may have been extended since: the later one counts.
        return None if own is None or recorded is None else max(own, recorded)

    # --- branches, as RemoveSnapshots keeps them --------------------------------------------------------------------

    def _ancestors(self, position: int) -> Iterator[int]:
        """From the snapshot itself down to where a parent is missing."""
        parents = self.parents
        # No chain of parents is longer than the history, unless the metadata has a loop.
        for _ in range(len(parents)):
            if position < 0:
                return
            yield position
            position = parents[position]

    def _keep_branches(self, retained: Mapping[str, Ref]) -> None:
        for name in sorted(retained):
            if retained[name].is_branch:
                self._keep_branch(retained[name], self.cutoff, self.minimum)

    def _keep_branch(self, ref: Ref, cutoff: int | None, minimum: int) -> None:
        if ref.max_snapshot_age_ms is not None:
            cutoff = self.now - ref.max_snapshot_age_ms
        if ref.min_snapshots_to_keep is not None:
            minimum = ref.min_snapshots_to_keep
        counted: list[int] = []
        young: list[int] = []
        for index, position in enumerate(self._ancestors(self.position.get(ref.snapshot_id, -1))):
            is_young = cutoff is not None and self.times[position] >= cutoff
            if index >= minimum and not is_young:
                break
            if index < minimum:
                counted.append(position)
            if is_young:
                young.append(position)
        if counted:
            what = f"among the newest {minimum} of branch {ref.name}" if minimum > 1 else f"newest of branch {ref.name}"
            self.ledger.add(Reason("branch_count", what, name=ref.name), counted)
        if young and cutoff is not None:
            what = f"in branch {ref.name}, not older than {format_instant(cutoff)}"
            self.ledger.add(Reason("branch_age", what, name=ref.name), young)

    def _referenced(self, refs: Mapping[str, Ref]) -> bytearray:
        """A flag for each position that a tag names, or a branch has among its ancestors."""
        reached = bytearray(len(self.ids))
        for ref in refs.values():
            if ref.is_branch:
                for position in self._ancestors(self.position.get(ref.snapshot_id, -1)):
                    if reached[position]:
                        # Another branch went on from here already.
                        break
                    reached[position] = 1
        for ref in refs.values():
            if not ref.is_branch and ref.snapshot_id in self.position:
                reached[self.position[ref.snapshot_id]] = 1
        return reached

    def _keep_unreferenced(self, retained: Mapping[str, Ref]) -> None:
        reached = self._referenced(retained)
        cutoff = self.cutoff
        young = [position for position, at in enumerate(self.times) if at >= cutoff and not reached[position]]
        if young:
            what = f"reached by no ref, and not older than {format_instant(cutoff)}"
            self.ledger.add(Reason("unreferenced_young", what), young)

    # --- as-of ------------------------------------------------------------------------------------------------------

    def _keep_as_of(self) -> None:
        log, position = self.history.log, self.position
        # Now itself is always inside: AS OF now must answer, whatever the window.
        edge = min(self.cutoff, self.now)
        needs = needs_of(log, position, edge, self.now)
        if needs.gap is not None:
            entry = log[needs.gap]
            what = (
                f"the snapshot log names snapshot {entry.snapshot_id}, which is gone, at "
                f"{format_instant(entry.timestamp_ms)}: any removal would change what AS OF answers inside the window"
            )
            self.ledger.add(Reason("log_gap", what), range(len(self.ids)))
        if needs.start is None:
            return
        edges, inside, others = [], [], []
        for number in range(needs.start, len(log)):
            found = position.get(log[number].snapshot_id)
            if found is None:
                continue
            if number in needs.edges:
                edges.append(found)
            elif edge < log[number].timestamp_ms <= self.now:
                inside.append(found)
            else:
                others.append(found)
        if edges:
            self.ledger.add(Reason("window_edge", f"current at {format_instant(edge)}, the window's edge"), edges)
        if inside:
            self.ledger.add(Reason("window", f"current inside the window that begins {format_instant(edge)}"), inside)
        if others:
            what = "without it the snapshot log would be cut, and AS OF inside the window would lose its answers"
            self.ledger.add(Reason("log_continuity", what), others)

    # --- paimon -----------------------------------------------------------------------------------------------------

    def _keep_paimon(self, retained: Mapping[str, Ref]) -> None:
        settings = self.settings
        if settings.max_snapshots is not None and settings.max_snapshots < self.minimum:
            raise BadInput(
                f"max_snapshots ({settings.max_snapshots}) must not be less than min_snapshots ({self.minimum})",
                untouched="the table",
                hint="fix the table's retention",
            )
        if settings.expire_limit is not None and settings.expire_limit < 1:
            raise BadInput(
                f"expire_limit must be at least 1, and is {settings.expire_limit}",
                untouched="the table",
                hint="fix the table's retention",
            )
        for name in sorted(retained):
            ref = retained[name]
            # Paimon has no such settings; where a ref has them, a person set them.
            if ref.is_branch and (ref.max_snapshot_age_ms, ref.min_snapshots_to_keep) != (None, None):
                self._keep_branch(ref, None, 1)
        count = len(self.ids)
        pinned = bytearray(self.ledger.kept(position) for position in range(count))
        bounds = paimon_bounds(
            self.times,
            older_than_ms=self.cutoff,
            retain_min=self.minimum,
            retain_max=settings.max_snapshots,
            limit=settings.expire_limit,
            consumer=min((start for _, start in self._consumers()), default=None),
            pinned=pinned,
            next_timestamp=settings.next_timestamp,
        )
        add = self.ledger.add
        add(
            Reason("num_retained_min", f"among the newest {self.minimum} snapshots"),
            range(max(bounds.by_minimum, bounds.end), count),
        )
        step = 1 if settings.next_timestamp else 0
        judged = (min(position + step, count - 1) for position in range(bounds.end, count))
        young = [
            position
            for position, at in zip(range(bounds.end, count), judged, strict=True)
            if self.times[at] >= self.cutoff
        ]
        what = "its successor is" if settings.next_timestamp else "it is"
        add(Reason("time_retained", f"{what} not older than {format_instant(self.cutoff)}"), young)
        if bounds.by_limit is not None:
            what = f"no more than {settings.expire_limit} snapshots expire at a time"
            add(Reason("expire_limit", what), range(max(bounds.by_limit, bounds.end), count))
        behind = [position for position in range(bounds.end, count) if not self.ledger.kept(position)]
        add(Reason("sequence", "committed after a snapshot that stays, and expiration goes in order"), behind)

    # --- holds, thinning, explicit ids ------------------------------------------------------------------------------

    def _consumers(self) -> Iterator[tuple[HoldView, int]]:
        """Each consumer's hold with the earliest position that it has yet to read."""
        for hold in self.holds:
            if hold.kind == "consumer" and hold.snapshot_ids:
                found = [self.position[i] for i in hold.snapshot_ids if i in self.position]
                # A position that is gone cannot be distinguished from those before it: everything stays.
                yield hold, min(found, default=0)

    def keep_held(self) -> None:
        count = len(self.ids)
        for hold, start in self._consumers():
            self.ledger.add(_hold_reason(hold), range(start, count))
        for hold in self.holds:
            gone = hold.kind != "consumer" and {*hold.snapshot_ids} - hold.archived - self.position.keys()
            if gone or not hold.snapshot_ids:
                self.ledger.add(_hold_reason(hold), range(count))
            elif hold.kind != "consumer":
                held = [self.position[i] for i in hold.snapshot_ids if i in self.position]
                self.ledger.add(_hold_reason(hold), held)

    def keep_thinned(self, retained: Mapping[str, Ref]) -> None:
        main = retained.get(MAIN_BRANCH)
        chain = bytearray(len(self.ids))
        if main is not None:
            for position in self._ancestors(self.position.get(main.snapshot_id, -1)):
                chain[position] = 1
        for reason, position in thinned(
            self.history.snapshots,
            self.settings.thinning,
            self.now,
            main=chain,
            referenced=self._referenced(retained),
            log=self.history.log,
            present=self.position,
            was_main=self.was_main,
        ):
            self.ledger.add(reason, (position,))

    def _explicit(self) -> set[int]:
        """Positions of the explicit ids, once none of them is held by something stronger."""
        removed: set[int] = set()
        for snapshot_id in dict.fromkeys(self.settings.explicit_ids):
            position = self.position.get(snapshot_id)
            if position is None:
                continue
            reasons = self.ledger.reasons(position)
            refs = [reason.name for reason in reasons if reason.kind == "ref"]
            if refs:
                raise ReferencedSnapshot(
                    f"Cannot expire {snapshot_id}. Still referenced by refs: [{few(refs)}]",
                    untouched="the table",
                    hint="remove those refs first, or leave the snapshot out",
                )
            held = [reason for reason in reasons if reason.kind in ("hold", "lease", "consumer")]
            if held:
                raise Refused(
                    f"Cannot expire {snapshot_id}: {few(held, '; ')}",
                    untouched="the table",
                    hint=f"release {few([reason.name for reason in held])}, or leave the snapshot out",
                )
            inside = [
                reason for reason in reasons if reason.kind in ("window", "window_edge", "log_continuity", "log_gap")
            ]
            if inside:
                raise Refused(
                    f"Cannot expire {snapshot_id}: {'; '.join(map(str, inside))}",
                    untouched="the table",
                    hint="wait until the window has passed it, or shorten the window",
                )
            if self.settings.rule != "iceberg" and self.times[position] >= self.cutoff:
                raise Refused(
                    f"Cannot expire {snapshot_id}: it was committed inside the window that begins "
                    f"{format_instant(self.cutoff)}",
                    untouched="the table",
                    hint="wait until the window has passed it, or shorten the window",
                )
            removed.add(position)
        return removed


_HOLDS: dict[str, tuple[ReasonKind, str]] = {
    "legal": ("hold", "legal hold"),
    "lease": ("lease", "reader's lease"),
    "consumer": ("consumer", "consumer's position"),
}


def _hold_reason(hold: HoldView) -> Reason:
    kind, what = _HOLDS[hold.kind]
    return Reason(
        kind,
        f"{what} {hold.hold_id} of {hold.owner}: {hold.reason}",
        name=hold.hold_id,
        owner=hold.owner,
        until_ms=hold.until_ms,
    )


def _long_property(properties: Mapping[str, str], key: str, default: int) -> int:
    text = properties.get(key)
    if text is None:
        return default
    if not re.fullmatch(r"[+-]?\d{1,19}", text):
        raise BadInput(
            f"The table property {key} is {text!r}, which is not a number",
            untouched="the table",
            hint=f"set {key} to a whole number, or unset it",
        )
    return int(text)
