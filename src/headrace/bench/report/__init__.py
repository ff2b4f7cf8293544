"""Write the benchmark report: a single HTML page, built from the result document alone, that needs no network.

`groups` combines repeats and determines which runs are compared; `plots` formats numbers and builds the parts that all figures
share; `throughput`, `latency` and `timeline` build the figures, `summary` the table and `page` the whole page. A system has the
same colour in all figures, and every figure comes with a table of its numbers. A failed run is shown with its reason and
without numbers.
"""

from headrace.bench.report.page import write_report

__all__ = ["write_report"]
