"""What Dagster sees: assets, checks, partitions, resources, jobs, schedules, sensors.

Belongs here: naming, order, metadata for people, and one call of `Lifecycle` per asset. Does not belong: how a step
does its work, or any rule about what may be deleted. Nothing below this room imports dagster. Dagster reads annotations
at run time, so `from __future__ import annotations` stays out of this room.
"""
