"""Physical deletion. Belongs here: the batches of a sealed list of files, the last look before each batch goes, pace,
resuming from the journal, the outcome of every file. Does not belong: choosing what may be deleted (`expiration/`,
`orphans/`), the journal's tables (`operations/`), or talking to a store (`storage/`).
"""
