"""The steps: plan, hand off, commit, delete, scan, restore. Belongs here: the order of each step across rooms, and its
record. Does not belong here: the rules, which stand in the rooms below.
"""
