from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus

MakePlan = Callable[..., PlanRecord]


@pytest.fixture(scope="module")
def operations(postgres_uri: str) -> Iterator[Operations]:
    with Operations.open(postgres_uri) as opened:
        yield opened


@pytest.fixture
def table_uuid() -> str:
    """A table that no other test knows."""
    return str(uuid4())


@pytest.fixture
def make_plan(table_uuid: str) -> MakePlan:
    """An open plan of the test's own table; any field may be given."""

    def make(plan_id: str | None = None, **fields: object) -> PlanRecord:
        plan_id = plan_id or uuid4().hex
        return PlanRecord(
            **{  # type: ignore[arg-type]
                "plan_id": plan_id,
                "content_id": plan_id,
                "table_uuid": table_uuid,
                "table": "space.debris",
                "status": PlanStatus.OPEN,
                "base_metadata_location": "file:/w/space/debris/metadata/00001-a.metadata.json",
                "files_location": f"file:/w/state/plans/{plan_id}/files",
                "rule": "as-of",
                "expired_snapshots": 2,
                "expired_refs": ("old", "older"),
                "files": 10,
                "bytes": 1_000,
                "summary": "{}",
                "planned_at": datetime(2026, 3, 1, tzinfo=UTC),
                **fields,
            }
        )

    return make
