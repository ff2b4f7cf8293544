"""The columnar container: slices are stored without the rest of their array, and every array comes back equal."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.storage import container

NUMBERS = pa.array(range(10_000), pa.int64())
TEXTS = pa.array([None if n % 7 == 0 else f"text {n}" for n in range(10_000)])
LISTS = pa.array([[n, None] for n in range(1_000)], pa.list_(pa.int32()))


@pytest.mark.parametrize("array", [NUMBERS, TEXTS, LISTS, NUMBERS.cast(pa.decimal128(30, 2)), pa.array([True, None] * 5_000)])
@pytest.mark.parametrize(("start", "length"), [(0, 10), (3, 10), (990, 10)])
def test_a_slice_is_stored_alone(array: pa.Array, start: int, length: int):
    piece = array.slice(start, length)
    packed = container.pack(piece)
    assert container.unpack(packed).equals(piece)
    assert len(packed) < 1_500


def test_an_array_that_is_used_by_more_than_half_is_not_copied():
    buffers = container._encode_chunks(NUMBERS.slice(0, 6_000), "")
    assert any(isinstance(chunk, pa.Buffer) and chunk.address == NUMBERS.buffers()[1].address for chunk in buffers)
    tail = container._encode_chunks(NUMBERS.slice(0, 4_000), "")
    assert not any(isinstance(chunk, pa.Buffer) and chunk.address == NUMBERS.buffers()[1].address for chunk in tail)


@pytest.mark.parametrize(
    "array", [np.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4)[:, 1:3], np.zeros((0, 2)), np.arange(20)[::3]]
)
def test_numpy_arrays_keep_type_and_shape(array: np.ndarray):
    unpacked = container.unpack(container.pack(array))
    assert (unpacked.dtype, unpacked.shape) == (array.dtype, array.shape)
    assert np.array_equal(unpacked, array)


def test_an_array_that_occurs_twice_is_stored_once():
    array = np.arange(1_000)
    packed = container.pack((array, array))
    assert len(packed) < 9_000
    first, second = container.unpack(packed)
    assert first is second


def test_buffers_are_aligned():
    values = (np.arange(3, dtype=np.int8), NUMBERS, np.arange(5))
    unpacked = container.unpack(_align(container.pack(values)))
    assert [unpacked[0].ctypes.data % 64, unpacked[1].buffers()[1].address % 64, unpacked[2].ctypes.data % 64] == [0, 0, 0]


def _align(content: bytes) -> pa.Buffer:
    """Return the bytes in memory that Arrow aligns to 64 bytes, as a memory map is."""
    sink = pa.BufferOutputStream()
    sink.write(content)
    return sink.getvalue()


@pytest.mark.parametrize("array", [np.array([object()]), np.array([(1, 2)], [("a", int), ("b", int)])])
def test_arrays_of_objects_are_refused(array: np.ndarray):
    with pytest.raises(TypeError, match="has no stored form"):
        container.pack(array)
