"""What a commit must record about itself. Pure rules: a snapshot's summary and a table's requirements in, problems out.

`summary` has the keys and their typed form, `requirements` the rules of one table and their evaluation. Rooms that
commit import them. Does not belong here: reading a catalog, storing what was refused, and the ledger (`audit/`).
"""

from artemis_lifecycle.contracts.requirements import LineageRequirements, lineage_problems, validate_lineage
from artemis_lifecycle.contracts.summary import CommitLineage, InputSnapshot

__all__ = ["CommitLineage", "InputSnapshot", "LineageRequirements", "lineage_problems", "validate_lineage"]
