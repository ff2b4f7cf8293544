"""Numbers and times in text. What these loops do not decide exactly is deferred: Python converts it, as one of few.

A scanned number is mantissa · 10^exponent. Text ends at a byte that does not belong to it; no loop knows the end of a message.
"""

from __future__ import annotations

import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros

from headrace.connectors.message_formats.kernels.memory import double_of_bits, inner, load_byte, load_word, multiply_high

NEGATIVE, FRACTIONAL, LONG = 1, 2, 4  # flags of a number; LONG: more digits than the mantissa holds
NO_LIMIT = 1 << 62
_MAX_DIGITS = 19  # that fit into 64 bits
_ZERO, _ONE, _TEN = np.uint64(0), np.uint64(1), np.uint64(10)
_LOW_BITS = np.uint64(0x1FF)
_ALL_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
SMALLEST_POWER, LARGEST_POWER = -325, 308

EXACT_POWERS = np.array([10.0**i for i in range(23)])
INTEGER_POWERS = np.array([10**i for i in range(19)], np.int64)


def make_powers_of_five() -> np.ndarray:
    """Return the upper 128 bits, as two words, of 5^q for each q from SMALLEST_POWER to LARGEST_POWER, cut off."""
    words = []
    for q in range(SMALLEST_POWER, LARGEST_POWER + 1):
        value = 5**q if q >= 0 else (1 << (128 + 3 * -q)) // 5**-q
        shift = value.bit_length() - 128
        value = value >> shift if shift >= 0 else value << -shift
        words += [value >> 64, value & (2**64 - 1)]
    return np.array(words, np.uint64)


@inner
def scan_number(at, limit):
    """Return end, mantissa, exponent and flags of the JSON number at an address; an end of 0 for anything else.

    It ends at the limit at the latest; NO_LIMIT is for numbers in a text that goes on behind them.
    """
    flags = 0
    if load_byte(at) == 45:  # -
        flags, at = NEGATIVE, at + 1
    first, mantissa = at, _ZERO
    digit = load_byte(at) - 48
    while at < limit and 0 <= digit <= 9:
        mantissa = mantissa * _TEN + np.uint64(digit)
        at += 1
        digit = load_byte(at) - 48
    digits = at - first
    if digits == 0 or (digits > 1 and load_byte(first) == 48):
        return 0, _ZERO, 0, 0
    exponent = 0
    if at < limit and digit == -2:  # .
        at += 1
        first = at
        digit = load_byte(at) - 48
        while at < limit and 0 <= digit <= 9:
            mantissa = mantissa * _TEN + np.uint64(digit)
            at += 1
            digit = load_byte(at) - 48
        if at == first:
            return 0, _ZERO, 0, 0
        digits += at - first
        exponent = first - at
        flags |= FRACTIONAL
    if at < limit and (digit == 21 or digit == 53):  # E, e
        at += 1
        sign = load_byte(at)
        if sign == 43 or sign == 45:
            at += 1
        first, power = at, 0
        digit = load_byte(at) - 48
        while at < limit and 0 <= digit <= 9:
            power = min(power * 10 + digit, 100000)
            at += 1
            digit = load_byte(at) - 48
        if at == first:
            return 0, _ZERO, 0, 0
        exponent += -power if sign == 45 else power
        flags |= FRACTIONAL
    if digits > _MAX_DIGITS:
        flags |= LONG
    return at, mantissa, exponent, flags


@inner
def to_double(mantissa, exponent, flags, powers):
    """Return whether a number has a nearest double that is found here, and this double.

    The multiplication of Eisel and Lemire: the mantissa times 128 bits of the power of five, unless the digits cut off could
    change the rounding.
    """
    if flags & LONG:
        return False, 0.0
    if mantissa < np.uint64(1 << 53) and -22 <= exponent <= 22:
        value = float(mantissa)
        value = value / EXACT_POWERS[-exponent] if exponent < 0 else value * EXACT_POWERS[exponent]
        return True, -value if flags & NEGATIVE else value
    if mantissa == _ZERO:
        return True, -0.0 if flags & NEGATIVE else 0.0
    if exponent < SMALLEST_POWER or exponent > LARGEST_POWER:
        return False, 0.0
    shift = np.int64(leading_zeros(mantissa))
    word = mantissa << np.uint64(shift)
    place = 16 * (exponent - SMALLEST_POWER)
    high, low = multiply_high(word, load_word(powers + place)), word * load_word(powers + place)
    if high & _LOW_BITS == _LOW_BITS and low + word < low:
        middle = low + multiply_high(word, load_word(powers + place + 8))
        last = word * load_word(powers + place + 8)
        if middle < low:
            high += _ONE
        if middle == _ALL_ONES and high & _LOW_BITS == _LOW_BITS and last + word < last:
            return False, 0.0
        low = middle
    top = np.int64(high >> np.uint64(63))
    bits = high >> np.uint64(top + 9)
    if low == _ZERO and high & _LOW_BITS == _ZERO and bits & np.uint64(3) == _ONE:
        return False, 0.0  # halfway between two doubles
    bits = (bits + (bits & _ONE)) >> _ONE
    binary = ((217706 * exponent) >> 16) + 1024 + 63 - shift - (1 - top)
    if bits >= np.uint64(1 << 53):
        bits, binary = np.uint64(1 << 52), binary + 1
    if binary < 1 or binary > 2046:
        return False, 0.0
    value = double_of_bits(np.int64(bits & np.uint64((1 << 52) - 1)) | (np.int64(binary) << 52))
    return True, -value if flags & NEGATIVE else value


@inner
def to_scaled(mantissa, exponent, flags, scale, floors):
    """Return a status and the integer number · 10^scale: 1 if it is exact, 2 if it must be deferred, 0 if digits would be lost.

    With `floors`, the number is rounded down instead.
    """
    power = exponent + scale
    if flags & LONG or mantissa > np.uint64((1 << 63) - 1) or (power < -18 and mantissa >= np.uint64(10**18)):
        return 2, 0
    value = np.int64(mantissa)
    if value == 0:
        return 1, 0
    if power >= 0:
        if power > 18 or value > (10**18 - 1) // INTEGER_POWERS[power]:
            return 2, 0
        value *= INTEGER_POWERS[power]
        return 1, -value if flags & NEGATIVE else value
    divisor = INTEGER_POWERS[min(-power, 18)]
    if flags & NEGATIVE:
        value = -value
    quotient = value // divisor
    if not floors and quotient * divisor != value:
        return 0, 0
    return 1, quotient


@inner
def _two_digits(at):
    """Return the number of two digits, or −1."""
    tens, ones = load_byte(at) - 48, load_byte(at + 1) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return -1
    return tens * 10 + ones


@inner
def parse_date(at):
    """Return whether `YYYY-MM-DD` at an address is a day of the years 1 … 9999, and its number counted from 1970-01-01."""
    century, rest, month, day = _two_digits(at), _two_digits(at + 2), _two_digits(at + 5), _two_digits(at + 8)
    if century < 0 or rest < 0 or month < 1 or month > 12 or day < 1 or load_byte(at + 4) != 45 or load_byte(at + 7) != 45:
        return False, 0
    year = century * 100 + rest
    longest = 31
    if month == 2:
        longest = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    elif month == 4 or month == 6 or month == 9 or month == 11:
        longest = 30
    if day > longest or year == 0:
        return False, 0
    shifted = year if month > 2 else year - 1  # years begin in March
    month_days = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5
    return True, shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + month_days + day - 719469


@inner
def parse_timestamp(at, end):
    """Return whether ISO-8601 text in the usual forms is a time, and its microseconds since 1970, UTC if it has no offset.

    The forms: date; date and `T` or a blank and HH:MM[:SS[.digits]], with nothing, `Z` or ±HH[[:]MM] after it. Digits after the
    sixth are cut off.
    """
    if end - at < 10:
        return False, 0
    is_date, days = parse_date(at)
    if not is_date:
        return False, 0
    if end - at == 10:
        return True, days * 86_400_000_000
    at += 10
    if end - at < 6 or (load_byte(at) != 84 and load_byte(at) != 32) or load_byte(at + 3) != 58:
        return False, 0
    hour, minute, second = _two_digits(at + 1), _two_digits(at + 4), 0
    at += 6
    if hour < 0 or hour > 23 or minute < 0 or minute > 59:
        return False, 0
    micros = 0
    if at < end and load_byte(at) == 58:
        second = _two_digits(at + 1)
        at += 3
        if at > end or second < 0 or second > 59:
            return False, 0
        if at < end and load_byte(at) == 46:
            at += 1
            first, unit = at, 100_000
            digit = load_byte(at) - 48
            while at < end and 0 <= digit <= 9:
                micros += digit * unit
                unit //= 10
                at += 1
                digit = load_byte(at) - 48
            if at == first:
                return False, 0
    total = ((days * 24 + hour) * 60 + minute) * 60 + second
    if at < end:
        is_zone, offset = _parse_zone(at, end)
        if not is_zone:
            return False, 0
        total -= offset
        if total < -62135596800 or total >= 253402300800:
            return False, 0
    return True, total * 1_000_000 + micros


@inner
def _parse_zone(at, end):
    """Return whether the rest of a time is an offset, and its seconds."""
    sign = load_byte(at)
    if sign == 90:
        return end - at == 1, 0
    if sign != 43 and sign != 45:
        return False, 0
    hours, minutes = _two_digits(at + 1), 0
    if end - at == 6 and load_byte(at + 3) == 58:
        minutes = _two_digits(at + 4)
    elif end - at == 5:
        minutes = _two_digits(at + 3)
    elif end - at != 3:
        return False, 0
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return False, 0
    seconds = hours * 3600 + minutes * 60
    return True, -seconds if sign == 45 else seconds
