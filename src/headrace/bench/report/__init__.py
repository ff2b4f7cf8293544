"""The report: one HTML page, made of nothing but the result document, that works without a network.

`groups` puts repeats together and says what is compared with what, `words` spells numbers, `plots` is what all figures
share; `throughput`, `latency` and `course` are the figures, `summary` the table, `page` the whole. Colours belong to
systems, not to figures; beside every figure stand its numbers. A run that failed is shown with its reason and no number.
"""

from headrace.bench.report.page import write_report

__all__ = ["write_report"]
