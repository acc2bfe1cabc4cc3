"""Paimon tables, and Paimon itself as the oracle. Belongs here: what writes, reads and expires tables by Paimon's own
Java and Python, and the tests of this project's work on them."""
