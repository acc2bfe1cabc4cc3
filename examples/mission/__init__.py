"""The demo: three tables of a mission with more than 400 days of history, the whole walk on them, and proofs.

Belongs here: the mission's rows, the history that Spark writes, debris of each origin, the run's proofs and its report.
Does not belong: any rule or step of the walk itself, or a shortcut around one.
"""
