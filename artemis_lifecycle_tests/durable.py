"""Every durable write that this process makes, in its order; a death before or after any of them.

Seen where writes leave the process, whatever asks for them: the local object store's methods, file by file; commits of
Postgres transactions that wrote something, by any SQLAlchemy engine; what Iceberg writes in Spark's JVM, for which a
statement or an append of Spark, or a commit of its core, is one write that may also be cut short before its swap.

A process that died writes nothing more: neither what its own `finally` would do, nor its threads.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal
from unittest import mock

from py4j.java_gateway import JavaMember
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriterV2
from sqlalchemy import Connection

from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.storage.local import store as store_module
from artemis_lifecycle.storage.local.store import LocalStore
from artemis_lifecycle_tests.deaths import Killed

When = Literal["before", "inside", "after"]

STORE = {
    "write": "write",
    "put_stream": "copy",
    "second_name": "link",
    "archive": "archive",
    "end_thaw": "archive",
    "remove_empty": "remove folder",
}
"""Methods of the local store that make one durable change, and what they are called in counts."""

_CHANGES = re.compile(r"\s*(CREATE|DROP|ALTER|INSERT|DELETE|UPDATE|MERGE|CALL)\b", re.IGNORECASE)
_JAVA = ("commit", "execute", "deleteFile")
"""Methods of Iceberg's core and of its actions that write."""
_APPENDS = ("append", "overwrite", "overwritePartitions", "create", "replace", "createOrReplace")


@dataclass
class Write:
    """`kind` of change, the place in the product that asked for it, `what` was written, and the named crash points that
    were open around it. `changed`: whether the disk or Postgres had changed after it, if `observe` was given."""

    kind: str
    where: str
    what: str
    points: tuple[str, ...]
    changed: bool | None = None

    def __str__(self) -> str:
        return f"{self.kind} by {self.where} of {self.what[-90:]}"


@dataclass
class Writes:
    """The writes of one run. `die` (number of the write, when) kills it there. `observe` runs around each write, to
    detect changes by itself; `stray` has changes that no write explains."""

    die: tuple[int, When] | None = None
    observe: Callable[[], object] | None = None
    undo_swap: Callable[[Callable[[], object]], None] | None = None
    made: list[Write] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    dead: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _inside: bool = False
    _seen: object = None

    @contextmanager
    def watched(self) -> Iterator[Writes]:
        with ExitStack() as stack:
            for target, name, made in self._patches():
                stack.enter_context(mock.patch.object(target, name, made))
            stack.enter_context(crash_points.installed(self._reached))
            self._seen = self.observe() if self.observe is not None else None
            yield self
            self._settle("the end")

    # --- one write --------------------------------------------------------------------------------------------------

    def one(self, kind: str, what: str, work: Callable[[], Any]) -> Any:
        """`work` is one durable write; inside another one it is a part of that."""
        # One at a time, so that a death after so many finds just those.
        with self._lock:
            if self._inside:
                return work()
            self._alive()
            number, write = len(self.made), Write(kind, _place(), what, tuple(self._open()))
            self._settle(str(write))
            self.made.append(write)
            self._die(number, "before")
            self._inside = True
            try:
                if self.die == (number, "inside") and self.undo_swap is not None:
                    self.undo_swap(work)
                    self._die(number, "inside")
                done = work()
            finally:
                self._inside = False
            if self.observe is not None:
                now = self.observe()
                write.changed, self._seen = now != self._seen, now
            self._die(number, "after")
            return done

    def _die(self, number: int, when: When) -> None:
        if self.die == (number, when):
            self.dead = True
            raise Killed(f"{when} write {number}")

    def _alive(self) -> None:
        if self.dead:
            raise Killed("it is dead already")

    def _settle(self, upcoming: str) -> None:
        """Nothing may have changed since the last write."""
        if self.observe is None:
            return
        now = self.observe()
        if now != self._seen:
            last = str(self.made[-1]) if self.made else "the beginning"
            self.stray.append(f"between {last} and {upcoming}")
            self._seen = now

    def _reached(self, name: str) -> None:
        with self._lock:
            self.named.append(name)

    def _open(self) -> list[str]:
        """The named points that were passed into and not out of."""
        found: list[str] = []
        for name in self.named:
            around, _, side = name.rpartition(":")
            if side == "before":
                found.append(around)
            elif around in found:
                found.remove(around)
        return found

    # --- where writes leave the process -------------------------------------------------------------------------------

    def _patches(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        for name, kind in STORE.items():
            yield LocalStore, name, self._method(getattr(LocalStore, name), kind)
        delete, link = store_module.delete_file, store_module.link
        yield store_module, "delete_file", lambda path: self.one("delete", path, lambda: delete(path))
        yield store_module, "link", lambda path, aside: self.one("link", path, lambda: link(path, aside))
        # Below it a death would be taken for a broken connection.
        yield Connection, "_commit_impl", self._commit(Connection._commit_impl)
        yield SparkSession, "sql", self._statement(SparkSession.sql)
        for name in _APPENDS:
            yield DataFrameWriterV2, name, self._append(getattr(DataFrameWriterV2, name))
        yield JavaMember, "__call__", self._call(JavaMember.__call__)

    def _method(self, original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def method(store: Any, path: str, *args: Any, **options: Any) -> Any:
            return self.one(kind, path, lambda: original(store, path, *args, **options))

        return method

    def _commit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def commit_impl(connection: Connection) -> None:
            self._alive()
            with closing(connection.connection.cursor()) as cursor:
                # Postgres gives a transaction its number when it first writes.
                cursor.execute("SELECT pg_current_xact_id_if_assigned()::text, to_regclass('iceberg_tables') IS NULL")
                (row,) = cursor.fetchall()
                number, nowhere = row
                swaps = False
                if number is not None and not nowhere:
                    cursor.execute("SELECT EXISTS (SELECT FROM iceberg_tables WHERE xmin = %s::xid8::xid)", (number,))
                    ((swaps,),) = cursor.fetchall()
            if number is None:
                original(connection)
                return
            self.one("catalog swap" if swaps else "rows", "Postgres", lambda: original(connection))

        return commit_impl

    def _statement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def sql(session: Any, query: str, *args: Any, **options: Any) -> Any:
            self._alive()
            if not _CHANGES.match(query):
                return original(session, query, *args, **options)
            said = " ".join(query.split())[:60]
            return self.one("iceberg", said, lambda: original(session, query, *args, **options))

        return sql

    def _append(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def append(writer: Any, *args: Any) -> Any:
            return self.one("iceberg", original.__name__, lambda: original(writer, *args))

        return append

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(member: Any, *args: Any) -> Any:
            if member.name not in _JAVA:
                return original(member, *args)
            kind = "iceberg swap" if _place().startswith("catalogs.commit") else "iceberg"
            return self.one(kind, f"{member.name} of Java", lambda: original(member, *args))

        return call


def _place() -> str:
    """The innermost code of the product, below the stores and the named points, that is at work in this thread."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("artemis_lifecycle.") and not name.startswith(("artemis_lifecycle.storage.", f"{__name__}")):
            return f"{name.removeprefix('artemis_lifecycle.')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "?"
