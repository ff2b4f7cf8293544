"""The MultiStream operator at work: rows of every relation are stored, and probe the stores of the others step by step.

`tuples` are rows on their way, `stored` rows that wait for partners, `probing` finds the partners, `sending` says who must
get what, and `operator` is what one partition does at one level of a micro-batch. `arriving` is the part of stage one.
"""
