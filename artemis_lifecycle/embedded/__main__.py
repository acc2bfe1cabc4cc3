"""`python -m artemis_lifecycle.embedded`: the embedded stack from a terminal. Belongs here: what `make` needs of it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.addresses import DAGSTER_VARIABLE, dagster_postgres_url, fill
from artemis_lifecycle.embedded.class_archive import make_archive
from artemis_lifecycle.embedded.jars import ICEBERG, ICEBERG_AWS, POSTGRES, Jar, needed, resolve
from artemis_lifecycle.embedded.java import require_java
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.errors import EnvironmentMissing, LifecycleError
from artemis_lifecycle.escaping import terminal

COMPILED = (
    "artemis_lifecycle.storage.hash_kernels",
    "artemis_lifecycle.metadata.avro.scan_kernels",
)
"""By name: the rooms that they belong to are above this one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code of the error it met, or 0."""
    parser = argparse.ArgumentParser(prog="python -m artemis_lifecycle.embedded", description="The embedded stack.")
    parser.add_argument("--config", help="lifecycle.yaml; default $ARTEMIS_CONFIG, then ./lifecycle.yaml")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for run, said in (
        (_setup, "check Java, fetch Spark's jars, set up and start Postgres"),
        (_jars, "fetch every jar that some configuration needs, which `make wheel` compiles against"),
        (_archive, "archive Spark's classes, once, so that each session starts with less work"),
        (_start, "start Postgres, where it is the embedded one"),
        (_stop, "stop the embedded Postgres"),
        (_status, "say what is there and runs"),
        (_env, "print export lines for a shell that starts Dagster"),
        (_remove, "stop the embedded Postgres and delete its data"),
    ):
        verbs.add_parser(run.__name__[1:], help=said).set_defaults(run=run)
    chosen = parser.parse_args(arguments)
    try:
        config = load_config(chosen.config)
        chosen.run(config, chosen.config)
    except LifecycleError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _setup(config: LifecycleConfig, named: str | None) -> None:
    java = require_java()
    print(f"java: {java}")
    fill(config, set_up=True)
    _print_jars(config, needed(config))
    _compile_loops()
    _status(config, None)


def _archive(config: LifecycleConfig, _named: str | None) -> None:
    """Sessions start without one, too, only later: that it cannot be made here stops nothing."""
    jars = resolve(config.home, needed(config))
    if os.access(jars[0].parent, os.W_OK):
        try:
            print(terminal(f"class archive: {make_archive(jars)}"))
        except EnvironmentMissing as error:
            print(error, file=sys.stderr)


def _jars(config: LifecycleConfig, _named: str | None) -> None:
    _print_jars(config, (ICEBERG, POSTGRES, ICEBERG_AWS))


def _print_jars(config: LifecycleConfig, jars: Sequence[Jar]) -> None:
    for jar in resolve(config.home, jars):
        print(terminal(f"jar: {jar}"))


def _compile_loops() -> None:
    """Loading compiles them, and keeps the machine code beside them: here, or in the middle of a first plan."""
    for module in COMPILED:
        import_module(module)
    print("compiled: loops over metadata")


def _start(config: LifecycleConfig, _named: str | None) -> None:
    fill(config)
    _status(config, None)


def _stop(config: LifecycleConfig, _named: str | None) -> None:
    stopped = EmbeddedPostgres(config.home).stop()
    print("postgres: stopped" if stopped else "postgres: was not running")


def _status(config: LifecycleConfig, _named: str | None) -> None:
    status = EmbeddedPostgres(config.home).status()
    if status.running:
        where = f"127.0.0.1:{status.port}, data in {status.data}, process {status.pid} of user {status.user}"
        print(terminal(f"postgres: {where}"))
    elif status.data is not None:
        print(terminal(f"postgres: stopped, data in {status.data}"))
    else:
        print("postgres: no embedded one is set up")


def _env(config: LifecycleConfig, named: str | None) -> None:
    home = config.home.resolve()
    values = {
        "ARTEMIS_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        DAGSTER_VARIABLE: dagster_postgres_url(config),
        # Runs are processes of their own, and must find the interpreter that has the packages.
        "PYSPARK_PYTHON": sys.executable,
    }
    file = Path(named or os.environ.get("ARTEMIS_CONFIG") or "lifecycle.yaml")
    if file.exists():
        values["ARTEMIS_CONFIG"] = str(file.resolve())
    for key, value in values.items():
        print(f"export {key}={shlex.quote(value)}")


def _remove(config: LifecycleConfig, _named: str | None) -> None:
    EmbeddedPostgres(config.home).remove()
    print("postgres: removed")


if __name__ == "__main__":
    sys.exit(main())
