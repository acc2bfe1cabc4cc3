"""One pool of connections for each test module's database. A Lifecycle opens engines of its own, for its catalogs and
its operations, so that a test made 25 connections: each costs a Postgres process, and each engine compiles every
statement again.

A shared pool does not ask Postgres before each use whether a connection still stands: that was a third of all that the
tests asked. A module that ends connections sets OWN_POOLS.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine

from artemis_lifecycle import postgres
from artemis_lifecycle.operations import database
from artemis_lifecycle_tests import lookups


@contextmanager
def sharing(uri: str) -> Iterator[None]:
    """Have all engines for `uri` with the same options use one pool, until the end of the block. Each engine keeps
    its own events; to dispose of it leaves the pool to the others."""
    make, pools = postgres.engine_for, dict[str, Engine]()

    def engine_for(url: Any, **options: Any) -> Engine:
        if url.render_as_string(hide_password=False) != uri:
            return make(url, **options)
        key = repr(sorted(options.items()))
        if key not in pools:
            pools[key] = lookups.compile_once(make(url, **{**options, "pool_pre_ping": False}))
        first = pools[key]
        # An engine of its own. One by `execution_options` asks the first for its events in each statement: a tenth.
        engine = Engine(first.pool, first.dialect, first.url, execution_options=first.get_execution_options())
        engine.dispose = lambda close=True: None  # type: ignore[method-assign]
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "engine_for", engine_for)
        try:
            yield
        finally:
            for engine in pools.values():
                engine.dispose()
