"""The Python of a cluster's executors. Belongs here: asking it at a session's start whether it can run this project's
tasks. Does not belong: what the tasks do.

Small tables are worked on in the driver: without the question an executor's missing package would come up with the
first large one, in the middle of a night.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import EnvironmentMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = (
    "artemis_lifecycle",
    "numpy",
    "pandas",
    "pyarrow",
    "numba",
    "xxhash",
    "isal",
    "fastavro",
    "boto3",
)
"""What tasks import."""

_SECONDS = 60.0
_MOST = 64
_TAG = "artemis-executors"
_VERSIONS = re.compile(r"PYTHON_VERSION_MISMATCH\][^\n]*")

_log = escaping.logger(__name__)


@dataclass(frozen=True)
class ExecutorPython:
    """The interpreter of one executor: where it is, and which packages it lacks."""

    host: str
    executable: str
    version: str
    lacking: tuple[str, ...]


def require_executors(spark: SparkSession, seconds: float = _SECONDS) -> tuple[ExecutorPython, ...]:
    """The interpreters of the executors that are there; none for a local master, which has none.

    An executor that comes later is not asked: its first task says the same (`worker_errors`). Where no executor is free
    in `seconds`, a warning says so. Raises EnvironmentMissing for one without the packages, or of another Python.
    """
    master = spark.sparkContext.master or ""
    if re.match(r"local(\[|\Z)", master):
        return ()
    found = _within(spark, seconds)
    if found is None:
        _log.warning("No executor of %s was free within %.0f s, and none was asked for its packages", master, seconds)
        return ()
    for each in found:
        if each.lacking:
            raise lacking_on_executors(
                f"The executor on {each.host} runs Python {each.version} ({each.executable}), which lacks "
                f"{', '.join(each.lacking)}"
            )
    return found


def lacking_on_executors(what: str) -> EnvironmentMissing:
    """The error for executors that cannot run this project's tasks."""
    return EnvironmentMissing(
        what,
        hint="install artemis-lifecycle, of this version, for the executors' interpreter, or name one that has it in "
        f"spark.python of lifecycle.yaml; its Python must be {sys.version_info.major}.{sys.version_info.minor} as here",
    )


def from_executors(said: str) -> EnvironmentMissing | None:
    """The error for what a failed Spark job `said`, if its cause is the executors' Python."""
    mismatch = _VERSIONS.search(said)
    if mismatch is not None:
        return lacking_on_executors(f"The executors run another Python: {mismatch[0].rpartition(']')[2].strip()}")
    missing = re.search(r"ModuleNotFoundError: (No module named '(\w+)[\w.]*')", said)
    if missing is not None and missing[2] in PACKAGES:
        return lacking_on_executors(f"The executors' Python lacks a package: {missing[1]}")
    absent = re.search(r'Cannot run program "([^"]+)"[^\n]*No such file or directory', said)
    return None if absent is None else lacking_on_executors(f"The executors have no {absent[1]}")


def _within(spark: SparkSession, seconds: float) -> tuple[ExecutorPython, ...] | None:
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


def _question() -> Callable[[Iterable[int]], Iterator[tuple[str, str, str, tuple[str, ...]]]]:
    """The task. A function in a function, with its imports inside: so it is sent whole, and needs no package there."""
    packages = PACKAGES

    def answer(_: Iterable[int]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
        import platform
        import socket
        import sys
        from importlib.util import find_spec

        lacking = tuple(name for name in packages if find_spec(name) is None)
        yield socket.gethostname(), sys.executable, platform.python_version(), lacking

    return answer


def use_python(executable: str | None, *, local: bool) -> None:
    """Have sessions that start from now on run their workers by `executable`; by this interpreter for a local master.
    Without either the environment decides, as in Spark."""
    if executable is None and local:
        # Whatever `python3` the path has.
        executable = sys.executable
    if executable is not None:
        os.environ["PYSPARK_PYTHON"] = executable
