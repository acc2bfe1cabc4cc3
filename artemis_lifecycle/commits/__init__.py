"""Writes that state their lineage, and the gates that refuse others: in a catalog's database (`gate`), and before a
REST catalog (`proxy`). Does not belong here: the requirements (`contracts/`), and the walk's own commits.
"""
