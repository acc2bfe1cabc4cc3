"""Physical deletion. Belongs here: the batches of a sealed file list, the last check before each batch is deleted, the
request rate, resuming from the journal, and the outcome of every file. Does not belong here: choosing which files may
be deleted (`expiration/`, `orphans/`), the journal's tables (`operations/`), or access to a store (`storage/`)."""
