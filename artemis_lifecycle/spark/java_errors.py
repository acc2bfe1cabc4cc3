"""What goes wrong around Spark's JVM, as this project's errors. Belongs here: telling lost races, a catalog that does
not answer and a store that fails from all else. Does not belong: retries, and what is wrong with a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from artemis_lifecycle.errors import (
    CommitConflict,
    CommitStateUnknown,
    LifecycleError,
    OperationsUnavailable,
    StorageError,
)

PASSING_STATES = ("08", "40", "53", "57")
"""Classes of SQLSTATE after which another try may do better: connection, rollback, resources, operator intervention.
Source: PostgreSQL, appendix A."""

_ICEBERG = "org.apache.iceberg.exceptions."
_CONFLICTS = (f"{_ICEBERG}CommitFailedException", f"{_ICEBERG}ValidationException")
_UNKNOWN = f"{_ICEBERG}CommitStateUnknownException"
_CATALOG = re.compile(
    r"org\.apache\.(?:iceberg\.hive\.RuntimeMetaException|hadoop\.hive\.metastore\.|thrift\.)|"
    r"software\.amazon\.awssdk\.services\.glue\.[\w.]+Exception"
)
_STORE = re.compile(
    r"software\.amazon\.awssdk\.[\w.]+Exception|org\.apache\.iceberg\.exceptions\.(?:NotFound|RuntimeIO)Exception|"
    r"java\.io\.\w*IOException|java\.io\.(?:FileNotFound|EOF)Exception|java\.net\.\w+Exception|"
    r"org\.apache\.http\.\w+Exception"
)
_STOPPED = re.compile(r"Interrupted|AbortedException|\bcancell?ed\b")
"""Somebody stopped the work; nothing failed."""


@contextmanager
def java_errors(table: str | None = None) -> Iterator[None]:
    """Run what works through the JVM; what other systems did to it comes out as a LifecycleError, not as a Java trace.

    What is none of these stays what it is: it is a defect, and its trace tells where.
    """
    try:
        yield
    except LifecycleError:
        raise
    except Exception as error:
        known = as_ours(error, table)
        if known is None:
            raise
        raise known from error


def as_ours(error: Exception, table: str | None = None) -> LifecycleError | None:
    """The error of this project that tells what came out of the JVM; None where none does."""
    java = _java(error)
    if java is None:
        return None
    names, states = _chain(java)
    said = str(error)  # With what executors met: that is there as text alone.
    if _STOPPED.search(said):
        return None
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
    return ours(f"{what}: {_brief(java)}", table=table, untouched=untouched, hint=f"{first}run the step again")


def _java(error: Exception) -> Any:
    from py4j.protocol import Py4JJavaError

    if isinstance(error, Py4JJavaError):
        return error.java_exception
    # pyspark translates some Java errors of its own, with the Java object behind.
    return getattr(error, "_origin", None)


def _chain(java: Any) -> tuple[set[str], list[str]]:
    """Class names of an error, its causes and their superclasses; the SQLSTATEs among them."""
    names: set[str] = set()
    states: list[str] = []
    while java is not None:
        own: set[str] = set()
        kind = java.getClass()
        while kind is not None:
            own.add(str(kind.getName()))
            kind = kind.getSuperclass()
        if "java.sql.SQLException" in own:
            # Without a state it is a driver's own complaint about its connection.
            states.append(str(java.getSQLState() or "08"))
        names |= own
        java = java.getCause()
    return names, states


def _brief(java: Any) -> str:
    """The Java messages without their traces, on one line."""
    parts = []
    while java is not None:
        parts.append(f"{java.getClass().getSimpleName()}: {str(java.getMessage()).partition(chr(10))[0]}")
        java = java.getCause()
    return " ".join("; ".join(parts).split())[:500].rstrip(".")
