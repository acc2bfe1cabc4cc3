"""What a query's scan reads, and what upkeep would spare it: Iceberg's scan planning in three passes, counted.

Belongs here: predicates, pruning of manifests, files and row groups, the deletes that apply to a file, and what
maintenance would change. Does not belong here: reading metadata (`metadata/`), or doing the maintenance.

Story: `plan.py`. The result is what Iceberg's own planner selects, file for file.
"""
