"""A standalone Spark cluster on loopback: a master and workers, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from artemis_lifecycle_tests import class_archive

_DEPLOY = "org.apache.spark.deploy"
_ANY_PORT = ("--port", "0", "--webui-port", "0")


def briefly() -> dict[str, str]:
    """Return the environment for Java that lives for seconds."""
    return {"JAVA_TOOL_OPTIONS": f"{class_archive.BRIEFLY} {class_archive.submit_options()}"}


@contextmanager
def standalone(folder: Path, workers: int) -> Iterator[str]:
    """The address of the master of so many workers, with one core each."""
    with ExitStack() as stack:
        master = stack.enter_context(
            _daemon(
                *(f"{_DEPLOY}.master.Master", "--host", "127.0.0.1", *_ANY_PORT),
                says=r"spark://127\.0\.0\.1:\d+",
                log=folder / "master.log",
            )
        )
        for number in range(workers):
            worker = (f"{_DEPLOY}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", *_ANY_PORT)
            stack.enter_context(
                _daemon(
                    *(*worker, "-d", str(folder / f"work-{number}"), master),
                    says="registered with master",
                    log=folder / f"worker-{number}.log",
                )
            )
        yield master


@contextmanager
def _daemon(*arguments: str, says: str, log: Path) -> Iterator[str]:
    """A process of Spark's own, until the end of the block; the part of its log that matches `says`."""
    home = Path(find_spec("pyspark").origin).parent  # type: ignore[union-attr, arg-type]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", **briefly()}
    with log.open("wb") as said:
        command = [str(home / "bin" / "spark-class"), *arguments]
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(says, log.read_text())):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)
