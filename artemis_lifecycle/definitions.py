"""What Dagster loads: `defs`."""

from artemis_lifecycle.defs.build import build_definitions

defs = build_definitions()
