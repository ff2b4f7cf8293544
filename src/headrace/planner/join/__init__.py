"""Planner of joins: window joins (AJoin), and sliding joins by probe orders, state stores and join trees (CLASH).

In a sliding join, new rows of each relation probe the state stores of the others, in an order of their own. A *relation* is an
input, or a materialized join of inputs with a state store of its own. A *probe order* lists the stores that the rows of one
relation, and the rows joined from them, visit. The optimizers choose probe orders, the joins worth materializing, and the
attribute that partitions each store; they know only relations, predicates and cardinalities.
"""
