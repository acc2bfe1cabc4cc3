"""The Python of a cluster's executors: check at a session's start that it can run this project's tasks.

Small tables are processed in the driver; without this check a missing package would fail the first large table, in the
middle of a night.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from artemis_lifecycle import escaping
from artemis_lifecycle.code_version import content_hash
from artemis_lifecycle.errors import EnvironmentMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("artemis_lifecycle", "numpy", "pandas", "pyarrow", "numba", "xxhash", "isal", "fastavro", "boto3")
"""The packages that tasks import."""

_SECONDS = 60.0
_MOST = 64
_TAG = "artemis-executors"
_VERSIONS = re.compile(r"PYTHON_VERSION_MISMATCH\][^\n]*")

_OTHER_CODE = (
    "The executor on {} has other code of artemis-lifecycle than the driver, by the sum of its files ({}, there {}); "
    "its Python is {}"
)

_log = escaping.logger(__name__)


@dataclass(frozen=True)
class ExecutorPython:
    """The interpreter of one executor, the packages that it lacks, which code of this project it has, and the versions
    of the other packages."""

    host: str
    executable: str
    version: str
    lacking: tuple[str, ...]
    code: str | None
    versions: tuple[str, ...] = ()


def local_cores(master: str | None) -> int | None:
    """Return how many tasks a local master runs at once; None for any other master."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", (master or "").strip())
    if match is None:
        return None
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)


def require_executors(spark: SparkSession, seconds: float = _SECONDS) -> tuple[ExecutorPython, ...]:
    """Return the interpreters of the current executors; none for a local master.

    An executor that joins later fails its first task with the same error (`SameCode`, `worker_errors`). If no executor
    is free within `seconds`, a warning is logged, and so it is for packages of other versions than here. Raises
    EnvironmentMissing for one without the packages, or with another version of Python or of this project.
    """
    master = spark.sparkContext.master
    if local_cores(master) is not None:
        return ()
    found = _ask_executors(spark, seconds)
    if found is None:
        _log.warning("No executor of %s was free within %.0f s, and none was asked for its packages", master, seconds)
        return ()
    own = ExecutorPython(*next(_question()(())))
    for each in found:
        if each.lacking:
            raise lacking_on_executors(
                f"The executor on {each.host} runs Python {each.version} ({each.executable}), which lacks "
                f"{', '.join(each.lacking)}"
            )
        if each.code != own.code:
            codes = str(each.code)[:12], str(own.code)[:12]
            raise lacking_on_executors(_OTHER_CODE.format(each.host, *codes, each.executable))
        if others := set(each.versions) - set(own.versions):
            _log.warning("The executor on %s has %s, which this process has not", each.host, ", ".join(sorted(others)))
    return found


class SameCode:
    """A task's function, which an executor with other code of this project refuses to unpickle: executors may join
    after the session's start."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_same_code, (_own_code(), self._function)


_own_code = cache(content_hash)


def _with_same_code(code: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if _own_code() != code:
        raise RuntimeError(_OTHER_CODE.format(socket.gethostname(), _own_code()[:12], code[:12], sys.executable))
    return function


def lacking_on_executors(what: str) -> EnvironmentMissing:
    """Return the error for executors that cannot run this project's tasks."""
    return EnvironmentMissing(
        what,
        hint="give executors what `artemis pack-environment` makes; or install artemis-lifecycle, of this version, for "
        "their interpreter, or name one that has it in spark.python of lifecycle.yaml; its "
        f"Python must be {sys.version_info.major}.{sys.version_info.minor} as here",
    )


def from_executors(said: str) -> EnvironmentMissing | None:
    """Return the error for a failed Spark job's message, if the cause is the executors' Python."""
    mismatch = _VERSIONS.search(said)
    if mismatch is not None:
        return lacking_on_executors(f"The executors run another Python: {mismatch[0].rpartition(']')[2].strip()}")
    other = re.search(rf"{_OTHER_CODE.partition('{')[0]}\S+ has other code of [^\n]+", said)
    if other is not None:
        return lacking_on_executors(other[0])
    missing = re.search(r"ModuleNotFoundError: (No module named '(\w+)[\w.]*')", said)
    if missing is not None and missing[2] in PACKAGES:
        return lacking_on_executors(f"The executors' Python lacks a package: {missing[1]}")
    absent = re.search(r'Cannot run program "([^"]+)"[^\n]*No such file or directory', said)
    return None if absent is None else lacking_on_executors(f"The executors have no {absent[1]}")


def _ask_executors(spark: SparkSession, seconds: float) -> tuple[ExecutorPython, ...] | None:
    answers: list[tuple[ExecutorPython, ...]] = []
    failures: list[Exception] = []

    def ask() -> None:
        context = spark.sparkContext
        context.addJobTag(_TAG)
        try:
            tasks = max(1, min(_MOST, context.defaultParallelism))
            found = context.parallelize(range(tasks), tasks).mapPartitions(_question()).collect()
            answers.append(tuple(dict.fromkeys(ExecutorPython(*each) for each in found)))
        except Exception as error:
            failures.append(error)
        finally:
            context.removeJobTag(_TAG)

    asking = Thread(target=ask, name=_TAG, daemon=True)
    asking.start()
    asking.join(seconds)
    if asking.is_alive():
        spark.sparkContext.cancelJobsWithTag(_TAG)
        return None
    if failures:
        raise from_executors(str(failures[0])) or failures[0] from failures[0]
    return answers[0]


_Answer: TypeAlias = tuple[str, str, str, tuple[str, ...], str | None, tuple[str, ...]]


def _question() -> Callable[[Iterable[int]], Iterator[_Answer]]:
    """Return the task: a nested function with its own imports, so that it is pickled whole and needs no package."""
    packages = PACKAGES

    def answer(_: Iterable[int]) -> Iterator[_Answer]:
        import platform
        import socket
        import sys
        from importlib.metadata import distributions
        from importlib.util import find_spec

        lacking = tuple(name for name in packages if find_spec(name) is None)
        code = None
        if packages[0] not in lacking:
            from artemis_lifecycle.code_version import content_hash

            code = content_hash()
        installed = {each.name: each.version for each in distributions()}
        versions = tuple(f"{name} {installed[name]}" for name in packages[1:] if name in installed)
        yield socket.gethostname(), sys.executable, platform.python_version(), lacking, code, versions

    return answer


def use_python(executable: str | None, *, local: bool) -> None:
    """Set the workers' interpreter of sessions that start from now on: `executable`, or this interpreter for a local
    master. Otherwise the environment decides, as in Spark."""
    if executable is None and local:
        # Spark would use the `python3` of the path.
        executable = sys.executable
    if executable is not None:
        os.environ["PYSPARK_PYTHON"] = executable
