"""What is wrong with a configuration and with all that it names, in one pass. Belongs here: checks that write nothing
(without a probe that is asked for), and how to fix what they find. Does not belong: any step of the walk.

`diagnosis` has the order, `services` the checks and what they return.
"""
