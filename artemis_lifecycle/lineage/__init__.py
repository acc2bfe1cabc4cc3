"""Who wrote what, and why. Belongs here: the ledger that outlives the snapshots (`ledger`), and the schemas that a
table has had (`schema_history`). Does not belong: what a commit must record (`contracts/`), deciding what stays
(`retention/`), and anything that changes a table.
"""
