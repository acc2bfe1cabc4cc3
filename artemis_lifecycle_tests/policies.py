"""Policies by which everything is due at once: what tests of more than one room walk under."""

from __future__ import annotations

from typing import Any

AT_ONCE: dict[str, Any] = {
    "retention": {"window": "1ms"},
    "deletion": {"grace": "0s"},
    "orphans": {"min_age": "1ms", "min_age_floor": "1ms", "max_share": 1},
}
"""Every snapshot but the current one expires; its files, and orphans, may be deleted without a wait."""

AND_ARCHIVED: dict[str, Any] = {**AT_ONCE, "cold_tier": {"retain": "1ms"}}
"""And what is in the cold tier is past its retention there."""

WITHOUT_COLD: dict[str, Any] = {**AT_ONCE, "cold_tier": {"enabled": False}}
"""And nothing is archived."""
