"""The meaning of a single query: the value between SQL and all later steps.

A logical query is flat – one branch for each stream it reads – and fully typed: the binder has resolved every name and
inserted every cast. The oracle executes it as it is; the planner (`planner`) combines many of them into a shared plan. This
package is independent of other live queries, of SQL text, and of engines.
"""
