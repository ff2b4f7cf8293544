"""Systems under test: each takes the same rows and the same queries, and is timed from outside."""
