"""Measurements: a number is a ratio, taken in one run, on one machine, over the same rows.

`workload` makes rows and queries from a seed, `sut` holds the systems under test – each is timed from outside, through
its public interface –, `scaling` puts them together. A run that fails gives no number.
"""
