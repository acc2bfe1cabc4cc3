from __future__ import annotations

from artemis_lifecycle_tests.protection.databases import databases

__all__ = ["databases"]
