"""The planner: pure functions from the set of all live queries to shared operators.

`changelog` applies additions and removals, `shared_plan` builds the plan of one stream for one epoch, `predicate_index` maps rows
to cells that stand for query-sets, `operator_grouping` decides by cost which queries share a selection and in which cell layout,
`slicing` cuts event time into slices, `components` derives the partial aggregates to keep, `join` plans joins, `explain` renders
plans. Equal sets of queries give equal plans, regardless of the order of their arrival. No I/O, no clock, no Spark, no SQL: every
decision can be tested as a value.
"""
