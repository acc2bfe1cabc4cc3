"""`get_current` and `compare_and_swap` of a SQL catalog: linearizable, also over connections that break, and gated."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, insert, make_url, text

from artemis_lifecycle.catalogs.gate.installation import install_gate
from artemis_lifecycle.catalogs.gate.rules import rules_of
from artemis_lifecycle.catalogs.guard import ensure_guard, lift_guard
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.sql import ensure_tables, iceberg_tables
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import (
    BadInput,
    CommitConflict,
    CommitStateUnknown,
    LineageRejected,
    NoSuchTable,
    OperationsUnavailable,
    Refused,
)
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle_tests.catalogs.cutting_proxy import CuttingProxy
from artemis_lifecycle_tests.catalogs.linearizability import Operation, is_linearizable

START = "file:/start"
TABLES = ("ns.a", "ns.b")


@pytest.fixture
def engine(postgres_uri: str) -> Iterator[Engine]:
    engine = connect(postgres_uri)
    ensure_tables(engine)
    with engine.begin() as connection:
        connection.execute(iceberg_tables.delete())
        for table in TABLES:
            namespace, name = table.split(".")
            row = {"catalog_name": "live", "table_namespace": namespace, "table_name": name, "iceberg_type": "TABLE"}
            connection.execute(insert(iceberg_tables).values(**row, metadata_location=START))
    yield engine
    engine.dispose()


def _reader(uri: str) -> CatalogReader:
    return CatalogReader(Catalog(name="live", uri=uri, warehouse="file:///w"))


def _through(uri: str, port: int) -> str:
    return make_url(uri).set(host="127.0.0.1", port=port, query={}).render_as_string(hide_password=False)


def _address(uri: str) -> tuple[str, int]:
    url = make_url(uri)
    assert url.host is not None and url.port is not None
    return url.host, url.port


# --- many writers -----------------------------------------------------------------------------------------------------


def _client(reader: CatalogReader, name: str, operations: int, out: list[Operation]) -> None:
    dice = random.Random(name)
    known = dict.fromkeys(TABLES, START)
    for number in range(operations):
        table = dice.choice(TABLES)
        start = time.monotonic()
        try:
            if dice.random() < 0.4:
                known[table] = reader.entry(table).metadata_location
                out.append(Operation(table, start, time.monotonic(), known[table]))
                continue
            # Often stale: others moved the pointer since this client read it.
            swap = Operation(table, start, start, f"file:/{name}-{number}", known[table])
            try:
                reader.compare_and_swap(table, known[table], swap.value)
                outcome = "ok"
                known[table] = swap.value
            except CommitConflict:
                outcome = "fail"
                known[table] = reader.entry(table).metadata_location if dice.random() < 0.9 else known[table]
            except CommitStateUnknown:
                outcome = "unknown"
            out.append(replace(swap, end=time.monotonic(), outcome=outcome))
        except OperationsUnavailable:
            continue  # A read without an answer, or a swap that did not happen: no value of it may ever be read.


def _process(uri: str, number: int, before: float, after: float, operations: int, results: object) -> None:
    """Three clients with one pool; the third one over connections that are cut."""
    out: list[Operation] = []
    proxy = CuttingProxy(_address(uri), before, after, down=0.5, dice=random.Random(number))
    with ExitStack() as stack:
        port = stack.enter_context(proxy.serving())
        good, bad = (stack.enter_context(_reader(each)) for each in (uri, _through(uri, port)))
        clients = [
            threading.Thread(target=_client, args=(reader, f"{number}-{place}", operations, out))
            for place, reader in enumerate((good, good, bad))
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    results.put((out, dict(proxy.cut)))  # type: ignore[attr-defined]


@pytest.mark.slow
def test_many_writers_in_threads_and_processes_make_a_linearizable_history(engine: Engine, postgres_uri: str) -> None:
    spawning = multiprocessing.get_context("spawn")
    results = spawning.Queue()
    workers = [
        spawning.Process(target=_process, args=(postgres_uri, number, 0.3, 0.3, 100, results)) for number in range(2)
    ]
    for worker in workers:
        worker.start()
    history: list[Operation] = []
    cut: Counter[str] = Counter()
    for _ in workers:
        found, of_proxy = results.get(timeout=300)
        history += found
        cut.update(of_proxy)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    tally = Counter(each.outcome for each in history if each.expected is not None)
    assert cut["before"] and cut["after"] and tally["ok"] > 20 and tally["fail"] > 20 and tally["unknown"], (cut, tally)
    # The history has real concurrency: some swap began before another one on its table had ended.
    swaps = sorted((each for each in history if each.expected is not None), key=lambda each: each.start)
    assert any(one.end > two.start for one, two in pairwise(swaps) if one.table == two.table)
    assert is_linearizable(history, START)
    # The same history with one answer of another instant is not.
    stale = next(each for each in reversed(history) if each.expected is None)
    end = max(each.end for each in history)
    assert not is_linearizable([*history, Operation(stale.table, end + 1, end + 2, START)], START)


# --- the checker ------------------------------------------------------------------------------------------------------


def _read(start: float, end: float, value: str) -> Operation:
    return Operation("t", start, end, value)


def _swap(start: float, end: float, expected: str, value: str, outcome: str = "ok") -> Operation:
    return Operation("t", start, end, value, expected, outcome)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([_swap(0, 1, "0", "1"), _read(2, 3, "1")], True),
        ([_swap(0, 1, "0", "1"), _read(2, 3, "0")], False),  # A stale read.
        ([_swap(0, 3, "0", "1"), _read(1, 2, "0")], True),  # The read overlaps.
        ([_swap(0, 9, "0", "1"), _read(1, 2, "1"), _read(3, 4, "0")], False),  # Seen, and then unseen.
        ([_swap(0, 2, "0", "1"), _swap(1, 3, "0", "2")], False),  # A lost update: both won.
        ([_swap(0, 2, "0", "1"), _swap(1, 3, "0", "2", "fail")], True),
        ([_swap(0, 1, "0", "1", "fail")], False),  # Nobody was faster.
        ([_swap(0, 1, "0", "1"), _swap(2, 3, "1", "0"), _swap(4, 5, "0", "2")], True),
        ([_swap(0, 1, "0", "1", "unknown"), _read(2, 3, "0"), _read(8, 9, "1")], True),  # It happened late.
        ([_swap(0, 1, "0", "1", "unknown"), _read(2, 3, "0"), _read(8, 9, "0")], True),  # It did not happen.
        ([_swap(0, 1, "0", "1", "unknown"), _read(2, 3, "1"), _read(8, 9, "0")], False),  # It happened, and did not.
        ([_read(0, 1, "1"), _swap(2, 3, "0", "1", "unknown")], False),  # Read before it was written.
    ],
)
def test_the_checker_knows_histories_that_cannot_be(history: list[Operation], expected: bool) -> None:
    assert is_linearizable(history, "0") is expected
    # Tables are judged apart: what is right on one does not make up for another.
    other = [replace(each, table="u") for each in history]
    assert is_linearizable([*history, *other, Operation("v", 0, 1, "0")], "0") is expected


_operations = st.builds(
    lambda start, length, value, expected, outcome: Operation("t", start, start + length, value, expected, outcome),
    st.integers(0, 8),
    st.integers(1, 5),
    st.sampled_from("012"),
    st.sampled_from([None, *"012"]),
    st.sampled_from(["ok", "fail", "unknown"]),
).map(lambda each: replace(each, outcome="ok") if each.expected is None else each)


@given(st.lists(_operations, max_size=5))
def test_the_checker_says_what_trying_every_order_says(history: list[Operation]) -> None:
    assert is_linearizable(history, "0") is _by_every_order(history)


def _by_every_order(history: list[Operation]) -> bool:
    unknown = [each for each in history if each.outcome == "unknown"]
    known = [each for each in history if each.outcome != "unknown"]
    for happened in product((False, True), repeat=len(unknown)):
        ran = [*known, *(each for each, did in zip(unknown, happened, strict=True) if did)]
        for order in permutations(ran):
            ends = [float("inf") if each.outcome == "unknown" else each.end for each in order]
            if any(ends[b] < order[a].start for a in range(len(order)) for b in range(a + 1, len(order))):
                continue
            state, holds = "0", True
            for each in order:
                if each.expected is None:
                    holds &= state == each.value
                elif each.outcome == "fail":
                    holds &= state != each.expected
                else:
                    holds &= state == each.expected
                    state = each.value
            if holds:
                return True
    return False


# --- connections that break -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_swap_whose_connection_is_cut_says_what_happened(engine: Engine, postgres_uri: str, when: str) -> None:
    proxy = CuttingProxy(_address(postgres_uri), **{when: 1.0})
    with proxy.serving() as port, _reader(_through(postgres_uri, port)) as reader, _reader(postgres_uri) as other:
        if when == "before":
            with pytest.raises(OperationsUnavailable):
                reader.compare_and_swap("ns.a", START, "file:/1")
            assert other.entry("ns.a").metadata_location == START
        else:
            entry = reader.compare_and_swap("ns.a", START, "file:/1")
            assert entry == other.entry("ns.a") and entry.metadata_location == "file:/1"
    assert proxy.cut[when] == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_swap_that_nobody_can_ask_about_is_unknown(engine: Engine, postgres_uri: str, when: str) -> None:
    proxy = CuttingProxy(_address(postgres_uri), **{when: 1.0}, down=1.0)  # type: ignore[arg-type]
    with proxy.serving() as port, _reader(_through(postgres_uri, port)) as reader, _reader(postgres_uri) as other:
        start = time.monotonic()
        with pytest.raises(CommitStateUnknown, match="metadata log"):
            reader.compare_and_swap("ns.a", START, "file:/1")
        unknown = Operation("ns.a", start, time.monotonic(), "file:/1", START, "unknown")
        at = other.entry("ns.a").metadata_location
        assert at == (START if when == "before" else "file:/1")
        after = time.monotonic()
        history = [unknown, Operation("ns.a", after, after + 1, at)]
        assert is_linearizable(history, START)
        # Taking it for a failure, or for a success, would be wrong in one of the two cases.
        assert is_linearizable([replace(unknown, outcome="ok"), history[1]], START) is (when == "after")


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_swapped_is_refused_and_changes_nothing(engine: Engine, postgres_uri: str) -> None:
    with _reader(postgres_uri) as reader:
        before = reader.pointers()
        for table, expected, new, error in (
            ("ns.none", START, "file:/1", NoSuchTable),
            ("none", START, "file:/1", BadInput),
            ("ns.a", START, START, BadInput),
            ("ns.a", START, "x" * 1001, BadInput),
            ("ns.a", START, "file:/\0", BadInput),
            ("ns.a", "file:/other", "file:/1", CommitConflict),
        ):
            with pytest.raises(error):
                reader.compare_and_swap(table, expected, new)
        assert reader.pointers() == before


def test_a_swap_does_not_pass_a_gate_or_a_guard(engine: Engine, postgres_uri: str) -> None:
    config = LifecycleConfig.model_validate(
        {
            "catalogs": {"live": {"name": "live", "uri": postgres_uri, "warehouse": "file:///w"}},
            "tables": {"ns.a": {"lineage": {"mode": "reject", "required": ["writer-id"]}}},
        }
    )
    install_gate(engine, "live", rules_of(config))
    summary = {"snapshot-id": "1", "operation": "append"}
    with _reader(postgres_uri) as reader:
        with pytest.raises(LineageRejected, match="writer-id"):
            reader.compare_and_swap("ns.a", START, "file:/1", [summary])
        assert reader.entry("ns.a").metadata_location == START
        reader.compare_and_swap("ns.a", START, "file:/1", [{**summary, "writer-id": "telemetry"}])
        assert reader.entry("ns.a").metadata_location == "file:/1"
    with engine.connect() as connection:
        # The pass was for that swap alone.
        assert connection.execute(text("SELECT count(*) FROM artemis_gate.passes")).scalar_one() == 0
        assert connection.execute(text("SELECT refused FROM artemis_gate.attempts")).scalars().all() == [True]
    ensure_guard(engine, "live", "another")
    with _reader(postgres_uri) as reader:
        with pytest.raises(Refused, match="only a handoff writes"):
            reader.compare_and_swap("ns.b", START, "file:/1")
        assert reader.entry("ns.b").metadata_location == START
    with engine.begin() as connection:
        lift_guard(connection, "live")


def test_a_catalog_that_moves_its_own_pointers_refuses(tmp_path: object) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, NestedField

    catalog = Catalog(name="o", type="in-memory", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    with CatalogReader(catalog) as reader:
        reader.create_namespace("ns")
        made = reader._source._catalog().create_table("ns.t", Schema(NestedField(1, "id", IntegerType())))  # type: ignore[attr-defined]
        with pytest.raises(Refused, match="not in SQL"):
            reader.compare_and_swap("ns.t", made.metadata_location, "file:/1")
        assert reader.entry("ns.t").metadata_location == made.metadata_location
