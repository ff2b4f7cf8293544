"""The differences between the engine and Spark SQL that are intended, each with a rule that recognizes it and an example.

The document `docs/sql.md` lists them under the same names. A difference without a rule fails the judge, and so does a rule whose
example no longer differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from support.expression_judge import ERROR
from support.expression_probes import Probe

REJECTED = "rejected"
_JAVA_17_TEXTS = {
    1e23: ("1.0E23", "9.999999999999999E22"),
    1e-323: ("9.9E-324", "1.0E-323"),
    1.1754943508222875e-38: ("1.1754944E-38", "1.17549435E-38"),
    8589934592.0: ("8.589935E9", "8.5899346E9"),
}
_FAR_YEARS = ("32768", "0000-01-01", "10000-01-01", "-2024-01-01")
_INEXACT_FUNCTIONS = ("pow", "exp(x)", "ln(x)", "log2(x)", "log10(x)", "log")
_UNIT = Decimal("1E-38")


@dataclass(frozen=True, slots=True)
class Difference:
    """A row on which the answers differ: the values read, and the texts of both results; `kind` is the type of the engine's."""

    probe: Probe
    inputs: Mapping[str, object]
    kind: str
    engine: str | None
    spark: str | None

    def __str__(self) -> str:
        """Return expression, values and results."""
        return f"{self.probe.sql} of {dict(self.inputs)}: {self.engine} ({self.kind}), in Spark {self.spark}"

    def reads(self, *values: object) -> bool:
        """Tell whether one of the values is read."""
        return any(value in values for value in self.inputs.values() if value is not None)


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """The name of an intended difference, an expression that shows it, and the rule; `until_java` limits it to older versions."""

    name: str
    example: str
    explains: Callable[[Difference], bool]
    until_java: int = 1000


def _is_overflow(case: Difference) -> bool:
    return case.engine == ERROR and case.spark != REJECTED and (not case.kind.startswith("DECIMAL") or case.spark is None)


def _is_older_float_text(case: Difference) -> bool:
    texts = [_JAVA_17_TEXTS[value] for value in case.inputs.values() if isinstance(value, float) and value in _JAVA_17_TEXTS]
    if not texts or case.engine is None or case.spark is None:
        return False
    if case.probe.operator == "CAST" and case.kind == "STRING":
        return (case.engine, case.spark) == tuple(map(repr, texts[0]))
    return case.kind in ("STRING", "INT", "BOOLEAN") or (case.kind, case.spark) == ("DECIMAL(38,0)", "99999999999999990000000")


def _is_inexact_function(case: Difference) -> bool:
    if case.probe.operator not in _INEXACT_FUNCTIONS or None in (case.engine, case.spark):
        return False
    return math.isclose(float(str(case.engine)), float(str(case.spark)), rel_tol=1e-15)


def _is_comparison_of_null(case: Difference) -> bool:
    beyond_integers = len(case.probe.types) == 2 and case.probe.types[1] == "9" * 38
    return beyond_integers and None in case.inputs.values() and case.spark == str(case.probe.operator == "<")


def _is_exact_comparison(case: Difference) -> bool:
    compares = case.probe.operator in ("=", "<", ">=", "in") and case.probe.types == ("DECIMAL(38,38)", "0")
    return compares and case.reads(_UNIT, _UNIT.copy_negate())


def _is_beyond_34_digits(case: Difference) -> bool:
    if case.probe.operator == "TRY_CAST":
        return (case.engine, case.spark) in (("0", "1"), ("0", "-1")) and case.probe.types[0] == "DECIMAL(38,38)"
    is_affected = case.probe.operator in ("-x", "abs(x)", "negative(x)", "round") and case.probe.types[0].startswith(
        "DECIMAL(38,"
    )
    return is_affected and case.spark == REJECTED


def _is_wider_argument(case: Difference) -> bool:
    accepts = ("BIGINT" in case.probe.types and case.probe.operator in ("+", "-", "date_add", "date_sub")) or (
        case.probe.types == ("DATE",) and case.probe.operator == "unix_seconds(x)"
    )
    return accepts and case.spark == REJECTED


KNOWN_DIFFERENCES = (
    KnownDifference("overflow", "a_int + b_int", _is_overflow),
    KnownDifference("text of floats", "CAST(u_double AS STRING)", _is_older_float_text, until_java=19),
    KnownDifference("last digit of functions", "exp(u_int)", _is_inexact_function),
    KnownDifference("NULL beside a large constant", f"u_int < {'9' * 38}", _is_comparison_of_null),
    KnownDifference("comparison with a constant", "u_dec38_38 = 0", _is_exact_comparison),
    KnownDifference("years", "CAST(u_text AS DATE)", lambda case: case.engine is None and case.reads(*_FAR_YEARS)),
    KnownDifference(
        "time without a date", "CAST(u_text AS TIMESTAMP)", lambda case: case.engine is None and case.reads("12:34:56")
    ),
    KnownDifference(
        "names of zones",
        "CAST(u_text AS TIMESTAMP)",
        lambda case: (
            (case.engine, case.spark) == (None, "1709206496100000 us") and case.reads("2024-02-29 12:34:56.1 Europe/Berlin")
        ),
    ),
    KnownDifference("more than 34 digits", "-u_dec38_0", _is_beyond_34_digits),
    KnownDifference(
        "TRY_CAST of 2^63",
        "TRY_CAST(u_double AS BIGINT)",
        lambda case: (case.engine, case.spark) == (None, "9223372036854775807") and case.reads(2.0**63),
    ),
    KnownDifference("more argument types", "date_add(a_date, b_big)", _is_wider_argument),
)
