"""Who wrote what, and why: the ledger that outlives the snapshots, questions about it, the schemas of a table, and
which snapshot was current at any instant. Does not belong here: what a commit must record (`contracts/`), deciding
what stays (`retention/`), and anything that changes a table.
"""
