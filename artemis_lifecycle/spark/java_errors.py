"""Errors that reach Python through Spark, as this project's errors: of the JVM (lost races, a catalog or a store that
fails), of Python workers, and of a user's statements. No retries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from artemis_lifecycle import errors
from artemis_lifecycle.embedded.jars import GATED_CATALOG
from artemis_lifecycle.errors import (
    BadInput,
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
from artemis_lifecycle.spark.executors import from_executors
from artemis_lifecycle.spark.jvm import classes_of

PASSING_STATES = ("08", "40", "53", "57")
"""Classes of SQLSTATE after which a retry may succeed: connection, rollback, resources, operator intervention.
Source: PostgreSQL, appendix A."""

_ICEBERG = "org.apache.iceberg.exceptions."
_CONFLICTS = (f"{_ICEBERG}CommitFailedException", f"{_ICEBERG}ValidationException")
_UNKNOWN = f"{_ICEBERG}CommitStateUnknownException"
_FORBIDDEN = f"{_ICEBERG}ForbiddenException"
_REJECTED = "artemis.lifecycle.LineageRejectedException"
_NO_PASS = re.compile(r"the lineage gate refuses a commit to table [^\n]*")
"""The message of the gate in the catalog's database to an engine that bypasses it."""
OTHER_TABLE = "Table UUID does not match"
"""Iceberg's message if a table was dropped and recreated under its name."""

_OTHER_ROWS = re.compile(r"Invalid REPLACE operation: \d+ added records > \d+ replaced records")
"""Iceberg's message for a rewrite of files that have more rows than the metadata records."""

_CATALOG = re.compile(
    r"org\.apache\.(?:iceberg\.hive\.RuntimeMetaException|hadoop\.hive\.metastore\.|thrift\.)|"
    r"software\.amazon\.awssdk\.services\.glue\.[\w.]+Exception"
)
_STORE = re.compile(
    r"software\.amazon\.awssdk\.[\w.]+Exception|org\.apache\.iceberg\.exceptions\.(?:NotFound|RuntimeIO)Exception|"
    r"java\.io\.\w*IOException|java\.io\.(?:FileNotFound|EOF)Exception|java\.net\.\w+Exception|"
    r"org\.apache\.http\.\w+Exception|org\.apache\.hadoop\.fs\.ChecksumException"
)
_GONE = re.compile(
    r"org\.apache\.iceberg\.exceptions\.NotFoundException|NoSuchKeyException|java\.nio\.file\.NoSuchFileException|"
    r"java\.io\.FileNotFoundException"
)
_DENIED = "Permission denied"
"""Java raises FileNotFoundException for a file that it has no permission to open."""

_DAMAGED = re.compile(rf"avro\.(?:InvalidAvroMagicException|AvroRuntimeException)|java\.io\.EOFException|{_DENIED}")
_FILE = re.compile(
    r"(?:Failed to open (?:input stream for )?file|Failed to get status for file|(?:File|Location) does not exist): "
    r"(?P<named>\S[^\n]*)|(?:\bFile|^File) (?P<absent>\S[^\n]*?) does not exist"
)
"""Messages in which Iceberg and Hadoop name a file that they could not open."""

_METADATA = re.compile(r"(?:-m\d+|/snap-[^/]*)\.avro$|-m\d+\.parquet$|\.metadata\.json(?:\.gz)?$")
_AHEAD = re.compile(r"Invalid update timestamp \d+: before|Expected sorted (?:snapshot|previous metadata) log entries")
"""Iceberg's message if the table's last commit is later than this host's clock by more than `_CLOCK_TOLERANCE`, or if
the metadata file is not in order."""

_CLOCK_TOLERANCE = timedelta(minutes=1)
_LAST_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)

_STOPPED = re.compile(r"Interrupted|AbortedException|\bcancell?ed\b")
"""The work was canceled; nothing failed."""


@contextmanager
def java_errors(table: str | None = None, last_commit: Callable[[], int] | None = None) -> Iterator[None]:
    """Run code that uses the JVM; raise failures of other systems as LifecycleErrors instead of Java traces. An error
    without a table gets `table`. `last_commit` returns the `last-updated-ms` of a table to which the block may commit.

    Any other error is a defect and keeps its trace.
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
    """Return this project's error for an exception of the JVM; None for an unknown one."""
    if not _chain(error):
        return None
    names, states = set(class_names(error)), sql_states(error)
    said = str(error)  # Includes errors of executors, which are there as text only.
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
    """Return the error for a commit after one by a writer whose clock was ahead; None for any other error.
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
    """Return the error for a commit that the lineage gate, the catalog or Iceberg rejects; None for any other."""
    if _REJECTED in names:
        return LineageRejected(
            str(next(each for each in _chain(error) if _REJECTED in classes_of(each)).getMessage()),
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
    other_rows = _OTHER_ROWS.search(str(error))
    if other_rows is not None:
        return Refused(
            f"Files have other rows than the metadata records ({other_rows[0]}): they were written again after their "
            "commit",
            table=table,
            untouched="the table and all its files",
            hint="find the job that writes to paths of committed files; restore them, or delete and append the rows",
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
    """Return the error for a missing file of the table, or unreadable metadata; None for any other."""
    match = _FILE.search(said)
    if match is None:
        # Not a file of the table: Spark's own temporary files can be missing, too.
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
    """Return the Java class names of an error, its causes and their superclasses, outermost first; the name of py4j's
    own error if the gateway failed; empty for a Python error."""
    from py4j.protocol import Py4JError, Py4JJavaError

    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return [type(error).__name__]
    return [name for java in _chain(error) for name in classes_of(java)]


def sql_states(error: BaseException) -> list[str]:
    """Return the SQLSTATEs of an error and its causes."""
    # Without a state it is the driver's own error about its connection.
    return [str(java.getSQLState() or "08") for java in _chain(error) if "java.sql.SQLException" in classes_of(java)]


def brief(error: BaseException) -> str:
    """Return the Java messages without traces, or the error's own message, on one line."""
    parts = [
        f"{java.getClass().getSimpleName()}: {str(java.getMessage()).partition(chr(10))[0]}" for java in _chain(error)
    ]
    return " ".join(("; ".join(parts) or str(error)).split())[:500].rstrip(".") or type(error).__name__


def _chain(error: BaseException) -> list[Any]:
    """Return the Java error behind a Python error, and its causes."""
    from py4j.protocol import Py4JJavaError

    # pyspark wraps some Java errors, and keeps the Java object.
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    found = []
    while java is not None:
        found.append(java)
        java = java.getCause()
    return found


# --- errors of workers ----------------------------------------------------------------------------------------------

# A worker's exception reaches the driver as text: the last line of its traceback names class and message.
_RAISED = re.compile(r"artemis_lifecycle\.errors\.(\w+): (.*?)(?:\n\s*\n|\n\tat |\n\s+at |\Z)", re.DOTALL)


@contextmanager
def worker_errors() -> Iterator[None]:
    """Run Spark actions; raise a LifecycleError of an executor as that LifecycleError, and an error of the JVM as
    `java_errors` does.

    Every action whose workers read a table's files belongs inside, so that a caller never has to read a Spark trace.
    """
    try:
        yield
    except errors.LifecycleError:
        raise
    except Exception as error:
        raised = _RAISED.findall(str(error))
        if not raised:
            known = from_executors(str(error)) or as_ours(error)
            if known is None:
                raise
            raise known from error
        name, message = raised[-1]
        raise _restored(getattr(errors, name, errors.LifecycleError), message.strip()) from error


def _restored(kind: type[errors.LifecycleError], message: str) -> errors.LifecycleError:
    what, _, do = message.partition(" Next: ")
    what, _, untouched = what.partition(" Left untouched: ")
    table = path = None
    if match := re.search(r" \[path (.*?)\](?=[. ]|$)", what):
        path = match[1]
        what = what.replace(match[0], "")
    if match := re.search(r" \[table (.*?)\](?=[. ]|$)", what):
        table = match[1]
        what = what.replace(match[0], "")
    return kind(what, table=table, path=path, untouched=untouched.rstrip(".") or None, hint=do.rstrip(".") or None)


# --- errors of statements -------------------------------------------------------------------------------------------

_STATEMENT_STATES = ("0A", "21", "22", "42")
"""Classes of SQLSTATE: not supported, cardinality, data, syntax or names. Source: ISO/IEC 9075-2, "SQLSTATE"."""

_ROWS_DO_NOT_FIT = "INCOMPATIBLE_DATA_FOR_TABLE"
"""Spark's condition for rows that do not fit a table; its SQLSTATE class, KD, has failures of the system, too."""


@contextmanager
def statement_errors() -> Iterator[None]:
    """Run a statement or collect its rows; raise errors in the statement as BadInput, in one line.

    Spark's own report, a JSON document with the JVM's trace, is not written to stderr meanwhile.
    """
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    report = PySparkLogger.getLogger("SQLQueryContextLogger")
    disabled, report.disabled = report.disabled, True
    try:
        yield
    except PySparkException as error:
        of_rows = (error.getCondition() or "").startswith(_ROWS_DO_NOT_FIT)
        if not of_rows and not (error.getSqlState() or "").startswith(_STATEMENT_STATES):
            raise
        said = str(error).strip().partition("\n")[0].rstrip(";")
        raise BadInput(f"Spark refuses the statement: {said}", hint="fix the statement") from error
    finally:
        report.disabled = disabled
