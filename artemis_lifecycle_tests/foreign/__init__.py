"""Others at work on the same tables: the lifecycle takes nothing away that they left readable."""
