"""The Spark session: its settings, opening or reusing one, rejecting one without the jars, keeping one between runs.
Settings of catalogs come from `catalogs/`.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from artemis_lifecycle import escaping
from artemis_lifecycle.config.model import SECRET
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import (
    GATED_CATALOG,
    GIVEN_CREDENTIALS,
    ICEBERG,
    PACED_CLIENTS,
    POSTGRES,
    export_java,
    require_user_name,
)
from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.spark.executors import local_cores, require_executors, use_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- interrupts -------------------------------------------------------------------------------------------------------
# Raise SIGTERM as an exception in the main thread, like Ctrl-C, so that files with secrets are removed.


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@contextmanager
def interruptible(*, then_end: bool = False) -> Iterator[None]:
    """Raise Terminated in the block at SIGTERM, unless the process handles that itself. `then_end`: after the block has
    cleaned up, the signal ends the process as usual."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(*_: object) -> None:
        raise Terminated

    def again(lost: sys.UnraisableHookArgs) -> None:
        # Where Python cannot raise, as in hooks of a fork, it drops the exception.
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        sent = signal.SIGTERM if lost.exc_type is Terminated else signal.SIGINT
        threading.Timer(0.1, os.kill, (os.getpid(), sent)).start()

    before, sys.unraisablehook = sys.unraisablehook, again
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Terminated:
        if not then_end:
            raise
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        sys.unraisablehook = before
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


WORKER_DAEMON = "artemis_lifecycle.worker_daemon"
"""The module from which a local session forks Python workers; other sessions can be given it too."""

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

_SUBMIT = "PYSPARK_SUBMIT_ARGS"
_PROPERTIES = "--properties-file"
_PYTHON = "spark.pyspark.python"

_OWN = "artemis_own_"
_DELETES_ANEW = {"spark.sql.iceberg.executor-cache.delete-files.enabled": "false"}
"""Iceberg's executors keep the values of an equality delete by its path, in the type of the column in the schema that
was read first. Under another one, as before a promotion, no row equals them, and deleted rows are back. One session
reads snapshots of many schemas here."""

_OWN_JAR = "aws.jar of the installed package's spark/java (in a clone: artemis-aws-*.jar of <home>/jars)"

_log = escaping.logger(__name__)

_LOG4J = Path(__file__).with_name("log4j2.properties").as_uri()
_CLASSES = {"org.apache.iceberg.spark.SparkCatalog": ICEBERG, "org.postgresql.Driver": POSTGRES}


def session_conf(
    config: LifecycleConfig, catalogs: Mapping[str, str], jars: Sequence[Path] | None = None
) -> dict[str, str]:
    """Return every setting of a session on `config`'s master: this project's, then `catalogs` (spark.sql.catalog.…),
    then `spark.conf` of lifecycle.yaml, which overrides; its extensions and jars are added.

    `jars` None: the cluster has them.
    """
    own = config.spark.conf
    conf = {
        "spark.app.name": "artemis-lifecycle",
        # Spark's own pattern knows no account key.
        "spark.redaction.regex": f"(?i){SECRET.pattern}",
        "spark.master": config.spark.master,
        # As a JVM option, because most startup messages come before a session can set log levels.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J}",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(config.home.resolve() / "spark-warehouse"),
        **_DELETES_ANEW,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    cores = local_cores(config.spark.master)
    if cores is not None:
        conf |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "2g",
            # Local only: a cluster's executors may get this package after their daemon has started.
            "spark.python.daemon.module": WORKER_DAEMON,
            # The default of 200 is for clusters; in one process each is only another task.
            "spark.sql.shuffle.partitions": str(max(2, cores)),
        }
    return {
        **conf,
        **({} if config.spark.python is None else {_PYTHON: config.spark.python}),
        **catalogs,
        **own,
        "spark.sql.extensions": _joined([EXTENSIONS], own.get("spark.sql.extensions")),
        **({"spark.jars": _joined([str(jar) for jar in jars], own.get("spark.jars"))} if jars is not None else {}),
    }


def live_session() -> SparkSession | None:
    """Return the live session of this process, if any; `getOrCreate` would reuse it and ignore the jars.

    Raises EnvironmentMissing if pyspark is set to connect to a server instead of its own JVM.
    """
    if os.environ.get("SPARK_REMOTE"):
        raise EnvironmentMissing(
            "SPARK_REMOTE is set, and a Spark Connect session has no JVM for Iceberg's core",
            hint="unset SPARK_REMOTE, and name a master in spark.master, such as local[*] or spark://HOST:7077",
        )
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        # "Active" is per thread. Ignoring another thread's session would make it ours to configure and to stop.
        active = SparkSession.builder.getOrCreate()
    return active if active is not None and active.sparkContext._jsc is not None else None


def driver_pid() -> int | None:
    """Return the process id of the JVM that this process started for Spark; None if it started none."""
    pyspark = sys.modules.get("pyspark")
    gateway = None if pyspark is None else pyspark.SparkContext._gateway
    started = getattr(gateway, "proc", None)
    return None if started is None else int(started.pid)


def open_session(conf: Mapping[str, str]) -> SparkSession:
    """Return the session of this process: a new one with `conf`, or the live one, with the catalogs of `conf` added.

    Raises EnvironmentMissing if Java is missing or too old, Spark does not start, a live session lacks the jars, or
    executors lack the package.
    """
    java = export_java()
    require_user_name()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    live = live_session()
    if live is not None:
        add_catalogs(live, conf)
        return live
    local = local_cores(conf.get("spark.master", "")) is not None
    use_python(conf.get(_PYTHON), local=local)
    if local:
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder
    for key, value in conf.items():
        if not _is_private(key):
            builder = builder.config(key, value)
    try:
        private = {key: value for key, value in conf.items() if _is_private(key)}
        with _quietly(), interruptible(then_end=True), _private_properties(private):
            spark = builder.getOrCreate()
    except PySparkException as error:
        raise EnvironmentMissing(
            f"Spark does not start: {error}", path=str(java), hint="see what Java says above, and `java -version`"
        ) from error
    try:
        require_iceberg(spark)
        require_executors(spark)
    except BaseException:
        spark.stop()
        raise
    usable = _with_its_classes(spark, conf)
    for key in conf.keys() - usable.keys():
        spark.conf.unset(key)
    for key in usable.keys() - conf.keys():
        spark.conf.set(key, usable[key])
    return spark


def _is_private(key: str) -> bool:
    """Return True if a setting must not be on Spark's command line, which every user of the machine can read."""
    return key.startswith("spark.sql.catalog.") or SECRET.search(key) is not None


@contextmanager
def _private_properties(conf: Mapping[str, str]) -> Iterator[None]:
    """Pass settings to Spark in a file that only this user can read, and that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="artemis-spark-") as folder:  # 0700
        file = Path(folder) / "private.properties"
        file.touch(0o600)
        before = os.environ.get(_SUBMIT)
        given = shlex.split(before or "pyspark-shell")
        # Spark reads one such file. If the user has one, ours is appended to its content, and overrides.
        theirs = b""
        if _PROPERTIES in given[:-1]:
            place = given.index(_PROPERTIES)
            theirs = Path(given[place + 1]).read_bytes() + b"\n"
            del given[place : place + 2]
        else:
            given.insert(0, "--load-spark-defaults")
        ours = "".join(f"{_property(key)}={_property(value)}\n" for key, value in conf.items())
        file.write_bytes(theirs + ours.encode("ascii"))
        os.environ[_SUBMIT] = shlex.join([_PROPERTIES, str(file), *given])
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SUBMIT]
            else:
                os.environ[_SUBMIT] = before


def _property(text: str) -> str:
    """Escape for java.util.Properties."""
    escaped = text.encode("unicode_escape").decode("ascii")
    units = re.sub(r"\\U([0-9a-f]{8})", lambda found: _pair(int(found[1], 16)), escaped)
    units = re.sub(r"\\x([0-9a-f]{2})", r"\\u00\1", units)
    return re.sub(r"([=:#! ])", r"\\\1", units)


def _pair(code: int) -> str:
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress py4j's DEBUG log, which has everything that is sent, secrets included."""

    def drop(record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG

    loggers = [logging.getLogger(f"py4j.{name}") for name in ("java_gateway", "clientserver")]
    for logger in loggers:
        logger.addFilter(drop)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(drop)


def add_catalogs(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Add the catalogs of `conf` to a live session, which keeps no deletes from one read to the next, and change
    nothing else.

    A catalog that the session has already loaded keeps its settings, which may differ. So each catalog that commits is
    also added under a name of this project's: `own_catalog`. Raises what `require_iceberg` and `require_executors`
    raise.
    """
    require_iceberg(spark)
    require_executors(spark)
    with _quietly():
        found = _with_its_classes(spark, conf)
        catalogs = {key: value for key, value in found.items() if key.startswith("spark.sql.catalog.")}
        for key, value in (catalogs | _under_own_names(found) | _DELETES_ANEW).items():
            spark.conf.set(key, value)


def own_catalog(spark: SparkSession, name: str) -> str:
    """Return the name with which this project commits to catalog `name` in the session."""
    return f"{_OWN}{name}" if spark.conf.get(f"spark.sql.catalog.{_OWN}{name}", None) else name


def _under_own_names(conf: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in conf.items():
        prefix, _, last = key.rpartition(".")
        # Not Iceberg's own JdbcCatalog, which finds its rows by its name.
        if (last, value) == ("catalog-impl", GATED_CATALOG) or (last == "type" and value in ("rest", "hive", "glue")):
            name = prefix.removeprefix("spark.sql.catalog.")
            own = f"spark.sql.catalog.{_OWN}{name}"
            found |= {
                own + each.removeprefix(prefix): conf[each]
                for each in conf
                if each == prefix or each.startswith(f"{prefix}.")
            } | {f"{own}.artemis.rows-of": name}
    return found


def _with_its_classes(spark: SparkSession, conf: Mapping[str, str]) -> dict[str, str]:
    """Return `conf` without the paced S3 clients and the gated catalog if the session lacks them: tables must still
    open. An enabled gate then rejects the session's commits."""
    if GIVEN_CREDENTIALS in conf.values() and _lacking(spark, [GIVEN_CREDENTIALS]):
        # The default credentials chain may be another account's.
        raise EnvironmentMissing(
            f"This Spark session lacks {GIVEN_CREDENTIALS}, which gives Glue the credentials of lifecycle.yaml",
            hint=f"add {_OWN_JAR} to spark.jars; or set client.credentials-provider in the catalog's properties",
        )
    gated = {key for key, value in conf.items() if key.endswith(".catalog-impl") and value == GATED_CATALOG}
    if gated and _lacking(spark, [GATED_CATALOG]):
        own = {f"{key.removesuffix('.catalog-impl')}.type": "jdbc" for key in gated}
        conf = {**{key: value for key, value in conf.items() if key not in gated}, **own}
    asks = [key for key, value in conf.items() if key.endswith(".s3.client-factory-impl") and value == PACED_CLIENTS]
    if not asks or not _lacking(spark, [PACED_CLIENTS]):
        return dict(conf)
    _log.warning(
        "This Spark session lacks %s: what Iceberg itself asks of S3, compactions above all, does not keep to the "
        "budget. Add %s to spark.jars.",
        PACED_CLIENTS,
        _OWN_JAR,
    )
    return {key: value for key, value in conf.items() if key not in asks}


def require_iceberg(spark: SparkSession) -> None:
    """Reject a session that was started without this project's jars: a live JVM cannot add jars for catalogs.

    Iceberg's SQL extensions are not required: no step needs them. Raises EnvironmentMissing with the missing jars.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise EnvironmentMissing(
            "A Spark Connect session has no JVM for Iceberg's core", hint="pass a classic session, or none"
        )
    lacking = [_CLASSES[name].coordinates for name in _lacking(spark, _CLASSES)]
    do = "stop that session and let Lifecycle.open start one, or start yours with "
    if lacking:
        raise EnvironmentMissing(
            f"The Spark session lacks {' and '.join(lacking)}", hint=f"{do}spark.jars.packages={','.join(lacking)}"
        )


def _lacking(spark: SparkSession, classes: Iterable[str]) -> list[str]:
    from py4j.protocol import Py4JJavaError

    jvm = spark._jvm  # pyspark has no public access to the JVM
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    lacking = []
    for name in classes:
        try:
            loader.loadClass(name)
        except Py4JJavaError:
            lacking.append(name)
    return lacking


def _joined(first: Iterable[str], more: str | None) -> str:
    parts = [*first, *(part.strip() for part in (more or "").split(",") if part.strip())]
    return ",".join(dict.fromkeys(parts))


@dataclass
class KeptSession:
    """The session that a long-lived process keeps from one run to the next, and the settings it was started with."""

    conf: Mapping[str, str] | None = None

    def open(self, conf: Mapping[str, str]) -> SparkSession:
        """Return the session. Starts a new one if there is none, its JVM has ended, or its settings are not `conf`.

        Raises what `open_session` raises.
        """
        if _jvm_ended():
            _forget()
        elif self.conf is not None and dict(conf) != dict(self.conf):
            # A loaded catalog keeps its settings until the JVM ends.
            _end_jvm()
        session = open_session(conf)
        self.conf = dict(conf)
        return session


def _jvm_ended() -> bool:
    from pyspark import SparkContext

    started = getattr(SparkContext._gateway, "proc", None)
    return started is not None and started.poll() is not None


def _end_jvm() -> None:
    from pyspark import SparkContext

    live, gateway = live_session(), SparkContext._gateway
    if live is not None:
        live.stop()
    started = getattr(gateway, "proc", None)
    if gateway is not None and started is not None:
        gateway.shutdown()
        started.stdin.close()  # the JVM ends when its input does
        started.wait(timeout=60)
        _forget()


def _forget() -> None:
    """Let pyspark start a new JVM. There is no public API for this: `stop` keeps the connection to the ended one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
