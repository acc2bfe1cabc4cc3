from __future__ import annotations

from artemis_lifecycle_tests.deletion.fixtures import world as world
