"""The instructions of a scan, separate from the compiled loop, so that compiling a schema does not load numba."""

from __future__ import annotations

END, SKIP_LONG, SKIP_FIXED, SKIP_BYTES, UNION, JUMP, BLOCKS, NEXT, TAKE_LONG, TAKE_BYTES, SKIP_PAIRS = range(11)
TAKE_FIXED, TAKE_PAIRS, MARK, END_MARK = range(11, 15)
"""Instructions, each with two operands. SKIP_FIXED: bytes. UNION: first of its branches in the table of targets, number
of branches. JUMP: target. BLOCKS (an array or map begins): target after it. NEXT: the first instruction of the item;
the one after BLOCKS's target. TAKE_LONG, TAKE_BYTES: the column. SKIP_PAIRS (an array of two numbers, or of a number
and bytes, as nearly all of a manifest is): 1 for bytes.

TAKE_FIXED: the column, bytes. TAKE_PAIRS (an array of pairs, of which some keys are taken): 1 for bytes; where in the
table of targets the number of keys is, followed by each key and its column. MARK, END_MARK: the column that gets what
is between them, as it is encoded."""


MAX_EMPTY = 1 << 16
"""Maximum zero-byte items in one file, in addition to one for each of its bytes: nothing else limits how many it may
claim."""
