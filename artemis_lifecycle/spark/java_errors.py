"""Errors around Spark's JVM, as this project's errors. Belongs here: recognizing lost races, a catalog that does not
answer, and a store that fails. Does not belong: retries, and errors in a statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from artemis_lifecycle.embedded.jars import GATED_CATALOG
from artemis_lifecycle.errors import (
    Busy,
    CommitConflict,
    CommitStateUnknown,
    LifecycleError,
    LineageRejected,
    MissingFile,
    NoSuchTable,
    OperationsUnavailable,
    Refused,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.spark.jvm import classes_of

PASSING_STATES = ("08", "40", "53", "57")
"""Classes of SQLSTATE after which another try may do better: connection, rollback, resources, operator intervention.
Source: PostgreSQL, appendix A."""

_ICEBERG = "org.apache.iceberg.exceptions."
_CONFLICTS = (f"{_ICEBERG}CommitFailedException", f"{_ICEBERG}ValidationException")
_UNKNOWN = f"{_ICEBERG}CommitStateUnknownException"
_FORBIDDEN = f"{_ICEBERG}ForbiddenException"
_REJECTED = "artemis.lifecycle.LineageRejectedException"
_NO_PASS = re.compile(r"the lineage gate refuses a commit to table [^\n]*")
"""What the gate in the catalog's database says to an engine that does not ask it."""
OTHER_TABLE = "Table UUID does not match"
"""What Iceberg says when it reads a table again that was dropped and made anew under its name."""

_CATALOG = re.compile(
    r"org\.apache\.(?:iceberg\.hive\.RuntimeMetaException|hadoop\.hive\.metastore\.|thrift\.)|"
    r"software\.amazon\.awssdk\.services\.glue\.[\w.]+Exception"
)
_STORE = re.compile(
    r"software\.amazon\.awssdk\.[\w.]+Exception|org\.apache\.iceberg\.exceptions\.(?:NotFound|RuntimeIO)Exception|"
    r"java\.io\.\w*IOException|java\.io\.(?:FileNotFound|EOF)Exception|java\.net\.\w+Exception|"
    r"org\.apache\.http\.\w+Exception"
)
_GONE = re.compile(
    r"org\.apache\.iceberg\.exceptions\.NotFoundException|NoSuchKeyException|java\.nio\.file\.NoSuchFileException|"
    r"java\.io\.FileNotFoundException"
)
_DENIED = "Permission denied"
"""Java opens a file without permission with a FileNotFoundException."""

_DAMAGED = re.compile(rf"avro\.(?:InvalidAvroMagicException|AvroRuntimeException)|java\.io\.EOFException|{_DENIED}")
_FILE = re.compile(
    r"(?:Failed to open (?:input stream for )?file|Failed to get status for file|(?:File|Location) does not exist): "
    r"(?P<named>\S[^\n]*)|(?:\bFile|^File) (?P<absent>\S[^\n]*?) does not exist"
)
"""How Iceberg and Hadoop name the file that they could not open."""

_METADATA = re.compile(r"(?:-m\d+|/snap-[^/]*)\.avro$|\.metadata\.json(?:\.gz)?$")
_AHEAD = re.compile(r"Invalid update timestamp \d+: before|Expected sorted (?:snapshot|previous metadata) log entries")
"""What Iceberg says if the table's last commit is later than this host's clock, by more than `_CLOCK_TOLERANCE`; or if
the metadata file is not in order."""

_CLOCK_TOLERANCE = timedelta(minutes=1)
_LAST_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)

_STOPPED = re.compile(r"Interrupted|AbortedException|\bcancell?ed\b")
"""The work was stopped; nothing failed."""


@contextmanager
def java_errors(table: str | None = None, last_commit: Callable[[], int] | None = None) -> Iterator[None]:
    """Run what works through the JVM; what other systems did to it comes out as a LifecycleError, not as a Java trace.
    An error that names no table gets this one's name. `last_commit` returns the `last-updated-ms` of a table to which
    the block may commit.

    Any other error is a defect, and its trace shows where.
    """
    try:
        yield
    except LifecycleError as error:
        error.table = error.table or table
        raise
    except Exception as error:
        known = (last_commit and _chain(error) and ahead_of_clock(error, table, last_commit)) or as_ours(error, table)
        if not known:
            raise
        raise known from error


def as_ours(error: Exception, table: str | None = None) -> LifecycleError | None:
    """This project's error for an exception of the JVM; None for an unknown one."""
    if not _chain(error):
        return None
    names, states = set(class_names(error)), sql_states(error)
    said = str(error)  # With what executors met: that is there as text alone.
    if _STOPPED.search(said):
        return None
    lost = None if _UNKNOWN in names else _refusal(error, names, table) or _lost_file(said, table)
    if lost is not None:
        return lost
    if _UNKNOWN not in names and OTHER_TABLE in said:
        return NoSuchTable(
            "The name now belongs to another table",
            table=table,
            untouched="the table that has the name now",
            hint="run the step again",
        )
    ours: type[LifecycleError]
    if _UNKNOWN in names:
        ours, what = CommitStateUnknown, "The catalog did not say whether the commit happened"
        untouched, first = "all files that were there before", "see that the catalog answers, then "
    elif names.intersection(_CONFLICTS):
        ours, what = CommitConflict, "Another writer's commit came first"
        untouched, first = "the table", ""
    elif any(state.startswith(PASSING_STATES) for state in states):
        ours, what = OperationsUnavailable, "The catalog's database did not answer"
        untouched, first = "everything that was not yet written", "see that Postgres runs, then "
    elif _CATALOG.search(said):
        ours, what = OperationsUnavailable, "The catalog did not answer"
        untouched, first = "everything that was not yet written", "see that it runs and takes the credentials, then "
    elif _STORE.search(said):
        ours, what = StorageError, "The object store did not answer as it should"
        untouched, first = "everything that was not yet written", "see that the store answers, then "
    else:
        return None
    return ours(f"{what}: {brief(error)}", table=table, untouched=untouched, hint=f"{first}run the step again")


def ahead_of_clock(error: Exception, table: str | None, last_commit: Callable[[], int]) -> Busy | None:
    """Return the error for a commit on top of one by a writer whose clock was ahead; None for any other error.
    `last_commit` returns the table's `last-updated-ms`."""
    if not _AHEAD.search(str(error)):
        return None
    now, last = datetime.now(UTC), datetime.fromtimestamp(min(last_commit(), _LAST_MS) / 1000, UTC)
    if last <= now:
        return None
    # Rounded up to the second.
    again = last - _CLOCK_TOLERANCE + timedelta(seconds=1)
    return Busy(
        f"The last commit lies {(last - now) / timedelta(minutes=1):.0f} minutes ahead of this host's clock, at "
        f"{last:%Y-%m-%d %H:%M:%S} UTC: its writer's clock was ahead, or this host's is behind",
        table=table,
        untouched="the table",
        hint=f"try again at {again:%Y-%m-%d %H:%M:%S} UTC, or correct this host's clock if it is behind",
    )


def _refusal(error: Exception, names: set[str], table: str | None) -> Refused | None:
    """The error for a commit that the lineage gate or the catalog refuses; None for all else."""
    if _REJECTED in names:
        java = next(each for each in _chain(error) if _REJECTED in classes_of(each))
        return LineageRejected(
            str(java.getMessage()),
            table=table,
            untouched="the table",
            hint="set the keys: write options snapshot-property.KEY, or spark.sql.catalog.NAME.lineage.default.KEY",
        )
    no_pass = _NO_PASS.search(str(error))
    if no_pass is not None:
        return LineageRejected(
            no_pass[0],
            table=table,
            untouched="the table",
            hint=f"commit through {GATED_CATALOG}: add gate.jar of the installed package's spark/java (in a clone: "
            "artemis-gate-*.jar of <home>/jars) to spark.jars (docs/lineage.md)",
        )
    if _FORBIDDEN in names:
        return Refused(
            f"The catalog refuses: {brief(error)}",
            table=table,
            untouched="the table",
            hint="give the login the right that the message names",
        )
    return None


def _lost_file(said: str, table: str | None) -> LifecycleError | None:
    """The error for a file of the table that is gone, or for metadata that cannot be read; None for all else."""
    match = _FILE.search(said)
    if match is None:
        # Without a file of the table: Spark's own temporary files get lost, too.
        return None
    path = (match["named"] or match["absent"]).strip()
    is_metadata = _METADATA.search(path) is not None
    gone = _GONE.search(said) is not None and _DENIED not in said
    if gone and is_metadata:
        return UnreadableMetadata.missing(path, table)
    if gone:
        return MissingFile(
            "A file that the table needs is not in the store any more",
            table=table,
            path=path,
            untouched="the table and all its files",
            hint="restore the file, then run the step again",
        )
    if is_metadata and _DAMAGED.search(said):
        return UnreadableMetadata.of("A metadata file that the table needs cannot be read", path, table)
    return None


def class_names(error: BaseException) -> list[str]:
    """Names of the Java classes of what was raised, outermost first, its causes and their superclasses too; the name of
    py4j's own error where the gateway broke; none for an error of Python's."""
    from py4j.protocol import Py4JError, Py4JJavaError

    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return [type(error).__name__]
    return [name for java in _chain(error) for name in classes_of(java)]


def sql_states(error: BaseException) -> list[str]:
    """The SQLSTATEs of what was raised and its causes."""
    # Without a state it is a driver's own complaint about its connection.
    return [str(java.getSQLState() or "08") for java in _chain(error) if "java.sql.SQLException" in classes_of(java)]


def brief(error: BaseException) -> str:
    """The Java messages without their traces, or the error's own, on one line."""
    parts = [
        f"{java.getClass().getSimpleName()}: {str(java.getMessage()).partition(chr(10))[0]}" for java in _chain(error)
    ]
    return " ".join(("; ".join(parts) or str(error)).split())[:500].rstrip(".") or type(error).__name__


def _chain(error: BaseException) -> list[Any]:
    """The Java error behind one of Python's, and its causes."""
    from py4j.protocol import Py4JJavaError

    # pyspark translates some Java errors of its own, with the Java object behind.
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    found = []
    while java is not None:
        found.append(java)
        java = java.getCause()
    return found
