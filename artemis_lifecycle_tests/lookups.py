"""Each Java class is looked up once. py4j asks the JVM for every part of `jvm.org.apache.iceberg.Table` each time it is
written, and Java searches all jars for a class of each package's name: a seventh of what the tests' JVM did.

Each Avro schema is understood once. pyiceberg parses the schema of every manifest that it opens, and makes a reader for
it, which was most of what the guardian spent on a manifest.

Each SQL statement is compiled once. SQLAlchemy keeps what it compiled for one engine, but each test module has a
database of its own, and Dagster makes an engine for every event that it stores in SQLite: a fifth of what its runs did.

Dagster looks for its own tables once. Its storages do before most questions, an eighth of what a simulated night did.
Each run's log is a database of its own, which is a copy of the first: a quarter of what a run of one step did. No run's
output is followed, for which Dagster starts two `tail`s and two Pythons that watch them: another quarter.

Each AWS service's model is parsed once. botocore does so for every session, and a store with settings of its own has
one: a fifth of what `storage/test_s3.py` did.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from sqlalchemy import Engine, QueuePool


def remember() -> None:
    """Keep what py4j finds, and what pyiceberg makes of schemas, for this process."""
    file: Any = importlib.import_module("pyiceberg.avro.file")
    if not hasattr(file.resolve_reader, "__wrapped__"):
        file.AvroFileHeader.get_schema = _once_a_text(file.AvroFileHeader.get_schema)
        file.resolve_reader, file.construct_reader = _made(file.resolve_reader), _made(file.construct_reader)
    for owner, named in ((JVMView, "_id"), (JavaPackage, "_fqn")):
        if not hasattr(owner.__getattr__, "__wrapped__"):
            owner.__getattr__ = _kept(owner.__getattr__, named)


def _kept(look_up: Any, named: str) -> Any:
    found: dict[tuple[Any, str, str], Any] = {}

    @functools.wraps(look_up)
    def attribute(self: Any, name: str) -> Any:
        if name.startswith("_"):
            return look_up(self, name)
        key = (self._gateway_client, getattr(self, named), name)
        if key not in found:
            answer = look_up(self, name)
            # A name that is not a class yet can become one, once its jar is there.
            if not isinstance(answer, JavaClass) and not (isinstance(answer, JavaPackage) and name.islower()):
                return answer
            found[key] = answer
        return found[key]

    return attribute


def _once_a_text(parse: Any) -> Any:
    found: dict[str | None, Any] = {}

    @functools.wraps(parse)
    def get_schema(self: Any) -> Any:
        text = self.meta.get("avro.schema")
        if text not in found:
            found[text] = parse(self)
        return found[text]

    return get_schema


def _made(make: Any) -> Any:
    """Readers have no state of their own. Schemas are told apart by being the same object, and are kept."""
    found: dict[Any, tuple[Any, tuple[Any, ...]]] = {}

    @functools.wraps(make)
    def reader(*given: Any) -> Any:
        key = tuple(tuple(each.items()) if isinstance(each, dict) else id(each) for each in given)
        if key not in found:
            found[key] = (make(*given), given)
        return found[key][0]

    return reader


_compiled: dict[str, tuple[Any, dict[Any, Any]]] = {}


def compile_once(engine: Engine) -> Engine:
    """Have the engine share what was compiled for others of its kind of database. All are of one server and version."""
    kind = engine.dialect.name
    if kind not in _compiled:
        engine.connect().close()  # The dialect asks for the server's version.
        _compiled[kind] = (engine.dialect, {})
    engine.dialect, kept = _compiled[kind]
    engine.update_execution_options(compiled_cache=kept)
    return engine


def keep_engines(*modules: str) -> None:
    """Have `create_engine` of these modules, which make an engine for each use, return the last one for its address.
    Its connections stay open: SQLite reads the schema for each new one, and settles its journal at the last one's end.
    """
    for name in modules:
        module = importlib.import_module(name)
        # SQLAlchemy's own function is a wrapper, too.
        if not hasattr(module.create_engine, "by_address"):
            module.create_engine = _engine_for_each_address(module.create_engine)  # type: ignore[attr-defined]


def _engine_for_each_address(make: Callable[..., Engine]) -> Callable[..., Engine]:
    found: dict[tuple[str, str], Engine] = {}

    @functools.wraps(make)
    def create_engine(address: str, **options: Any) -> Engine:
        key = (address, repr(options))
        if key not in found:
            if len(found) > 64:  # Of tests that are over.
                idle = [old for old, engine in found.items() if not engine.pool.checkedout()]  # type: ignore[attr-defined]
                for old in idle:
                    Engine.dispose(found.pop(old))
            found[key] = compile_once(make(address, **{**options, "poolclass": QueuePool}))
            found[key].dispose = lambda close=True: None  # type: ignore[method-assign]
        return found[key]

    create_engine.by_address = found  # type: ignore[attr-defined]
    return create_engine


def copy_empty_logs() -> None:
    """Have Dagster make the tables of a run's event log once, and copy the file for each run after that."""
    owner: Any = importlib.import_module("dagster._core.storage.event_log.sqlite.sqlite_event_log")
    owner = owner.SqliteEventLogStorage
    if not hasattr(owner._initdb, "__wrapped__"):
        owner._initdb = _copied(owner._initdb)


def _copied(make: Any) -> Any:
    empty: list[bytes] = []

    @functools.wraps(make)
    def _initdb(self: Any, engine: Engine, for_index_shard: bool = False) -> None:
        file = Path(str(engine.url.database))
        is_new = not for_index_shard and not file.exists()
        if is_new and empty:
            file.write_bytes(empty[0])
            return
        make(self, engine, for_index_shard)
        if is_new:
            Engine.dispose(engine)  # Which settles the journal into the file.
            empty.append(file.read_bytes())

    return _initdb


def follow_no_output() -> None:
    """Have Dagster leave a run's output where it goes, to pytest."""
    module: Any = importlib.import_module("dagster._core.storage.local_compute_log_manager")
    module.mirror_stream_to_file = lambda stream, file: nullcontext()


def keep_dagsters_schema() -> None:
    """Have Dagster's storages remember which tables and columns their databases have, once they have them."""
    storage = "dagster._core.storage"
    for module, name, asked in (
        (
            "schedules.sql_schedule_storage",
            "SqlScheduleStorage",
            ("_has_instigators_table", "has_secondary_index_table"),
        ),
        ("runs.sql_run_storage", "SqlRunStorage", ("has_run_stats_index_cols", "has_backfill_tags_table")),
    ):
        owner = getattr(importlib.import_module(f"{storage}.{module}"), name)
        for each in asked:
            if not hasattr(getattr(owner, each), "__wrapped__"):
                setattr(owner, each, _until_true(getattr(owner, each)))


def keep_revisions() -> None:
    """Have Alembic load a folder of migrations once. Dagster asks for the newest one for each run's event log."""
    scripts: Any = importlib.import_module("alembic.script.base").ScriptDirectory
    if not hasattr(scripts.from_config, "__wrapped__"):
        scripts.from_config = _once_a_place(scripts.from_config)


def _once_a_place(load: Any) -> Any:
    found: dict[tuple[str | None, ...], Any] = {}

    @functools.wraps(load)
    def from_config(config: Any) -> Any:
        key = (config.config_file_name, *map(config.get_main_option, ("script_location", "version_locations")))
        if key not in found:
            found[key] = load(config)
        return found[key]

    return from_config


def _until_true(ask: Any) -> Any:
    @functools.wraps(ask)
    def asked(self: Any, *given: Any) -> bool:
        found = vars(self).setdefault("_found_by_tests", set())
        if ask.__name__ not in found and ask(self, *given):
            found.add(ask.__name__)
        return ask.__name__ in found

    return asked


def parse_models_once() -> None:
    """Have the sessions of botocore share the JSON that describes services. None changes it."""
    loader: Any = importlib.import_module("botocore.loaders").JSONFileLoader
    if not hasattr(loader._load_file, "__wrapped__"):
        loader._load_file = _once_a_file(loader._load_file)


def _once_a_file(load: Any) -> Any:
    found: dict[str, Any] = {}

    @functools.wraps(load)
    def load_file(self: Any, path: str, open_method: Any) -> Any:
        if path not in found:
            found[path] = load(self, path, open_method)
        return found[path]

    return load_file
