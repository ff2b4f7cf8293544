"""Run the scenarios on back-ends: python -m conformance [--sample] [--examples N] [--only TEXT] [--report FILE] [ENGINE …]

Each back-end is run by a process of its own, because a process has one Spark. The exit code is 1 if a scenario failed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

import pyspark

from conformance.engines import ENGINES
from conformance.processes import run_process
from conformance.run import run_engine
from conformance.scenarios import SAMPLE_EXAMPLES

ALL_EXAMPLES = 10


def main() -> int:
    """Run the scenarios and print a line for each."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that processes that were started are ended
    options = parse_arguments()
    if len(options.engines) == 1 and options.report:
        report = run_engine(options.engines[0], sample=options.sample, examples=options.examples, only=options.only)
        options.report.write_text(json.dumps(report))
        return 1 if any(entry["error"] for entry in report.values()) else 0
    print(f"pyspark {pyspark.__version__}")
    failed = 0
    for engine in options.engines:
        with tempfile.TemporaryDirectory() as folder:
            report = run_process(engine, Path(folder), sample=options.sample, examples=options.examples, only=options.only)
        errors = {name: entry["error"] for name, entry in report.items() if entry["error"]}
        seconds = sum(entry["seconds"] for entry in report.values())
        print(f"{engine}: {len(report) - len(errors)} of {len(report)} scenarios passed, {seconds:.0f} s")
        for name, error in errors.items():
            print(f"\n{engine}: {name}\n{error}")
        failed += len(errors)
    return 1 if failed else 0


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(ENGINES)}; default: all")
    parser.add_argument("--sample", action="store_true", help="the scenarios that run on Spark with every change")
    parser.add_argument("--examples", type=int, help=f"of each kind of drawn scenario; default: {ALL_EXAMPLES}")
    parser.add_argument("--only", default="", help="the scenarios whose name has this text")
    parser.add_argument("--report", type=Path, help="with one engine: run it in this process, and write a report in JSON")
    options = parser.parse_args()
    options.examples = options.examples or (SAMPLE_EXAMPLES if options.sample else ALL_EXAMPLES)
    options.engines = options.engines or list(ENGINES)
    if unknown := set(options.engines) - set(ENGINES):
        parser.error(f"unknown engines: {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
