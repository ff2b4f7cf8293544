"""What ALL live queries mean together: pure functions from a set of live queries to shared operators.

`changelog` applies additions and removals, `shared_plan` gives the plan of one stream for one epoch, `selection` finds
cells that stand for query-sets, `grouping` decides by cost who shares a selection and in which layout, `slicing` cuts
event time, `aggregation` says what is kept of rows, `explain` tells people. Equal sets of queries give equal plans,
whatever the order in which they came. No I/O, no clock, no Spark, no SQL: what is decided here can be tested as text.
"""
