"""Unaligned reads and writes at an address, searches 8 bytes at a time, and the validation of UTF-8.

`jit` is numba's decorator with the cache of a function bound to all modules of this package: numba itself compiles a function
again only when the module of that function changed, not when one that it calls did.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic


def _stamp_modules():
    status = [path.stat() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return max(entry.st_mtime for entry in status), sum(entry.st_size for entry in status)


_MODULES_STAMP = _stamp_modules()


def inner(function):
    """Compile a function that only other compiled functions call, as a part of these: it has no wrapper and no cache."""
    options = {"nogil": True, "boundscheck": False, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(**options)(function)


def jit(function):
    """Compile a function on its first call; cached on disk until any module of the package changes."""
    compiled = njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")(function)
    compiled._cache._cache_file._source_stamp = _MODULES_STAMP
    return compiled


@intrinsic
def load_word(_context, address):
    """Return the 8 bytes at an address as an unsigned little-endian number."""
    if not isinstance(address, types.Integer):
        return None

    def generate(_context, builder, _signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(types.int64), generate


@intrinsic
def load_byte(_context, address):
    """Return the byte at an address as a signed number of 0 … 255."""
    if not isinstance(address, types.Integer):
        return None

    def generate(_context, builder, _signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer, align=1), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def load_int(_context, address):
    """Return the 8 bytes at an address as a signed number."""
    if not isinstance(address, types.Integer):
        return None

    def generate(_context, builder, _signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.int64(types.int64), generate


def _point_to_item(builder, record, item):
    word = ir.IntType(64)
    address = builder.add(record, builder.mul(item, ir.Constant(word, 8)))
    return builder.inttoptr(address, word.as_pointer())


@intrinsic
def get(_context, record, item):
    """Return an item of a record of numbers. As a function it would be compiled for each item that is a constant."""
    if not isinstance(record, types.Integer) or not isinstance(item, types.Integer):
        return None

    def generate(_context, builder, _signature, arguments):
        return builder.load(_point_to_item(builder, *arguments), align=1)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def put(_context, record, item, value):
    """Set an item of a record of numbers."""
    if not all(isinstance(kind, types.Integer) for kind in (record, item, value)):
        return None

    def generate(_context, builder, _signature, arguments):
        builder.store(arguments[2], _point_to_item(builder, arguments[0], arguments[1]), align=1)
        return _context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def store_word(_context, address, word):
    """Write 8 bytes at an address."""
    if not isinstance(address, types.Integer) or not isinstance(word, types.Integer):
        return None

    def generate(_context, builder, _signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store(arguments[1], pointer, align=1)
        return _context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@intrinsic
def store_byte(_context, address, value):
    """Write the low 8 bits of a number at an address."""
    if not isinstance(address, types.Integer) or not isinstance(value, types.Integer):
        return None

    def generate(_context, builder, _signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        builder.store(builder.trunc(arguments[1], ir.IntType(8)), pointer, align=1)
        return _context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def bits_of_double(_context, value):
    """Return the bits of a double as a signed number."""
    if not isinstance(value, types.Float):
        return None

    def generate(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def double_of_bits(_context, bits):
    """Return the double with the given bits."""
    if not isinstance(bits, types.Integer):
        return None

    def generate(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def float_of_bits(_context, bits):
    """Return the double that equals the single-precision number in the low 32 bits of a number."""
    if not isinstance(bits, types.Integer):
        return None

    def generate(_context, builder, _signature, arguments):
        low = builder.trunc(arguments[0], ir.IntType(32))
        return builder.fpext(builder.bitcast(low, ir.FloatType()), ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def multiply_high(_context, left, right):
    """Return the upper 64 bits of the product of two unsigned numbers."""
    if not isinstance(left, types.Integer) or not isinstance(right, types.Integer):
        return None

    def generate(_context, builder, _signature, arguments):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@inner
def first_byte(marks):
    """Return the index of the lowest byte that is marked by its high bit."""
    return np.int64(trailing_zeros(marks)) >> 3


@inner
def mark_special(word):
    """Mark the first byte of a word that ends the plain part of a JSON text: a quote, a backslash or a control character."""
    quotes, slashes = word ^ _QUOTES, word ^ _BACKSLASHES
    return (((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes) | ((word - _SPACES) & ~word)) & _HIGHS


@inner
def equal_bytes(left, right, size):
    """Return whether `size` bytes at two addresses are equal; both may be read up to 7 bytes further."""
    while size >= 8:
        if load_word(left) != load_word(right):
            return False
        left, right, size = left + 8, right + 8, size - 8
    if size == 0:
        return True
    return ((load_word(left) ^ load_word(right)) << np.uint64(64 - 8 * size)) == _ZERO


@inner
def copy_bytes(target, source, size):
    """Copy bytes in words; up to 7 bytes after the target are overwritten and as many after the source are read."""
    end = source + size
    while source < end:
        store_word(target, load_word(source))
        target, source = target + 8, source + 8


@jit
def is_ascii(at, end):
    """Return whether no byte of a range has its high bit set."""
    while at + 8 <= end:
        if load_word(at) & _HIGHS != _ZERO:
            return False
        at += 8
    while at < end:
        if load_byte(at) >= 0x80:
            return False
        at += 1
    return True


@inner
def is_utf8(at, end):
    """Return whether a range is valid UTF-8: no overlong form, no surrogate, nothing above U+10FFFF, nothing cut off."""
    while at < end:
        if at + 8 <= end and load_word(at) & _HIGHS == _ZERO:
            at += 8
            continue
        first = load_byte(at)
        if first < 0x80:
            at += 1
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        if at + size > end:
            return False
        second = load_byte(at + 1)
        low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        high = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        if second < low or second > high:
            return False
        for i in range(2, size):
            if load_byte(at + i) & 0xC0 != 0x80:
                return False
        at += size
    return True
