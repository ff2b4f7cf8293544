"""The decoder of Avro's binary encoding: a program for each schema of a writer, run once for each message.

An instruction is a record that begins as that of a column, so that a value is read and stored by one of them:

    OP ARGUMENT JUMP             what it reads, its size or count, and the instruction that follows if it does not just go on
    NUMBER                       the column, for rejects

A value of a union is read by the instructions of its branch, between BRANCH and GO. The items of an array or a map are read in
blocks, between BLOCK and REPEAT. A type that contains itself is CALLed and ends with RETURN.
"""

from __future__ import annotations

import numpy as np

from headrace.connectors.message_formats.kernels.decoded import (
    BEHIND_MALFORMED,
    DECIMAL,
    DOUBLE,
    EMPTY,
    FLOAT,
    HIGH,
    KIND,
    LOW,
    MALFORMED,
    OUT_OF_RANGE,
    PRESENT,
    SCALE,
    SIZES,
    SKIP,
    STATES,
    TOO_DEEP,
    TRAILING,
    UNFIT_BRANCH,
    VALUES,
    store_text,
    store_value,
)
from headrace.connectors.message_formats.kernels.memory import (
    bits_of_double,
    double_of_bits,
    float_of_bits,
    get,
    inner,
    jit,
    load_byte,
    load_int,
    put,
    store_byte,
)
from headrace.connectors.message_formats.kernels.text_values import store_plain_text

OP, ARGUMENT, JUMP, NUMBER = range(7, 11)
WIDTH = 12
STOP, VARINT, FLOAT_BITS, DOUBLE_BITS, ONE_BYTE, BYTES, FIXED, SYMBOL, BRANCH, GO, BLOCK, REPEAT, CALL, RETURN, UNFIT = range(15)
_BYTES = 8 * WIDTH
_MAX_DEPTH = 512
_LARGEST_EXACT = 1 << 53


@inner
def read_varint(at):
    """Return the end of a number of at most 64 bits in groups of 7, or 0, and the number with its sign in the lowest bit."""
    byte = load_byte(at)
    at += 1
    if byte < 128:
        return at, byte
    value, shift = np.uint64(byte & 127), 7
    while shift < 70:
        byte = load_byte(at)
        at += 1
        value |= np.uint64(byte & 127) << np.uint64(shift)
        if byte < 128:
            return (at if shift < 63 or byte < 2 else 0), np.int64(value)
        shift += 7
    return 0, 0


@inner
def unzigzag(value):
    """Return the signed number of one with its sign in the lowest bit."""
    return np.int64(np.uint64(value) >> np.uint64(1)) ^ -(value & 1)


@inner
def store_integer(record, row, value):
    """Store an integer as the column wants it; return 0, or the reason why it does not fit."""
    kind = get(record, KIND)
    if kind == DOUBLE or kind == FLOAT:
        store_value(record, row, bits_of_double(float(value)))
        return 0
    scale = get(record, SCALE)
    if scale > 1:
        product = value * scale
        if product // scale != value:
            return OUT_OF_RANGE
        value = product
    if value < get(record, LOW) or value > get(record, HIGH):
        return OUT_OF_RANGE
    store_value(record, row, value)
    if kind == DECIMAL:
        put(get(record, SIZES), row, value >> 63)
    return 0


@inner
def _store_decimal(record, row, at, size):
    """Store the signed big-endian number of a decimal; return 0, or the reason why it does not fit."""
    high, low = np.int64(0), np.uint64(0)
    if size > 0 and load_byte(at) >= 128:
        high, low = np.int64(-1), np.uint64(0xFFFFFFFFFFFFFFFF)
    sign = high
    for i in range(size):
        if i < size - 16:
            if load_byte(at + i) != sign & 255:
                return OUT_OF_RANGE
            continue
        high = (high << 8) | np.int64(low >> np.uint64(56))
        low = (low << np.uint64(8)) | np.uint64(load_byte(at + i))
    if size > 16 and (high < 0) != (sign < 0):
        return OUT_OF_RANGE
    put(get(record, VALUES), row, np.int64(low))
    put(get(record, SIZES), row, high)
    store_byte(get(record, STATES) + row, PRESENT)
    return 0


@inner
def _run(program, begin, end, row, stack):
    """Read a record; return why it is rejected, the column, and where; or 0, −1 and its size."""
    at, depth, step = begin, 0, program
    while True:
        op = get(step, OP)
        if op == STOP:
            return 0, -1, at - begin
        next_step, start, reason = step + _BYTES, at, 0
        value = 0
        if op == VARINT or op == BYTES or op == SYMBOL or op == BRANCH or op == BLOCK:
            at, value = read_varint(at)
            if at == 0 or at > end:
                return MALFORMED, -1, start - begin
            value = unzigzag(value)
        is_wanted = get(step, KIND) != SKIP
        if op == VARINT:
            if is_wanted:
                reason = store_integer(step, row, value)
        elif op == BYTES or op == FIXED:
            size = value if op == BYTES else get(step, ARGUMENT)
            if size < 0 or size > end - at:
                return MALFORMED, -1, start - begin
            if is_wanted:
                is_binary = get(step, ARGUMENT) != 0  # a decimal, not text
                reason = _store_decimal(step, row, at, size) if is_binary else store_plain_text(step, row, at, size)
            at += size
        elif op == BRANCH:
            if value < 0 or value >= get(step, ARGUMENT):
                return MALFORMED, -1, start - begin
            next_step = get(step + _BYTES * (1 + value), JUMP)
        elif op == GO:
            next_step = get(step, JUMP)
        elif op == DOUBLE_BITS or op == FLOAT_BITS:
            at += 8 if op == DOUBLE_BITS else 4
            if at > end:
                return MALFORMED, -1, start - begin
            if is_wanted:
                number = double_of_bits(load_int(start)) if op == DOUBLE_BITS else float_of_bits(load_int(start))
                store_value(step, row, bits_of_double(number))
        elif op == ONE_BYTE:
            value = load_byte(at)
            at += 1
            if value > 1 or at > end:
                return MALFORMED, -1, start - begin
            if is_wanted:
                store_value(step, row, value)
        elif op == SYMBOL:
            if value < 0 or value >= get(step, ARGUMENT):
                return MALFORMED, -1, start - begin
            if is_wanted:
                symbol = get(step, JUMP) + 16 * value
                store_text(step, row, get(symbol, 0), get(symbol, 1), PRESENT)
        elif op == BLOCK:
            if value < 0:
                at, size = read_varint(at)
                if at == 0 or at > end:
                    return MALFORMED, -1, start - begin
                size = unzigzag(size)
                if size < 0 or size > end - at:
                    return MALFORMED, -1, start - begin
                at += size
                next_step = step
            elif value == 0:
                next_step = get(step, JUMP)
            elif get(step, ARGUMENT) == 0:  # items without bytes
                next_step = step
            elif value > end - at:
                return MALFORMED, -1, start - begin
            else:
                if depth >= _MAX_DEPTH:
                    return TOO_DEEP, -1, start - begin
                put(stack, depth, value)
                depth += 1
        elif op == REPEAT:
            value = get(stack, depth - 1) - 1
            put(stack, depth - 1, value)
            next_step = get(step, JUMP)
            if value == 0:
                depth -= 1
            else:
                next_step += _BYTES
        elif op == CALL:
            if depth >= _MAX_DEPTH:
                return TOO_DEEP, -1, start - begin
            put(stack, depth, next_step)
            depth += 1
            next_step = get(step, JUMP)
        elif op == RETURN:
            depth -= 1
            next_step = get(stack, depth)
        else:
            reason = UNFIT_BRANCH
        if reason != 0:
            return reason, get(step, NUMBER), start - begin
        step = next_step


@jit
def decode_records(data, starts, ends, rows, program, codes, rejecting, positions):
    """Run a program for the messages of some rows, which begin and end at offsets from an address.

    A rejected message has its reason in `codes`, and the column, or −1, and the position of the byte in the other arrays.
    """
    space = np.empty(_MAX_DEPTH + 2, np.int64)
    stack = np.int64(space.ctypes.data)
    for row in rows:
        at, end = data + starts[row], data + ends[row]
        code, column, place = _run(program, at, end, row, stack)
        if code == 0 and at + place != end:
            code = TRAILING
        if code:
            codes[row] = EMPTY if starts[row] == ends[row] else code
            rejecting[row], positions[row] = column, place


@jit
def decode_blocks(data, bounds, counts, program, skipper, offsets, codes, rejecting, positions):
    """Run a program for records that are back to back in blocks, which are between `bounds`, as offsets from an address.

    `offsets` receives where each record begins, and where the last one ends. The `skipper` is the program without columns: it
    finds the end of a rejected record. If that is malformed, the records behind it in its block are rejected, too.
    """
    space = np.empty(_MAX_DEPTH + 2, np.int64)
    stack = np.int64(space.ctypes.data)
    row = 0
    for block in range(counts.size):
        at, end, is_lost = bounds[block], bounds[block + 1], False
        for left in range(counts[block], 0, -1):
            offsets[row] = at
            code, column, place = BEHIND_MALFORMED, -1, np.int64(0)
            if not is_lost:
                code, column, place = _run(program, data + at, data + end, row, stack)
                size = place
                if code:
                    found, _, size = _run(skipper, data + at, data + end, row, stack)
                    if found:
                        is_lost, size = True, end - at
                at += size
                if left == 1 and at != end and code == 0:
                    code = TRAILING
            if code:
                codes[row], rejecting[row], positions[row] = code, column, place
            row += 1
    offsets[row] = bounds[counts.size]
