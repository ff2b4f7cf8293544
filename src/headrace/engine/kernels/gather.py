"""Compiled loops over messages of librdkafka: from an array of pointers to offsets and bytes, back to back.

The messages are `rd_kafka_message_t` of the C interface, whose layout librdkafka keeps: error (0), partition (16), payload (24),
length (32), key (40), length of the key (48), offset (56). Functions of the library are passed as addresses, so that the loops
can be cached on disk. Nothing here checks an address: the caller holds valid messages, and arrays that are large enough.
"""

# ruff: noqa: ARG001  numba takes the arguments of an intrinsic from its signature

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_jit = njit(cache=True, nogil=True, boundscheck=False)
_INT64 = ir.IntType(64)


@intrinsic
def _load_int64(_, address):
    def build(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], _INT64.as_pointer()))

    return types.int64(types.int64), build


@intrinsic
def _load_int32(_, address):
    def build(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(32).as_pointer()))

    return types.int32(types.int64), build


@intrinsic
def _copy_bytes(_, target, source, size):
    def build(context, builder, signature, arguments):
        pointer = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, pointer) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), build


@intrinsic
def _call(_, function, argument):
    def build(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [_INT64])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), build


@intrinsic
def _call_with_result(_, function, first, second):
    def build(context, builder, signature, arguments):
        kind = ir.FunctionType(_INT64, [_INT64, _INT64])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(types.int64, types.int64, types.int64), build


@_jit
def read_heads(messages, errors, offsets):
    """Set the error code and the offset of each message."""
    for i in range(messages.size):
        errors[i] = _load_int32(messages[i])
        offsets[i] = _load_int64(messages[i] + 56)


@_jit
def add_sizes(messages, place, ends):
    """Set the ends of texts back to back; `place` is where a message has their sizes: 32 for payloads, 48 for keys."""
    end = np.int64(0)
    ends[0] = 0
    for i in range(messages.size):
        end += _load_int64(messages[i] + place)
        ends[i + 1] = end


@_jit
def copy_texts(messages, place, ends, data, absent):
    """Copy texts back to back, and return how many are absent; `place` is where a message has their address: 24 or 40."""
    base, count = np.int64(data.ctypes.data), 0
    for i in range(messages.size):
        address = _load_int64(messages[i] + place)
        absent[i] = address == 0
        count += absent[i]
        _copy_bytes(base + ends[i], address, ends[i + 1] - ends[i])
    return count


@_jit
def read_timestamps(messages, get_timestamp, scratch, times):
    """Set the timestamp of each message in milliseconds, −1 without one; `scratch` has room for the kind of a timestamp."""
    for i in range(messages.size):
        times[i] = _call_with_result(get_timestamp, messages[i], np.int64(scratch.ctypes.data))


@_jit
def destroy_messages(messages, destroy):
    """Free the messages."""
    for i in range(messages.size):
        _call(destroy, messages[i])
