"""Format numbers for readers: three significant digits and a unit."""

from __future__ import annotations

import math

from headrace.bench.confidence import ConfidenceInterval

NOTHING = "–"
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def digits(value: float) -> str:
    """Return a number with three significant digits and without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = abs(float(f"{value:.3g}"))  # otherwise 99.96 would get four digits
    decimals = max(0, 2 - math.floor(math.log10(rounded)))
    return f"{value:,.{decimals}f}"


def scaled(value: float) -> str:
    """Return a number with a prefix: k, M or G."""
    unit, letter = _scale(value)
    return f"{digits(value / unit)} {letter}".strip()


def _scale(value: float) -> tuple[float, str]:
    return next(((unit, letter) for unit, letter in _SCALES if abs(value) >= unit * 0.9995), (1.0, ""))


def seconds(value: float | None) -> str:
    """Return a duration, in milliseconds below one second."""
    if value is None:
        return NOTHING
    return f"{digits(value)} s" if value >= 0.9995 else f"{digits(value * 1000)} ms"


def rate(value: ConfidenceInterval | None) -> str:
    """Return a rate in rows/s with its confidence interval, both with the same prefix and number of decimals."""
    if value is None:
        return NOTHING
    if value.half_width is None:
        return scaled(value.mean)
    unit, letter = _scale(value.mean)
    mean = digits(value.mean / unit)
    decimals = len(mean.partition(".")[2])
    return f"{mean} ± {value.half_width / unit:,.{decimals}f} {letter}".strip()


def bytes_(value: float) -> str:
    """Return a number of bytes in MiB or GiB."""
    return f"{digits(value / 2**30)} GiB" if value >= 2**30 else f"{digits(value / 2**20)} MiB"


def times(value: float) -> str:
    """Return a ratio with the sign ×."""
    return f"{digits(value) if value < 100 else f'{value:,.0f}'} ×"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{share * 100:.0f} %"
