"""How joins of many streams are worked off: rows of each relation probe the stores of the others, in an order of their own.

A *relation* is an input, or a join of inputs whose result is kept in a store of its own. A *probe order* says, for the rows
of one relation, which stores they and the rows made of them visit. The optimizers here choose orders, the joins worth
keeping, and the attribute by which each store is partitioned; they know relations, predicates and figures, nothing else.
"""
