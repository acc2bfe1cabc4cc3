"""The one tree of errors. Belongs here: every error that a user can meet. Does not belong: control flow inside a room.

Each error says what happened, to which table and path, what was left untouched, and what to do next, in one line: names
and paths in it are escaped, while the attributes keep them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from artemis_lifecycle.escaping import terminal


class LifecycleError(Exception):
    """Base of every error of this project.

    `what` happened; to which `table` and `path`; what was left `untouched` (everything, by default); and a `hint`: what
    to do next.
    `exit_code` is what the `artemis` command exits with.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        table: str | None = None,
        path: str | None = None,
        untouched: str | None = "everything",
        hint: str | None = None,
    ) -> None:
        self.what = what
        self.table = table
        self.path = path
        self.untouched = untouched
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        where = "".join(
            f" [{label} {value}]" for label, value in (("table", self.table), ("path", self.path)) if value is not None
        )
        untouched = f" Left untouched: {self.untouched}." if self.untouched else ""
        hint = f" Next: {self.hint}." if self.hint else ""
        return terminal(f"{self.what.rstrip('.')}{where}.{untouched}{hint}")

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross from Spark's Python workers to the driver by pickle; keyword-only arguments need help.
        parts = {"table": self.table, "path": self.path, "untouched": self.untouched, "hint": self.hint}
        return partial(type(self), self.what, **parts), ()


# --- bad input: nothing was touched --------------------------------------------------------------------------------


class BadInput(LifecycleError, ValueError):
    """An argument, a configuration or a name that cannot be used."""

    exit_code = 2


class ConfigError(BadInput):
    """lifecycle.yaml cannot be read, or says something it may not; names the line where there is one.

    `problems` has each of them, where the file was read.
    """

    def __init__(self, what: str, *, problems: Sequence[str] = (), **parts: str | None) -> None:
        super().__init__(what, **parts)
        self.problems = tuple(problems)


class NaiveDatetime(BadInput):
    """A datetime without a time zone."""

    @classmethod
    def refuse(
        cls, name: str, given: datetime | None, *, table: str | None = None, untouched: str = "everything"
    ) -> None:
        """Raise it for a `given` instant without a time zone; `name` is its argument's."""
        if given is not None and given.utcoffset() is None:
            what, hint = f"{name}={given.isoformat()} has no time zone", "pass a datetime with tzinfo, e.g. UTC"
            raise cls(what, table=table, untouched=untouched, hint=hint)


class NoSuchTable(BadInput):
    """The catalog has no table of that name, or it has another `table-uuid` than expected."""

    @classmethod
    def of(cls, catalog: str, table: str) -> NoSuchTable:
        """Return the error for a table that a catalog lacks."""
        return cls(f"Catalog {catalog} has no such table", table=table, hint="list its tables with: artemis tables")


class NoSuchSnapshot(BadInput):
    """No tier has the snapshot, ref or instant that was asked for."""


class NoSuchPlan(BadInput):
    """No plan, scan or hold is stored under that id."""


class NotApplicable(BadInput):
    """The table's format has no such step: for example, a Paimon table has no Iceberg manifests to rewrite."""


# --- refusals: a guard said no --------------------------------------------------------------------------------------


class Refused(LifecycleError):
    """A guard stopped the step before it changed anything."""

    exit_code = 3


class GarbageCollectionDisabled(Refused):
    """The table says `gc.enabled=false`: other tables may own its files."""


class EncryptedTable(Refused):
    """The table's metadata is encrypted; it cannot be read exactly."""


class ReferencedSnapshot(Refused):
    """A snapshot that was named for expiration is still held by a ref."""


class StalePlan(Refused):
    """The table changed since the plan in a way that matters."""


class AnotherTable(StalePlan, NoSuchTable):
    """The name of a recorded table now belongs to a table with another uuid."""


class PlanStateError(Refused):
    """The plan is not in the state that the step needs."""


class CheckFailed(Refused):
    """The newest verdict of a check that the step requires is red."""


class ApprovalNeeded(Refused):
    """A guard on files, bytes or share of the table waits for a person."""


class Held(Refused):
    """A hold covers the table, or snapshots of it."""


class GraceNotOver(Refused):
    """The plan's grace period is still running."""


class StaleMetadata(Refused):
    """The metadata was read before the listing it is compared with."""


class PrefixMismatch(Refused):
    """Listed and referenced paths differ only in scheme or authority."""


class LocationConflict(Refused):
    """Two tables, or two tiers, share or nest a location."""


class OtherDeployment(Refused):
    """The catalog belongs to another deployment: another operations database, or another `operations.root`."""


class LineageRejected(Refused):
    """A commit's summary lacks a lineage key that the table requires."""


# --- the world failed us: fail closed ------------------------------------------------------------------------------


class UnreadableMetadata(LifecycleError):
    """A file of the table's metadata is missing, unreadable, or shorter than the level above says."""

    exit_code = 4

    @classmethod
    def of(cls, what: str, path: str | None, table: str | None = None) -> UnreadableMetadata:
        """The error for one file, whoever found it: the same promise and the same advice."""
        return cls(
            what,
            table=table,
            path=path,
            untouched="the table and all its files",
            hint="restore the file; nothing of this table is planned, copied, committed or deleted "
            "until it can be read",
        )

    @classmethod
    def missing(cls, path: str, table: str | None = None) -> UnreadableMetadata:
        """The error for a file that the store does not have."""
        return cls.of("A metadata file that the table needs is not in the store any more", path, table)


class NewerFormat(UnreadableMetadata):
    """The table has a format version that this release does not know."""

    @classmethod
    def version(cls, version: int, newest: int, path: str) -> NewerFormat:
        return cls(
            f"The table has format version {version}, newer than this release, which reads versions up to {newest}",
            path=path,
            untouched="the table and all its files",
            hint="use a release of artemis-lifecycle that reads it, or exclude the table from lifecycle.yaml",
        )


class StorageError(LifecycleError):
    """The object store refused, failed or timed out."""

    exit_code = 4


class MissingFile(StorageError):
    """The store has no file at that path."""


class ExistingFile(StorageError):
    """The store has a file at that path already, and it was not to be overwritten."""


class TooLarge(StorageError, UnreadableMetadata):
    """A file is larger, or comes to more when its codec is undone, than `reading` of lifecycle.yaml allows."""


class CopyMismatch(StorageError):
    """A copy differs from its source in size or checksum."""


class HandoffFailed(LifecycleError):
    """Some files of a handoff could not be copied and verified; the plan stays open and holds its files."""

    exit_code = 4


class RestoreFailed(LifecycleError):
    """Some files of a cold snapshot could not be brought back; the live table is as it was."""

    exit_code = 4


class ClocksDisagree(LifecycleError):
    """The clocks of Postgres, this host and the object store differ by more than `clocks.max_difference`."""

    exit_code = 5


class OperationsUnavailable(LifecycleError):
    """Postgres cannot be reached, or its schema is from another version."""

    exit_code = 5


class EnvironmentMissing(LifecycleError):
    """Something this machine must have is missing: Java, the jars, a free port, an extra of this package."""

    exit_code = 5

    @classmethod
    def extra(cls, extra: str, error: ImportError) -> EnvironmentMissing:
        """The error for a package of an extra that is not installed."""
        return cls(
            f"{error.name or error} is not installed, a package of the extra `{extra}`",
            hint=f"pip install 'artemis-lifecycle[{extra}]'",
        )


# --- another worker was there: try later -----------------------------------------------------------------------------


class Busy(LifecycleError):
    """Try again later; nothing was lost."""

    exit_code = 6


class InDeepArchive(Busy):
    """What was asked for is in the deep archive, and is not readable until it was thawed."""


class Paused(Busy):
    """The lifecycle is paused, or the quiet window of a scheduled step is over."""


class LeaseTaken(Busy):
    """Another worker holds the table's lease."""


class LeaseLost(Busy):
    """This worker's lease lapsed and another took it: its fencing token is no longer the newest."""


class CommitConflict(Busy):
    """Every attempt of a compare-and-swap commit lost against other writers."""


class CommitStateUnknown(LifecycleError):
    """The catalog did not report whether a commit happened, and a look-up could not determine it."""

    exit_code = 6


def require_uuid(table: str, found: str, recorded: str) -> None:
    """Raise AnotherTable unless the table that has the name now, `found`, is the one that was `recorded` under it. What
    was recorded of a table (a plan, a scan, a hold) is never done by the name alone. Arguments are uuids."""
    if found != recorded:
        raise AnotherTable(
            f"The name now belongs to another table ({found}, not {recorded})",
            table=table,
            untouched="the table that has the name, and all files that were not deleted before",
            hint="find out who dropped the recorded one (artemis dropped); artemis close gives its plan up",
        )
