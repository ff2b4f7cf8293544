"""Format numbers for readers: three significant digits and a unit."""

from __future__ import annotations

import math

from headrace.bench.confidence import ConfidenceInterval

NO_VALUE = "–"
_SI_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def format_number(value: float) -> str:
    """Return a number with three significant digits and without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = abs(float(f"{value:.3g}"))  # otherwise 99.96 would get four digits
    decimals = max(0, 2 - math.floor(math.log10(rounded)))
    return f"{value:,.{decimals}f}"


def format_scaled(value: float) -> str:
    """Return a number with a prefix: k, M or G."""
    unit, letter = _choose_prefix(value)
    return f"{format_number(value / unit)} {letter}".strip()


def _choose_prefix(value: float) -> tuple[float, str]:
    return next(((unit, letter) for unit, letter in _SI_PREFIXES if abs(value) >= unit * 0.9995), (1.0, ""))


def format_seconds(value: float | None) -> str:
    """Return a duration, in milliseconds below one second."""
    if value is None:
        return NO_VALUE
    return f"{format_number(value)} s" if value >= 0.9995 else f"{format_number(value * 1000)} ms"


def format_rate(value: ConfidenceInterval | None) -> str:
    """Return a rate in rows/s with its confidence interval, both with the same prefix and number of decimals."""
    if value is None:
        return NO_VALUE
    if value.half_width is None:
        return format_scaled(value.mean)
    unit, letter = _choose_prefix(value.mean)
    mean = format_number(value.mean / unit)
    decimals = len(mean.partition(".")[2])
    return f"{mean} ± {value.half_width / unit:,.{decimals}f} {letter}".strip()


def format_bytes(value: float) -> str:
    """Return a number of bytes in MiB or GiB."""
    return f"{format_number(value / 2**30)} GiB" if value >= 2**30 else f"{format_number(value / 2**20)} MiB"


def format_ratio(value: float) -> str:
    """Return a ratio with the sign ×."""
    return f"{format_number(value) if value < 100 else f'{value:,.0f}'} ×"


def format_percent(share: float) -> str:
    """Return a share in percent."""
    return f"{share * 100:.0f} %"
