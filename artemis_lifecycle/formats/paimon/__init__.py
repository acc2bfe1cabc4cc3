"""Apache Paimon tables: their snapshots, tags, branches, changelogs and consumers, the files that these reach, and the
changes of Paimon's own maintenance. Source: Paimon 1.4's Java.

Belongs here: the format, what is kept and what goes, and the commit that removes snapshots, tags and changelogs. Does
not belong here: deleting files (`deletion/`), whether a file may go (`protection/`), and which tables there are.
"""
