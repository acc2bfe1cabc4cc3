"""Who wrote what, and why. Belongs here: what a commit's summary must say (`requirements`), the ledger that outlives
the snapshots (`ledger`), and the schemas that a table has had (`schema_history`). Does not belong: deciding what stays
(`retention/`), and anything that changes a table.
"""
