"""What ONE query means, whatever else is live: the value that stands between SQL and everything after it.

A logical query is flat – one branch for each stream it reads – and fully typed: the binder has resolved every name and
inserted every cast. The oracle executes it as it stands; the planner (`sharing`) puts many of them together. Nothing here
knows about other queries, text, or engines.
"""
