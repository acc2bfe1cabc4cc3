"""Stores that fail on purpose, for crash tests of every room."""

from __future__ import annotations

import builtins
import fcntl
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.stores import CopyOutcome, DeleteOutcome, StoredFile, Stores

Operation = Literal["read", "list", "head", "write", "copy", "delete", "touch"]


class InjectedCrash(BaseException):
    """The process "dies" here: no `except Exception` on the way may swallow it or tidy up after it."""


@dataclass(frozen=True)
class Fault:
    """Fails the `nth` call (from 1) of `operation` among those whose path `matching` is found in.

    `when`: before the call, after it (the work is done and its answer lost), or partway: half of a delete's paths are
    gone, half of a copy's bytes stand at the destination. `kind`: InjectedCrash, StorageError, or a SIGKILL of the
    process that makes the call.
    """

    operation: Operation
    nth: int
    when: Literal["before", "after", "partway"] = "before"
    kind: Literal["crash", "storage", "kill"] = "crash"
    matching: str = ""


class FaultyStores(Stores):
    """`inner` with faults. Counts in files under `ledger`, so that calls on Spark's executors count too; picklable.

    Without faults it records: `calls(operation)` says how many points there are to fail at.
    """

    def __init__(self, inner: Stores, ledger: Path, faults: Sequence[Fault] = ()) -> None:
        super().__init__(inner.settings)
        self.inner = inner
        self.ledger = Path(ledger)
        self.faults = tuple(faults)
        self.ledger.mkdir(parents=True, exist_ok=True)

    def __getstate__(self) -> object:  # type: ignore[override]
        return (self.inner, self.ledger, self.faults)

    def __setstate__(self, state: tuple[Stores, Path, tuple[Fault, ...]]) -> None:  # type: ignore[override]
        FaultyStores.__init__(self, *state)

    def calls(self, operation: Operation) -> list[str]:
        """The paths of all calls so far, in order; a delete's are joined by a newline."""
        file = self.ledger / operation
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def _begin(self, operation: Operation, path: str) -> Fault | None:
        """Count the call; the fault it meets, already raised if it is one before the work."""
        with open(self.ledger / operation, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(path) + "\n")  # A name may hold anything but never ends its line.
            file.flush()
            file.seek(0)
            paths = [json.loads(line) for line in file.read().splitlines()]
        for fault in self.faults:
            if fault.operation != operation or re.search(fault.matching, path) is None:
                continue
            if sum(re.search(fault.matching, earlier) is not None for earlier in paths) == fault.nth:
                if fault.when == "before":
                    self._strike(fault, path)
                return fault
        return None

    def _end(self, fault: Fault | None, path: str) -> None:
        if fault is not None:
            self._strike(fault, path)

    def _strike(self, fault: Fault, path: str) -> None:
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "storage":
            raise StorageError(f"An injected failure of {fault.operation} {fault.nth}", path=path)
        raise InjectedCrash(f"{fault.when} {fault.operation} {fault.nth}: {path}")

    def list(self, prefix: str) -> Iterator[StoredFile]:
        fault = self._begin("list", prefix)
        for index, file in enumerate(self.inner.list(prefix)):
            if fault is not None and fault.when == "partway" and index:
                self._strike(fault, prefix)
            yield file
        self._end(fault, prefix)

    def children(self, prefix: str, most: int | None = None):  # type: ignore[no-untyped-def]
        fault = self._begin("list", prefix)
        answer = self.inner.children(prefix, most)
        self._end(fault, prefix)
        return answer

    def head(self, path: str) -> StoredFile | None:
        fault = self._begin("head", path)
        answer = self.inner.head(path)
        self._end(fault, path)
        return answer

    def heads(self, paths: Sequence[str]) -> builtins.list[StoredFile | None]:
        return [self.head(path) for path in paths]

    def open(self, path: str) -> BinaryIO:
        fault = self._begin("read", path)
        answer = self.inner.open(path)
        self._end(fault, path)
        return answer

    def read(self, path: str) -> bytes:
        fault = self._begin("read", path)
        answer = self.inner.read(path)
        self._end(fault, path)
        return answer

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        fault = self._begin("read", path)
        answer = self.inner.read_range(path, offset, length)
        self._end(fault, path)
        return answer

    def checksum(self, path: str) -> str:
        fault = self._begin("read", path)
        answer = self.inner.checksum(path)
        self._end(fault, path)
        return answer

    def write(self, path: str, data: bytes, *, overwrite: bool = False, storage_class: str | None = None) -> StoredFile:
        fault = self._begin("write", path)
        answer = self.inner.write(path, data, overwrite=overwrite, storage_class=storage_class)
        self._end(fault, path)
        return answer

    def copy(
        self,
        source: str,
        destination: str,
        *,
        source_stores: Stores | None = None,
        storage_class: str | None = None,
        found: StoredFile | None = None,
        absent: bool = False,
        overwrite: bool = True,
        confirm: Callable[[str], None] = lambda checksum: None,
    ) -> CopyOutcome:
        fault = self._begin("copy", source)
        origin = source_stores.inner if isinstance(source_stores, FaultyStores) else source_stores
        if fault is not None and fault.when == "partway":
            data = (origin or self.inner).read(source)
            self.inner.write(destination, data[: len(data) // 2], overwrite=True)
            self._strike(fault, source)
        answer = self.inner.copy(
            source, destination, source_stores=origin, storage_class=storage_class, overwrite=overwrite
        )
        self._end(fault, source)
        return answer

    def delete(self, paths: Sequence[str], *, until: float | None = None, **_: object):  # type: ignore[no-untyped-def]
        joined = "\n".join(paths)
        fault = self._begin("delete", joined)
        if fault is not None and fault.when == "partway":
            self.inner.delete(paths[: len(paths) // 2])
            self._strike(fault, joined)
        answer: list[DeleteOutcome] = self.inner.delete(paths, until=until)
        self._end(fault, joined)
        return answer
