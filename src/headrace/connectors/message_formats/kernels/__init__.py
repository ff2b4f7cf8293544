"""Loops over the bytes of messages that numba compiles once and caches on disk.

A schema is data: names, types and places of columns are tables that the loops read, so a new schema compiles nothing. Kernels get
the address of bytes instead of an array, so that read-only and writable buffers share one compiled version. Callers guarantee
`PADDING_BYTES` readable bytes of zero after the last message: every loop ends at a byte of zero, and words of 8 bytes are read
without a check of the end.

A package in a zip is unpacked first, as those of `engine.kernels`.
"""

from __future__ import annotations

from zipimport import zipimporter

from headrace.engine.kernels import find_cache_root, unpack_kernels

PADDING_BYTES = 32

_loader: object = __spec__.loader
if isinstance(_loader, zipimporter):
    __path__ = [str(unpack_kernels(_loader.archive, f"{_loader.prefix}kernels/", find_cache_root()))]
