"""Measurement: collect results outside the system, compute latencies and resource usage, judge and search sustainable rates."""
