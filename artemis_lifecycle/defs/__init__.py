"""What Dagster sees: assets, checks, partitions, resources, jobs, schedules and sensors.

Belongs here: names, order, metadata for people, and one call of `Lifecycle` per asset. Does not belong here: how a step
does its work, or any rule about what may be deleted. No room below this one imports dagster. Dagster reads annotations
at run time, so no module in this room uses `from __future__ import annotations`.
"""
