from __future__ import annotations

from artemis_lifecycle_tests.deletion.fixtures import world as world
from artemis_lifecycle_tests.storage.conftest import s3 as s3
