"""The load driver: a process that generates rows from a seed, stamps them on schedule, and serves them to consumers that pull.

The driver never waits for its consumers. Rows that are due and not read accumulate in its queues, and their age counts as
latency.
"""
