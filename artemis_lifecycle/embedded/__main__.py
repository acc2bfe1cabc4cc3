"""`python -m artemis_lifecycle.embedded`: the embedded stack from a terminal, as the Makefile uses it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.addresses import DAGSTER_VARIABLE, dagster_postgres_url, fill
from artemis_lifecycle.embedded.jars import ICEBERG, ICEBERG_AWS, POSTGRES, Jar, needed, require_java, resolve
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.escaping import terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code of its error, or 0."""
    parser = argparse.ArgumentParser(prog="python -m artemis_lifecycle.embedded", description="The embedded stack.")
    parser.add_argument("--config", help="lifecycle.yaml; default $ARTEMIS_CONFIG, then ./lifecycle.yaml")
    commands = parser.add_subparsers(required=True)
    for run, description in (
        (_setup, "check Java, fetch Spark's jars, set up and start Postgres"),
        (_jars, "fetch every jar that some configuration needs, which `make wheel` compiles against"),
        (_start, "start Postgres, if it is the embedded one"),
        (_stop, "stop the embedded Postgres"),
        (_status, "show whether the embedded Postgres runs, and where its data is"),
        (_env, "print export lines for a shell that starts Dagster"),
        (_remove, "stop the embedded Postgres and delete its data"),
    ):
        commands.add_parser(run.__name__[1:], help=description).set_defaults(run=run)
    parsed = parser.parse_args(arguments)
    try:
        parsed.run(load_config(parsed.config), parsed.config)
    except LifecycleError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _setup(config: LifecycleConfig, _file: str | None) -> None:
    print(f"java: {require_java()}")
    fill(config, set_up=True)
    _print_jars(config, needed(config))
    _status(config, None)


def _jars(config: LifecycleConfig, _file: str | None) -> None:
    _print_jars(config, (ICEBERG, POSTGRES, ICEBERG_AWS))


def _print_jars(config: LifecycleConfig, jars: Sequence[Jar]) -> None:
    for jar in resolve(config.home, jars):
        print(terminal(f"jar: {jar}"))


def _start(config: LifecycleConfig, _file: str | None) -> None:
    fill(config)
    _status(config, None)


def _stop(config: LifecycleConfig, _file: str | None) -> None:
    stopped = EmbeddedPostgres(config.home).stop()
    print("postgres: stopped" if stopped else "postgres: was not running")


def _status(config: LifecycleConfig, _file: str | None) -> None:
    status = EmbeddedPostgres(config.home).status()
    if status.running:
        where = f"127.0.0.1:{status.port}, data in {status.data}, process {status.pid} of user {status.user}"
        print(terminal(f"postgres: {where}"))
    elif status.data is not None:
        print(terminal(f"postgres: stopped, data in {status.data}"))
    else:
        print("postgres: no embedded one is set up")


def _env(config: LifecycleConfig, file: str | None) -> None:
    home = config.home.resolve()
    values = {
        "ARTEMIS_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        DAGSTER_VARIABLE: dagster_postgres_url(config),
        # Runs are separate processes, and must find the interpreter that has the packages.
        "PYSPARK_PYTHON": sys.executable,
    }
    path = Path(file or os.environ.get("ARTEMIS_CONFIG") or "lifecycle.yaml")
    if path.exists():
        values["ARTEMIS_CONFIG"] = str(path.resolve())
    for key, value in values.items():
        print(f"export {key}={shlex.quote(value)}")


def _remove(config: LifecycleConfig, _file: str | None) -> None:
    EmbeddedPostgres(config.home).remove()
    print("postgres: removed")


if __name__ == "__main__":
    sys.exit(main())
