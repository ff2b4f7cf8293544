"""Compiled loops of joins: query-sets of rows, hash indexes of keys, pairs of rows whose query-sets intersect.

A query-set is a row of `uint64` words; bit b of the set is in word b // 64. For every condition, the partners of a row are a
range of positions in some order of the build rows: those of equal hash, those between two bounds, or all. An empty `valid`
means that all rows are valid.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)
_inline = njit(cache=True, nogil=True, boundscheck=False, inline="always")

_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)  # every product with a power of two has other upper six bits
_POSITION_OF_PRODUCT = np.argsort(_DE_BRUIJN << np.arange(64, dtype=np.uint64) >> np.uint64(58))


@_jit
def restrict_sets(codes, table, sets):
    """AND into the set of each row the set that the table holds for its code."""
    for i in range(codes.size):
        for w in range(sets.shape[1]):
            sets[i, w] &= table[codes[i], w]


@_jit
def move_bits(sets, sources, targets, moved_sets):
    """Set bit targets[k] in each row of `moved_sets` whose query-set has bit sources[k]; the widths may differ."""
    for i in range(sets.shape[0]):
        for k in range(sources.size):
            word = sources[k] // 64
            if word < sets.shape[1] and sets[i, word] >> np.uint64(sources[k] % 64) & np.uint64(1):
                moved_sets[i, targets[k] // 64] |= np.uint64(1) << np.uint64(targets[k] % 64)


@_jit
def find_live_rows(sets):
    """Return the rows whose query-set is not empty."""
    rows = np.empty(sets.shape[0], np.int64)
    count = 0
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            if sets[i, w]:
                rows[count] = i
                count += 1
                break
    return rows[:count].copy()


@_jit
def are_rows_live(sets):
    """Return whether no query-set is empty."""
    for i in range(sets.shape[0]):
        is_live = False
        for w in range(sets.shape[1]):
            is_live = is_live or sets[i, w] != 0
        if not is_live:
            return False
    return True


@_jit
def _count_bits(size):
    bits = 0
    while size >> bits:
        bits += 1
    return bits


@_jit
def _choose_parts(size):
    """Return the number of upper bits of a hash that divide so many rows into parts that fit the cache of a core."""
    return max(1, min(11, _count_bits(size >> 11)))


@_jit
def _scatter_by_hash(hashes, valid, bits):
    """Return (hashes, row numbers, start of each part): valid rows divided by the upper bits of their hash."""
    parts = 1 << bits
    shift = np.uint64(64 - bits)
    begins = np.zeros(parts + 2, np.int64)
    for i in range(hashes.size):
        if valid.size == 0 or valid[i]:
            begins[np.int64(hashes[i] >> shift) + 2] += 1
    for p in range(parts + 1):
        begins[p + 1] += begins[p]
    scattered = np.empty(begins[parts + 1], np.uint64)
    rows = np.empty(begins[parts + 1], np.int32)
    for i in range(hashes.size):
        if valid.size == 0 or valid[i]:
            part = np.int64(hashes[i] >> shift) + 1
            scattered[begins[part]] = hashes[i]
            rows[begins[part]] = i
            begins[part] += 1
    return scattered, rows, begins[:-1]


@_jit
def index_hashes(hashes, valid):
    """Return (directory, distinct hashes, starts, order): an index of rows by hash.

    Cell c, the upper bits of a hash, has the distinct hashes from directory[c] up to directory[c + 1]. The rows of hash k are
    order[starts[k] : starts[k + 1]], in order of arrival. Rows are divided into parts that fit the cache; each part assigns
    codes to its hashes with a small hash table, and then sorts the codes by cell.
    """
    part_bits = _choose_parts(hashes.size)
    bits = max(part_bits, _count_bits(hashes.size) - 1)
    cells = 1 << (bits - part_bits)
    shift = np.uint64(64 - bits)
    scattered, rows, begins = _scatter_by_hash(hashes, valid, part_bits)
    largest_part = 0
    for p in range(begins.size - 1):
        largest_part = max(largest_part, begins[p + 1] - begins[p])
    table = np.empty(1 << _count_bits(2 * largest_part), np.int32)
    codes = np.empty(largest_part, np.int32)
    values = np.empty(largest_part, np.uint64)
    sizes = np.empty(largest_part, np.int32)
    places = np.empty(largest_part, np.int32)
    cell_starts = np.empty(cells + 1, np.int32)
    directory = np.empty((1 << bits) + 1, np.int32)
    distinct = np.empty(scattered.size, np.uint64)
    starts = np.empty(scattered.size + 1, np.int32)
    order = np.empty(scattered.size, np.int32)
    total = 0
    filled = 0
    for p in range(begins.size - 1):
        first, last = begins[p], begins[p + 1]
        room = _count_bits(2 * (last - first))
        mask = (1 << room) - 1
        table_shift = np.uint64(64 - part_bits - room)
        table[: mask + 1] = -1
        cell_starts[:] = 0
        count = 0
        for i in range(first, last):
            h = scattered[i]
            at = np.int64(h >> table_shift) & mask
            while table[at] >= 0 and values[table[at]] != h:
                at = (at + 1) & mask
            code = table[at]
            if code < 0:
                code = count
                table[at] = code
                values[code] = h
                sizes[code] = 0
                cell_starts[(np.int64(h >> shift) & (cells - 1)) + 1] += 1
                count += 1
            codes[i - first] = code
            sizes[code] += 1
        for c in range(cells):
            cell_starts[c + 1] += cell_starts[c]
            directory[p * cells + c] = total + cell_starts[c]
        for code in range(count):
            c = np.int64(values[code] >> shift) & (cells - 1)
            places[code] = total + cell_starts[c]
            cell_starts[c] += 1
            distinct[places[code]] = values[code]
            starts[places[code]] = sizes[code]
        for place in range(total, total + count):
            size = starts[place]
            starts[place] = filled
            filled += size
        for code in range(count):
            sizes[code] = starts[places[code]]  # from here on: position of the next row of the hash
        for i in range(first, last):
            code = codes[i - first]
            order[sizes[code]] = rows[i]
            sizes[code] += 1
        total += count
    directory[1 << bits] = total
    starts[total] = filled
    return directory, distinct[:total], starts[: total + 1], order


@_jit
def _find_hash(h, shift, directory, distinct):
    cell = np.int64(h >> shift)
    for k in range(directory[cell], directory[cell + 1]):
        if distinct[k] == h:
            return k
    return -1


@_jit
def look_up_hashes(hashes, valid, directory, distinct, starts):
    """Return for each hash the range (begin, end) of positions that have it; many hashes look up a large index part by part."""
    shift = np.uint64(64 - _count_bits(directory.size - 2))
    ranges = np.zeros((hashes.size, 2), np.int32)
    if distinct.size < 1 << 14 or hashes.size < 1 << 13:
        for i in range(hashes.size):
            if valid.size == 0 or valid[i]:
                k = _find_hash(hashes[i], shift, directory, distinct)
                if k >= 0:
                    ranges[i, 0] = starts[k]
                    ranges[i, 1] = starts[k + 1]
    else:
        scattered, rows, _ = _scatter_by_hash(hashes, valid, _choose_parts(distinct.size))
        for i in range(scattered.size):
            k = _find_hash(scattered[i], shift, directory, distinct)
            if k >= 0:
                ranges[rows[i], 0] = starts[k]
                ranges[rows[i], 1] = starts[k + 1]
    return ranges


@_jit
def group_rows_by_key(codes, count):
    """Return (starts, order): the rows of key k are order[starts[k]:starts[k + 1]], in order of arrival."""
    starts = np.zeros(count + 1, np.int64)
    for i in range(codes.size):
        if codes[i] >= 0:
            starts[codes[i] + 1] += 1
    for k in range(count):
        starts[k + 1] += starts[k]
    next_position = starts[:-1].copy()
    order = np.empty(starts[count], np.int64)
    for i in range(codes.size):
        c = codes[i]
        if c >= 0:
            order[next_position[c]] = i
            next_position[c] += 1
    return starts, order


@_inline
def _follow_chain(value, factors, operands, lows, highs, row):
    """Return (value after all steps factor · value + operand, 0); where a step leaves its limits, (_, direction of the result).

    A factor is −1, or a power of ten, whose operand is zero if it is not 1. Limits are checked without overflow.
    """
    for k in range(factors.size):
        factor, operand = factors[k], operands[k, row]
        overflow = 0
        if factor == 1:
            if operand > 0 and value > highs[k] - operand:
                overflow = 1
            elif operand < 0 and value < lows[k] - operand:
                overflow = -1
            else:
                value = value + operand
        elif factor == -1:
            if value < 0 and operand > highs[k] + value:
                overflow = 1
            elif value > 0 and operand < lows[k] + value:
                overflow = -1
            else:
                value = operand - value
        elif value > highs[k] // factor:
            overflow = 1
        elif value < -(highs[k] // factor):
            overflow = -1
        else:
            value = value * factor
        if overflow != 0:
            for later in range(k + 1, factors.size):
                if factors[later] < 0:
                    overflow = -overflow
            return value, overflow
    return value, 0


@_inline
def _is_after(value, factors, operands, lows, highs, threshold, falls, equal_is_after, row):
    """Return whether a value lies after the place of a threshold in the order of the chain."""
    result, overflow = _follow_chain(value, factors, operands, lows, highs, row)
    if overflow != 0:
        return (overflow > 0) != falls
    if result == threshold:
        return equal_is_after
    return (result > threshold) != falls


@_jit
def narrow_ranges(
    values, valid_count, factors, operands, lows, highs, thresholds, states, order, falls, is_less, is_strict, begins, ends
):
    """Narrow the range of each row to the positions whose chain compares with its threshold; return whether that is exact.

    `values` are sorted up to `valid_count`; NaN is after them. A chain increases along them or, if it `falls`, decreases. It must
    be less than the threshold (`is_less`) or greater, or equal if not `is_strict`. A row of state 0 has no matches (NULL), one of
    state 2 keeps its range, since its chain or threshold may be NaN. The result is not exact where a range was kept, or may have
    positions whose chain overflows. Each search starts at the place of the row before it: any `order` of the rows is correct, and
    one in which their places ascend is fast.
    """
    is_exact = True
    is_prefix = is_less != falls
    equal_is_after = (is_less == is_strict) != falls
    place = 0
    for i in order:
        if begins[i] >= ends[i]:
            continue
        if states[i] == 0:
            ends[i] = begins[i]
            continue
        if states[i] == 2 or (falls and not is_less and valid_count < values.size):
            is_exact = False
            continue
        threshold = thresholds[i]
        low = 0
        high = valid_count
        at = place
        step = 1
        while at < high:
            if _is_after(values[at], factors, operands, lows, highs, threshold, falls, equal_is_after, i):
                high = at
            else:
                low = at + 1
                at += step
                step <<= 1
        if low == 0:
            at = high - 1
            step = 1
            while at >= low:
                if _is_after(values[at], factors, operands, lows, highs, threshold, falls, equal_is_after, i):
                    high = at
                    at -= step
                    step <<= 1
                else:
                    low = at + 1
        while low < high:
            middle = (low + high) >> 1
            if _is_after(values[middle], factors, operands, lows, highs, threshold, falls, equal_is_after, i):
                high = middle
            else:
                low = middle + 1
        place = low
        if is_prefix:
            ends[i] = min(ends[i], low)
        else:
            begins[i] = max(begins[i], low)
            if is_less:
                ends[i] = min(ends[i], valid_count)
        if factors.size > 0 and begins[i] < ends[i] and valid_count > 0:
            end = begins[i] if is_prefix else min(ends[i], valid_count) - 1
            if _follow_chain(values[end], factors, operands, lows, highs, i)[1] != 0:
                is_exact = False
    return is_exact


@_jit
def divide_ranges(begins, ends, users, sets, out_rows, out_ranges, out_sets):
    """Divide the ranges of each row, one for each group of `users`, where they begin and end; return the number of pieces.

    A piece (row, range, set) has the queries of the groups whose ranges contain it and of the row; groups have no query in
    common. The ranges of one row do not overlap, and are in order. The output needs room for 2 · groups − 1 pieces for each row.
    """
    groups, words = users.shape
    edges = np.empty(2 * groups, np.int64)
    count = 0
    for i in range(sets.shape[0]):
        found = 0
        for g in range(groups):
            if begins[g, i] >= ends[g, i]:
                continue
            for w in range(words):
                if users[g, w] & sets[i, w]:
                    edges[found] = (np.int64(begins[g, i]) << 32) | (2 * g)
                    edges[found + 1] = (np.int64(ends[g, i]) << 32) | (2 * g + 1)
                    found += 2
                    break
        ordered = np.sort(edges[:found])
        active = np.zeros(words, np.uint64)
        depth = 0
        place = np.int64(0)
        for edge in ordered:
            at = edge >> 32
            if depth > 0 and at > place:
                out_rows[count] = i
                out_ranges[count, 0] = place
                out_ranges[count, 1] = at
                for w in range(words):
                    out_sets[count, w] = active[w] & sets[i, w]
                count += 1
            place = at
            group = (edge & 0xFFFFFFFF) >> 1
            if edge & 1:
                depth -= 1
                for w in range(words):
                    active[w] &= ~users[group, w]
            else:
                depth += 1
                for w in range(words):
                    active[w] |= users[group, w]
    return count


@_jit
def find_pairs(
    ranges, order, sets, build_sets, in_order, low, high, times, batches, before, row, place, out_probe, out_build, out_sets
):
    """Find pairs of a probe row and a build row with intersecting query-sets, from (row, place among its partners) on.

    The partners of row i are order[ranges[i, 0] : ranges[i, 1]] (without `order`: the positions themselves) whose time is
    between low[i] and high[i] (any time without `times`), and whose insert batch is less than `before` (any batch without
    `batches`). `build_sets` are in the order of rows or, if `in_order`, of positions. Return (count, row, place) when all
    rows are done or the output is full.
    """
    count = 0
    words = sets.shape[1]
    while row < ranges.shape[0]:
        at = ranges[row, 0] + place
        end = ranges[row, 1]
        while at < end:
            other = np.int64(at)
            if order is not None:
                other = np.int64(order[at])
            set_row = np.int64(at) if in_order else other
            at += 1
            if times is not None and (times[other] < low[row] or times[other] > high[row]):
                continue
            if batches is not None and batches[other] >= before:
                continue
            intersects = False
            for w in range(words):
                common = sets[row, w] & build_sets[set_row, w]
                out_sets[count, w] = common
                intersects = intersects or common != 0
            if intersects:
                out_probe[count] = row
                out_build[count] = other
                count += 1
                if count == out_probe.size:
                    return count, row, at - ranges[row, 0]
        row += 1
        place = 0
    return count, row, place


@_jit
def pair_where_true(masks, bits, sets, build_sets, low, high, times, batches, before, out_probe, out_build, out_sets):
    """Find pairs of rows with intersecting query-sets, without the bits of conditions that do not hold; return their number.

    masks[c, i · build rows + j] tells whether condition c holds for probe row i and build row j; its queries are bits[c]. Limits
    are those of `find_pairs`.
    """
    count = 0
    at = -1
    words = sets.shape[1]
    for i in range(sets.shape[0]):
        needs_condition = True  # of all queries of the row
        for w in range(words):
            rest = sets[i, w]
            for c in range(bits.shape[0]):
                rest &= ~bits[c, w]
            needs_condition = needs_condition and rest == 0
        for j in range(build_sets.shape[0]):
            at += 1
            any_holds = not needs_condition
            for c in range(bits.shape[0]):
                any_holds = any_holds or masks[c, at]
            if not any_holds:
                continue
            intersects = False
            for w in range(words):
                common = sets[i, w] & build_sets[j, w]
                for c in range(bits.shape[0]):
                    if not masks[c, at]:
                        common &= ~bits[c, w]
                out_sets[count, w] = common
                intersects = intersects or common != 0
            if not intersects or (times is not None and (times[j] < low[i] or times[j] > high[i])):
                continue
            if batches is not None and batches[j] >= before:
                continue
            out_probe[count] = i
            out_build[count] = j
            count += 1
    return count


@_jit
def clear_outside_windows(one, two, one_range, two_range, bits, sets):
    """Clear the bits of pairs in which either time is older than the other by more than its range."""
    for i in range(one.size):
        if one[i] + one_range < two[i] or two[i] + two_range < one[i]:
            for w in range(sets.shape[1]):
                sets[i, w] &= ~bits[w]


@_jit
def clear_failing(holds, bits, sets):
    """Clear the bits of the rows for which a condition does not hold; return whether there are any."""
    any_fails = False
    for i in range(holds.size):
        if not holds[i]:
            any_fails = True
            for w in range(sets.shape[1]):
                sets[i, w] &= ~bits[w]
    return any_fails


@_jit
def find_users(sets, bits):
    """Return the rows whose query-set has one of the bits."""
    rows = np.empty(sets.shape[0], np.int64)
    count = 0
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            if sets[i, w] & bits[w]:
                rows[count] = i
                count += 1
                break
    return rows[:count].copy()


@_jit
def clear_early_rows(times, since, bits, sets):
    """Clear the bits of rows whose time is before `since`."""
    for i in range(times.size):
        if times[i] < since:
            for w in range(sets.shape[1]):
                sets[i, w] &= ~bits[w]


@_jit
def merge_sets(rows, sets, into):
    """OR sets into the sets of the rows they belong to."""
    for i in range(rows.size):
        for w in range(sets.shape[1]):
            into[rows[i], w] |= sets[i, w]


@_jit
def _find_lowest_bit(word):
    """Return the position of the lowest bit of a word that is not zero."""
    return _POSITION_OF_PRODUCT[((word & (~word + np.uint64(1))) * _DE_BRUIJN) >> np.uint64(58)]


@_jit
def list_rows_by_bit(sets, mask):
    """Return (starts, rows): the rows whose set contains bit b of the mask are rows[starts[b]:starts[b + 1]], ascending."""
    starts = np.zeros(sets.shape[1] * 64 + 1, np.int64)
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            word = sets[i, w] & mask[w]
            while word:
                starts[w * 64 + _find_lowest_bit(word) + 1] += 1
                word &= word - np.uint64(1)
    for b in range(starts.size - 1):
        starts[b + 1] += starts[b]
    next_position = starts[:-1].copy()
    rows = np.empty(starts[-1], np.int64)
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            word = sets[i, w] & mask[w]
            while word:
                bit = w * 64 + _find_lowest_bit(word)
                rows[next_position[bit]] = i
                next_position[bit] += 1
                word &= word - np.uint64(1)
    return starts, rows
