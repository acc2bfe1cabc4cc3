"""The lineage gate in the database of a SQL catalog: no engine moves a gated table's pointer without a pass.

The gate's schema is `artemis_gate`. `rules` has what lifecycle.yaml requires of each table. `request_pass` evaluates
the summaries of a commit's new snapshots against them, and grants a pass for exactly one swap, or returns the problems.
A trigger on `iceberg_tables` lets a gated table's row change only with a pass, which the swap consumes. So an engine
that never heard of this project is refused, too. The owner of the database can remove the trigger, and a login that may
request passes can state a false lineage: the gate stops accidents and unaware writers, not forgery.

`rules` turns lifecycle.yaml into rules, `statements` has the functions, `installation` enables, disables and inspects
the gate, and `passes` is what a Python client of the catalog calls.
"""
