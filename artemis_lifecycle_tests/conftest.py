"""Fixtures for the tests of every room: one Postgres and one Spark session per process, fresh catalogs per test.

- `postgres`: the server (EmbeddedPostgres); `postgres_uri`: a fresh database of it per test module.
- `spark`: the session. It starts with no catalog; each `config` brings its own.
- `config`: a LifecycleConfig with every address; its catalog names, warehouses and root are unique to the test. The
  session has its catalogs as `config.catalogs.live.name` and `.cold.name`; names are unique because a session keeps a
  catalog as it was first loaded.
- `make_config(**sections)`: makes more of them, overridden by sections of lifecycle.yaml, e.g.
  `make_config(tables={"ns.t": {"retention": {"window": "7d"}}})`. `module_config` and `module_configs` have the scope
  of a module.
- `anywhere`: runs the test twice, in this process and on Spark's executors.
- `lifecycle`: `Lifecycle.open(config, spark=spark)`.

The guardian (guardian.py) checks every test that uses these catalogs.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import socketserver
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import psutil
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import make_url, text

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.postgres import ROLE, EmbeddedPostgres
from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle_tests import class_archive, end_report, guardian, lookups, shared_pools

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from artemis_lifecycle.api import Lifecycle


def pytest_configure(config: pytest.Config) -> None:
    # A test process has millions of objects, and each collection searches all of them for cycles.
    gc.set_threshold(100_000, 20, 20)
    # For a handful of rows, Arrow's threads wake each other more often than they work: a tenth of some tests' time.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _end_servers_at_once()
    config.addinivalue_line("markers", "nightly: a long test, which `make nightly` runs and `make test` skips")
    config.addinivalue_line("markers", "no_guardian(reason): the guardian does not check this test; says why")
    config.pluginmanager.register(guardian.Plugin(), "guardian")


def _end_servers_at_once() -> None:
    """A server looks every half second whether it is to end: half a second for each test with a server of its own."""
    serve = socketserver.BaseServer.serve_forever

    def serve_forever(server: socketserver.BaseServer, poll_interval: float = 0.5) -> None:
        serve(server, min(poll_interval, 0.03))

    socketserver.BaseServer.serve_forever = serve_forever  # type: ignore[method-assign]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["end_report"] = end_report.TABLES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    end_report.merge(getattr(node, "workeroutput", {}).get("end_report", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for title, rows in end_report.lines():
        terminalreporter.section(title)
        for row in rows:
            terminalreporter.line(row)


_LONG = (
    "cold_tier/test_reused_paths.py",
    "rest/test_contract.py",
    "rest/test_walk.py",
    "integration/test_daemon.py",
    "cold_tier/test_put_back.py",
    "protection/test_readers.py",
    "spark/test_cluster.py",
    "integration/test_crash_matrix.py",
    "protection/test_mutations.py",
    "cold_tier/test_handoff.py",
    "cold_tier/test_deep_archive.py",
    "nights/test_thirty_nights.py",
    "integration/test_bad_input.py",
    "upkeep/test_compaction.py",
    "integration/test_browser.py",
    "defs/test_kinds.py",
    "nessie/test_nessie.py",
    "audit/test_past.py",
    "defs/test_pipes.py",
    "protection/test_tables_that_do_not_load.py",
    "defs/test_walk.py",
    "protection/test_found_by_reading.py",
    "cold_tier/test_as_live_did.py",
    "foreign/test_foreign_actors.py",
)


def _seconds_of_files() -> dict[str, float]:
    """By file, as the last `make test` here measured them, which leaves them in .artemis/tests.xml; before the first,
    the longest files in their order."""
    # `make test` writes the file at its end, so all processes of a run read the same.
    with suppress(OSError, ElementTree.ParseError):
        found: dict[str, float] = {}
        for case in ElementTree.parse(REPOSITORY / ".artemis" / "tests.xml").iter("testcase"):
            file = f"{case.get('classname', '').replace('.', '/')}.py"
            found[file] = found.get(file, 0) + float(case.get("time", 0))
        if len(found) > 100:  # Of all tests, not of those that ARGS picked.
            return found
    return {f"artemis_lifecycle_tests/{name}": float(-number) for number, name in enumerate(_LONG, -len(_LONG))}


@pytest.hookimpl(tryfirst=True)  # Before pytest applies `-m`.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that use Spark, and put the longest files first: a long file that starts last keeps one process
    busy while the other is idle."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("jvm")
    if "ARTEMIS_SOAK" not in os.environ:
        long = [item for item in items if item.get_closest_marker("nightly") is not None]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    seconds = _seconds_of_files()
    items.sort(key=lambda item: -seconds.get(item.path.relative_to(REPOSITORY).as_posix(), 0))
    if "ARTEMIS_PART_SECONDS" in os.environ:
        # Each night starts with other files, or elsewhere in the only one, so that what one has no time for runs in
        # another.
        files = list(dict.fromkeys(item.path for item in items))
        first = int(_seed) % max(len(files), 1)
        order = {path: number for number, path in enumerate(files[first:] + files[:first])}
        items.sort(key=lambda item: order[item.path])
        if len(files) == 1:
            first = int(_seed) % len(items)
            items[:] = items[first:] + items[:first]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What the modules hold stays to the end: no search for garbage looks at it, of which pytest makes five at its own
    end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_PART_ENDS = time.monotonic() + float(os.environ.get("ARTEMIS_PART_SECONDS", "inf"))


def pytest_runtest_setup() -> None:
    if time.monotonic() > _PART_ENDS:
        pytest.skip("this part of the night is out of time (nightly.py)")


# ARTEMIS_SEED seeds every random choice of the run. `make test` always has the same one, so that failures come from
# changes; `make nightly` draws a new one, and a failure prints it.
_SEED = "1"
_seed = os.environ.setdefault("ARTEMIS_SEED", _SEED)

# No limits on the time of an example: the machine may be shared.
settings.register_profile(
    "artemis",
    deadline=None,
    derandomize=_seed == _SEED,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("artemis")

REPOSITORY = Path(__file__).resolve().parent.parent
MakeConfig = Callable[..., LifecycleConfig]


_numbers = itertools.count(1)
_PREFIX = "artemis-tests-"


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """One server per process, outside pytest's own folder, which root's Postgres user cannot enter."""
    _clear_after_killed_runs()
    home = Path(tempfile.mkdtemp(prefix=_PREFIX))
    home.chmod(0o755)
    (home / "owner").write_text(str(os.getpid()))
    # Its databases live for seconds: nothing is worth a vacuum, or a copy in the log.
    cheap = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off", "jit": "off"}
    server = EmbeddedPostgres(home, {**cheap, "max_connections": "400"})
    server.start()
    _connect_cheaply(server)
    yield server
    server.remove()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def _migrated(postgres: EmbeddedPostgres) -> str:
    """A database with schema `lifecycle`, to copy: 0.13 s of the processor, where the migrations take 0.4 s."""
    from artemis_lifecycle.operations.database import Operations

    name = f"migrated_{os.getpid()}"
    _execute(postgres, f"CREATE DATABASE {name}")
    Operations.open(postgres.uri(name)).close()
    return name


@pytest.fixture(scope="module")
def postgres_uri(request: pytest.FixtureRequest, postgres: EmbeddedPostgres) -> Iterator[str]:
    """The SQLAlchemy address of a database that this test module has for itself, with schema `lifecycle`; an empty one
    for a module that sets EMPTY_DATABASE, whose tests are about making the schema. Engines share their connections but
    there, and in a module that sets OWN_POOLS, whose tests are about connections."""
    name = f"test_{next(_numbers)}"
    uri = postgres.uri(name)
    if getattr(request.module, "EMPTY_DATABASE", False):
        _execute(postgres, f"CREATE DATABASE {name}")
        yield uri
    else:
        _execute(postgres, f"CREATE DATABASE {name} TEMPLATE {request.getfixturevalue('_migrated')} STRATEGY FILE_COPY")
        with nullcontext() if getattr(request.module, "OWN_POOLS", False) else shared_pools.sharing(uri):
            yield uri
    guardian.GUARDIAN.disconnect(uri.replace("+psycopg2", "", 1))
    _execute(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session. Its jars are resolved once, into the repository's .artemis."""
    from artemis_lifecycle.embedded.jars import ICEBERG, ICEBERG_AWS, ICEBERG_AZURE, ICEBERG_GCP, POSTGRES, resolve
    from artemis_lifecycle.spark.session import open_session, session_conf

    jars = (ICEBERG, POSTGRES, ICEBERG_AWS, ICEBERG_AZURE, ICEBERG_GCP)
    home = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (home / "owner").write_text(str(os.getpid()))
    config = LifecycleConfig.model_validate({"home": home, "spark": {"master": "local[2]"}})
    conf = session_conf(config, {}, resolve(REPOSITORY / ".artemis", jars))
    conf["spark.sql.shuffle.partitions"] = "2"
    # Spark formats each statement's plan for its UI, even without one; this mode costs least.
    conf["spark.sql.ui.explainMode"] = "simple"
    # And searches each option of each catalog in it for secrets.
    conf |= dict.fromkeys(("spark.redaction.regex", "spark.sql.redaction.options.regex"), r"\A(?!)")
    # For a handful of rows, to interpret an expression costs less than to compile it.
    conf |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    # For tiny data in a young JVM, the second compiler and a parallel collector only compete for two cores.
    conf["spark.driver.extraJavaOptions"] += " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m"
    lookups.remember()
    session = open_session(conf)
    _without_chmod(session)
    yield session
    session.stop()
    shutil.rmtree(home, ignore_errors=True)


_LOCAL_FILES = """
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends org.apache.hadoop.fs.LocalFileSystem {
    public LocalFiles() { super(new Raw()); }

    public void install(Configuration conf) throws Exception {
        URI root = new URI("file:///");
        initialize(root, conf);
        Class[] kinds = new Class[] {URI.class, Configuration.class, FileSystem.class};
        java.lang.reflect.Method add = FileSystem.class.getDeclaredMethod("addFileSystemForTesting", kinds);
        add.setAccessible(true);
        add.invoke(null, new Object[] {root, conf, this});
    }

    public static class Raw extends org.apache.hadoop.fs.RawLocalFileSystem {
        public void setPermission(Path path, FsPermission mode) throws java.io.IOException {
            java.nio.file.Path file = pathToFile(path).toPath();
            Integer bits = Integer.valueOf(mode.toShort());
            java.nio.file.Files.setAttribute(file, "unix:mode", bits, new java.nio.file.LinkOption[0]);
        }
    }
}
"""


def _without_chmod(spark: SparkSession) -> None:
    """Set file modes in Java. Without its native library, Hadoop starts a `chmod` process for each file that it writes,
    eight per commit: more than a tenth of a statement's cost."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_LOCAL_FILES)
    files = compiler.getClassLoader().loadClass("LocalFiles").newInstance()
    conf = context._jsc.hadoopConfiguration()
    files.install(conf)
    assert jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), conf).equals(files)


@pytest.fixture
def make_config(postgres_uri: str, spark: SparkSession, tmp_path: Path) -> Iterator[MakeConfig]:
    with configs(postgres_uri, spark, tmp_path) as make:
        yield make


@pytest.fixture
def config(make_config: MakeConfig) -> LifecycleConfig:
    return make_config()


@pytest.fixture(scope="module")
def module_configs(
    postgres_uri: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeConfig]:
    with configs(postgres_uri, spark, tmp_path_factory.mktemp("module")) as make:
        yield make


@pytest.fixture(scope="module")
def module_config(module_configs: MakeConfig) -> LifecycleConfig:
    return module_configs()


@pytest.fixture
def lifecycle(config: LifecycleConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    with open_lifecycle(config, spark) as lifecycle:
        yield lifecycle


@pytest.fixture(autouse=True)
def _nothing_said_by_another_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests of a module share its database and the names of their tables; heartbeats and pauses count by name."""
    yield
    if "postgres_uri" in request.fixturenames:
        from artemis_lifecycle.operations.database import connected

        with connected(request.getfixturevalue("postgres_uri")) as engine, engine.begin() as connection:
            for table in ("lifecycle.heartbeats", "lifecycle.pauses"):
                if connection.execute(text("SELECT to_regclass(:table)"), {"table": table}).scalar() is not None:
                    connection.execute(text(f"DELETE FROM {table}"))


@contextmanager
def open_lifecycle(config: LifecycleConfig, spark: SparkSession, **options: Any) -> Iterator[Lifecycle]:
    """`Lifecycle.open`, closed without publishing its result tables: 0.3 s, for rows that no test reads any more."""
    from artemis_lifecycle.api import Lifecycle

    lifecycle = Lifecycle.open(config, spark=spark, **options)
    try:
        yield lifecycle
    finally:
        lifecycle.resources.close()


def on_executors(patch: pytest.MonkeyPatch) -> None:
    """Run every stage on executors, regardless of its size."""
    patch.setattr("artemis_lifecycle.spark.runner.force_executors", True)


@pytest.fixture(params=["in_process", "executors"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test twice: its stages must have the same result in this process and on executors."""
    if request.param == "executors":
        on_executors(monkeypatch)
    return str(request.param)


@contextmanager
def configs(uri: str, spark: SparkSession, folder: Path) -> Iterator[MakeConfig]:
    """Yield a function that makes configurations; at the end, remove their catalogs from the session."""
    from artemis_lifecycle.catalogs.settings import lifecycle_conf

    names: list[str] = []
    set_keys: list[str] = []
    libpq = uri.replace("+psycopg2", "", 1)

    def make(**sections: Any) -> LifecycleConfig:
        number = next(_numbers)
        home = folder / f"lifecycle-{number}"
        home.mkdir()
        # A process that starts a session of its own resolved and compiled them for each home: 5 s.
        (home / "jars").symlink_to(REPOSITORY / ".artemis" / "jars")
        addresses: dict[str, Any] = {
            "catalogs": {
                tier: {"name": f"{tier}_{number}", "uri": uri, "warehouse": f"file://{home}/{tier}"}
                for tier in ("live", "cold")
            },
            "operations": {"uri": uri, "root": f"file://{home}/state"},
            # In a test's tables, nearly every file can be an orphan.
            "defaults": {"orphans": {"max_share": 1}},
            "spark": {"master": "local[2]"},
            "home": home,
        }
        config = LifecycleConfig.model_validate(_overridden(addresses, sections))
        for key, value in lifecycle_conf(config).items():
            spark.conf.set(key, value)
            set_keys.append(key)
        names.extend((config.catalogs.live.name, config.catalogs.cold.name))
        for catalog in (config.catalogs.live, config.catalogs.cold):
            guardian.GUARDIAN.watch(libpq, spark, {catalog.name: catalog.properties})
        return config

    yield make
    guardian.GUARDIAN.forget(libpq, names)
    for name in names:
        _forget(spark, name, [key for key in set_keys if key.startswith(f"spark.sql.catalog.{name}")])
    _clear_rows(uri, names)


def _clear_rows(uri: str, names: list[str]) -> None:
    """Remove the catalogs from the database, where later tests would see their tables as neighbors."""
    from sqlalchemy import delete, inspect

    from artemis_lifecycle.catalogs.guard import lift_guard
    from artemis_lifecycle.catalogs.sql import ensure_tables, iceberg_tables
    from artemis_lifecycle.operations.database import connect
    from artemis_lifecycle.operations.known_tables import beside_catalog, known_tables

    engine = connect(uri)
    ensure_tables(engine)
    with engine.begin() as connection:
        for name in names:
            lift_guard(connection, name)
        connection.execute(delete(iceberg_tables).where(iceberg_tables.c.catalog_name.in_(names)))
        if inspect(connection).has_table("known_tables", "lifecycle"):
            known = [*names, *map(beside_catalog, names)]
            connection.execute(delete(known_tables).where(known_tables.c.catalog.in_(known)))
    engine.dispose()


def _overridden(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {key: _overridden(base[key], more[key]) for key in base.keys() & more.keys() if isinstance(base[key], dict)}
    return {**base, **more, **both}


def _forget(spark: SparkSession, catalog: str, keys: Iterable[str] = ()) -> None:
    """Close the catalog's connections, and have the session forget it: it would keep both to its end, and there are
    hundreds of catalogs, of a megabyte each. Once they filled its heap, Java searched all of it for garbage again and
    again, and a test cost ten times as much. `keys`: its settings where they are known; to look through all of the
    session's costs 0.03 s."""
    from artemis_lifecycle.spark.session import own_catalog

    loaded, own = _loaded_catalogs(spark), own_catalog(spark, catalog)
    for name in dict.fromkeys((catalog, own)):
        if (found := loaded.remove(name)).isDefined():
            found.get().icebergCatalog().close()
        prefix = f"spark.sql.catalog.{name}"
        known = [prefix + key.removeprefix(f"spark.sql.catalog.{catalog}") for key in keys]
        for key in known or [key for key in spark.conf.getAll if key.startswith(prefix)]:
            spark.conf.unset(key)
    spark.conf.unset(f"spark.sql.catalog.{own}.artemis.rows-of")


def _loaded_catalogs(spark: SparkSession) -> Any:
    """The session's own map, by name. Spark itself forgets all catalogs, or none."""
    manager = spark._jsparkSession.sessionState().catalogManager()  # type: ignore[attr-defined]
    kept = manager.getClass().getDeclaredField("catalogs")
    kept.setAccessible(True)
    return kept.get(manager)


def _execute(postgres: EmbeddedPostgres, statement: str) -> None:
    import psycopg2

    connection = psycopg2.connect(postgres.uri("postgres", driver="postgresql"))
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
    finally:
        connection.close()


def _connect_cheaply(postgres: EmbeddedPostgres) -> None:
    """Hash the same password once instead of 4,096 times: tests connect thousands of times."""
    password = make_url(postgres.uri("postgres")).password
    _execute(postgres, f"SET scram_iterations = 1; ALTER ROLE {ROLE} PASSWORD '{password}'")


def _clear_after_killed_runs() -> None:
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/owner"):
        # Another run may be removing the same one, or have set up its server by another version.
        with suppress(FileNotFoundError, EnvironmentMissing):
            pid = owner.read_text()
            if pid and owner.stat().st_uid == os.geteuid() and not psutil.pid_exists(int(pid)):
                EmbeddedPostgres(owner.parent).remove()
                shutil.rmtree(owner.parent, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def _apart_from_the_developers_stack() -> Iterator[None]:
    """Remove the shell's variables, which could point the tests to its catalogs."""
    kept = {"ARTEMIS_JARS"}
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ARTEMIS_") and name not in kept]:
            patch.delenv(name)
        # 2 ms each on a slow disk. Nothing here survives a machine that fails, only processes that do.
        patch.setattr(os, "fsync", lambda _: None)
        with suppress(EnvironmentMissing):  # Tests without Spark need no Java.
            if options := class_archive.submit_options():
                # The sessions of other processes live for seconds, too.
                patch.setenv("SPARK_SUBMIT_OPTS", f"{options} {class_archive.BRIEFLY}", prepend=" ")
        yield
