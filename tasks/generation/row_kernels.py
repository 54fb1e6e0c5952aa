"""The code that numba compiles, which finds the types; importing this module imports numba.

All of it is in one file, since numba's cache on disk does not see when a called function in another file changes.
States are float32, or bfloat16 as the uint16 of their bits; sums are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from numba.core import types
from numba.extending import overload

_LOWEST = np.float32(-87.0)  # exp of less is no normal float32
_LOG2_E = np.float32(math.log2(math.e))
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_MANTISSA_BITS, _EXPONENT_BIAS = np.int32(23), np.int32(127)
# exp(r) = 1 + r + r^2 * (a polynomial by Taylor) for |r| <= ln(2) / 2; the first term left out is below 2^-27.
_C5, _C4, _C3, _C2, _C1, _C0 = (np.float32(1 / math.factorial(n)) for n in (7, 6, 5, 4, 3, 2))
_BLOCK = 256
_ROWS_TOGETHER = 16
_NAN_BITS = np.uint32(0x7FC0)
_REORDERED = {"reassoc", "contract", "nsz"}  # sums may run in vectors; NaN and infinity keep their meaning


_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _compiled(*, fastmath: set[str]) -> _Decorator:
    """Compile a function that kernels call, into each of them.

    Called for itself, it would be whichever copy the process has: a kernel loaded from disk would round differently
    from the same kernel compiled just now.
    """
    return cast("_Decorator", numba.njit(nogil=True, error_model="numpy", forceinline=True, fastmath=fastmath))


def _kernel(*, fastmath: set[str]) -> _Decorator:
    """Compile a kernel, with all that it calls, and keep it on disk."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
        try:
            return cast("Callable[..., Any]", numba.njit(cache=True, **options)(function))
        except RuntimeError:  # neither this folder nor the user's cache can be written
            return cast("Callable[..., Any]", numba.njit(**options)(function))

    return decorate


def _number(stored):
    """Return a stored number as float32: itself, or the bfloat16 whose bits a uint16 holds."""


@overload(_number, inline="always")
def _number_of_type(stored):
    if isinstance(stored, types.Integer):
        return lambda stored: np.uint32(np.uint32(stored) << np.uint32(16)).view(np.float32)
    return lambda stored: stored


def _stored(number, states):
    """Return float32 `number` as array `states` stores it: itself, or the nearest bfloat16's bits as a uint16."""


@overload(_stored, inline="always")
def _stored_in_type(number, states):
    if isinstance(states.dtype, types.Integer):
        return lambda number, states: _nearest_even(number)
    return lambda number, states: number


@_compiled(fastmath={"contract"})
def _nearest_even(number):
    bits = np.float32(number).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(rounded if number == number else _NAN_BITS)


@_compiled(fastmath={"contract"})
def _exponentials(scores, powers, bits, count):
    """Put exp(score) in place of the first `count` scores, none above 0; `powers` and `bits` are one scratch memory."""
    for place in range(count):
        score = scores[place]
        score = _LOWEST if score < _LOWEST else score  # NaN stays NaN
        exponent = np.float32(np.floor(score * _LOG2_E + _HALF))
        rest = score - exponent * _LN_2_HIGH - exponent * _LN_2_LOW
        series = ((((_C5 * rest + _C4) * rest + _C3) * rest + _C2) * rest + _C1) * rest + _C0
        scores[place] = series * rest * rest + rest + _ONE
        bits[place] = (np.int32(exponent) + _EXPONENT_BIAS) << _MANTISSA_BITS
    for place in range(count):
        scores[place] *= powers[place]


@_compiled(fastmath=_REORDERED)
def _softmax(scores, powers, bits, count):
    """Put weights in place of the first `count` scores."""
    top = scores[0]
    for place in range(1, count):
        top = max(top, scores[place])
    for place in range(count):
        scores[place] -= top
    _exponentials(scores, powers, bits, count)
    total = np.float32(0.0)
    for place in range(count):
        total += scores[place]
    factor = _ONE / total
    for place in range(count):
        scores[place] *= factor


@_compiled(fastmath=_REORDERED)
def _score(queries, keys, count, scores, first, scratch):
    """Put the products of queries (n, dim) float32 and the first `count` keys (room, dim) into scores (n, room) from
    place `first` on; scratch is (4, dim) float32."""
    key = scratch[0]
    for place in range(count):
        for index in range(queries.shape[1]):
            key[index] = _number(keys[place, index])
        for query in range(queries.shape[0]):
            total = np.float32(0.0)
            for index in range(queries.shape[1]):
                total += queries[query, index] * key[index]
            scores[query, first + place] = total


@_compiled(fastmath=_REORDERED)
def _mix(weights, first, values, count, output, scratch):
    """Add the sums of the first `count` values (room, dim) by weights (n, room), from place `first` on, to output
    (n, dim) float32; scratch is (4, dim) float32."""
    whole = count - count % 4
    for place in range(0, whole, 4):
        for value in range(4):
            for index in range(output.shape[1]):
                scratch[value, index] = _number(values[place + value, index])
        for query in range(output.shape[0]):
            one, two = weights[query, first + place], weights[query, first + place + 1]
            three, four = weights[query, first + place + 2], weights[query, first + place + 3]
            for index in range(output.shape[1]):
                output[query, index] += (one * scratch[0, index] + two * scratch[1, index]) + (
                    three * scratch[2, index] + four * scratch[3, index]
                )
    for place in range(whole, count):
        for query in range(output.shape[0]):
            for index in range(output.shape[1]):
                output[query, index] += weights[query, first + place] * _number(values[place, index])


@_kernel(fastmath=_REORDERED)
def attend_part(
    query,  # (rows, kv_heads, queries, dim)
    new_keys,  # (rows, kv_heads, dim)
    new_values,
    keys,  # (slots, kv_heads, room, dim)
    values,
    lengths,  # (rows,) int64
    scale,  # float32
    chosen,  # (n,) int64, the rows to compute
    prompts,  # (n,) int64, the prompt of each; equal neighbours are computed together
    prompt_keys,  # (prompts, kv_heads, prompt_room, dim)
    prompt_values,
    prompt_lengths,  # (prompts,) int64
    output,  # (rows, kv_heads, queries, dim)
    start,
    stop,
):
    """Attend with the chosen rows from `start` up to `stop`: write their output, and their keys and values."""
    _, kv_heads, num_queries, dim = query.shape
    scratch = np.empty((4, dim), np.float32)
    scaled = np.empty((_ROWS_TOGETHER * num_queries, dim), np.float32)
    mixed = np.empty((_ROWS_TOGETHER * num_queries, dim), np.float32)
    room = prompt_keys.shape[2] + keys.shape[2]
    weights = np.empty((_ROWS_TOGETHER * num_queries, room), np.float32)
    bits = np.empty(room, np.int32)
    powers = bits.view(np.float32)
    first = start
    while first < stop:
        prompt, end = prompts[first], first + 1
        while end < min(stop, first + _ROWS_TOGETHER) and prompts[end] == prompt:
            end += 1
        before, together = prompt_lengths[prompt], (end - first) * num_queries
        for head in range(kv_heads):
            for place in range(first, end):
                row, base = chosen[place], (place - first) * num_queries
                for one in range(num_queries):
                    for index in range(dim):
                        scaled[base + one, index] = _number(query[row, head, one, index]) * scale
            _score(scaled[:together], prompt_keys[prompt, head], before, weights, 0, scratch)
            for place in range(first, end):
                row, base = chosen[place], (place - first) * num_queries
                count = lengths[row]
                keys[row, head, count - 1] = new_keys[row, head]
                values[row, head, count - 1] = new_values[row, head]
                own = slice(base, base + num_queries)
                _score(scaled[own], keys[row, head], count, weights[own], before, scratch)
                for one in range(base, base + num_queries):
                    _softmax(weights[one], powers, bits, before + count)
            mixed[:together] = 0.0
            _mix(weights[:together], 0, prompt_values[prompt, head], before, mixed[:together], scratch)
            for place in range(first, end):
                row, base = chosen[place], (place - first) * num_queries
                own = slice(base, base + num_queries)
                _mix(weights[own], before, values[row, head], lengths[row], mixed[own], scratch)
                for one in range(num_queries):
                    for index in range(dim):
                        output[row, head, one, index] = _stored(mixed[base + one, index], output)
        first = end


@_kernel(fastmath=_REORDERED)
def norm_part(states, weight, epsilon, output, start, stop):
    """Divide states (rows, width) by their root mean square and multiply by weight (width,) float32."""
    width = states.shape[1]
    for row in range(start, stop):
        total = np.float32(0.0)
        for index in range(width):
            number = _number(states[row, index])
            total += number * number
        factor = _ONE / np.sqrt(total / np.float32(width) + epsilon)
        for index in range(width):
            output[row, index] = _stored(_number(states[row, index]) * factor * weight[index], output)


@_kernel(fastmath=_REORDERED)
def gate_part(both, output, start, stop):
    """Write SiLU(gate) * up into output (rows, width); both (rows, 2 * width) is gate, then up."""
    width = output.shape[1]
    smalls = np.empty(width, np.float32)
    bits = np.empty(width, np.int32)
    powers = bits.view(np.float32)
    for row in range(start, stop):
        for index in range(width):
            smalls[index] = -abs(_number(both[row, index]))
        _exponentials(smalls, powers, bits, width)
        for index in range(width):
            gate, small = _number(both[row, index]), smalls[index]
            share = (_ONE if gate >= np.float32(0.0) else small) / (_ONE + small)
            output[row, index] = _stored(gate * share * _number(both[row, width + index]), output)


@_compiled(fastmath=_REORDERED)
def _rotate(states, first, cosines, sines, output):
    """Turn the pairs (i, i + half) of each head of states (width,), from `first` on, by their angles.

    output is (heads, dim); slices, not places in `states`, let the inner loops run in vectors.
    """
    heads, dim = output.shape
    half = cosines.shape[0] // 2
    for head in range(heads):
        low, high = states[first : first + half], states[first + half : first + 2 * half]
        turned = output[head]
        for index in range(half):
            rest = _number(high[index]) * sines[index]
            turned[index] = _stored(_number(low[index]) * cosines[index] - rest, output)
        for index in range(half):
            rest = _number(low[index]) * sines[half + index]
            turned[half + index] = _stored(_number(high[index]) * cosines[half + index] + rest, output)
        for index in range(2 * half, dim):
            turned[index] = states[first + index]
        first += dim


@_kernel(fastmath=_REORDERED)
def rotate_part(states, cosines, sines, query, key, value, start, stop):
    """Split states (tokens, all heads * dim) into query, key and value (tokens, heads, dim); rotate the first two.

    cosines and sines are (tokens, angles) with an even number of angles; dimensions beyond it stay as they are.
    """
    heads, kv_heads, dim = query.shape[1], key.shape[1], query.shape[2]
    angles = cosines.shape[1]
    cosine, sine = np.empty(angles, np.float32), np.empty(angles, np.float32)
    for row in range(start, stop):
        for index in range(angles):
            cosine[index], sine[index] = _number(cosines[row, index]), _number(sines[row, index])
        _rotate(states[row], 0, cosine, sine, query[row])
        _rotate(states[row], heads * dim, cosine, sine, key[row])
        first = (heads + kv_heads) * dim
        for head in range(kv_heads):
            value[row, head] = states[row, first : first + dim]
            first += dim


@_compiled(fastmath=_REORDERED)
def _largest(logits, tops):
    """Return the largest logit that is not NaN; lane by lane, as a loop over all at once would not run in vectors."""
    tops[:] = -np.inf
    whole = logits.shape[0] - logits.shape[0] % _BLOCK
    for first in range(0, whole, _BLOCK):
        block = logits[first : first + _BLOCK]
        for lane in range(_BLOCK):
            number = _number(block[lane])
            tops[lane] = number if number > tops[lane] else tops[lane]
    for place in range(whole, logits.shape[0]):
        tops[0] = max(tops[0], _number(logits[place]))
    return tops.max()


@_compiled(fastmath=_REORDERED)
def _weigh(logits, top, temperature, weights, powers, bits):
    """Put exp((logit - top) / temperature) into weights, 0 below the smallest normal float32, and return their sum."""
    count = logits.shape[0]
    for place in range(count):
        weights[place] = (_number(logits[place]) - top) / temperature
    _exponentials(weights, powers, bits, count)
    total = np.float32(0.0)
    for place in range(count):
        is_nothing = (_number(logits[place]) - top) / temperature < _LOWEST
        weights[place] = np.float32(0.0) if is_nothing else weights[place]
        total += weights[place]
    return np.float64(total)


@_compiled(fastmath=set())
def _first_above(target, sums, count):
    """Return the first place whose sum is above target, the last one where none is."""
    for place in range(count):
        if sums[place] > target:
            return place
    return count - 1


@_kernel(fastmath=set())
def draw_part(logits, uniforms, temperatures, token_ids, logprobs, valid, start, stop):
    """Draw one token a row from logits (rows, vocab) by uniforms (rows,) float64, in two levels as `sampling` does."""
    vocab = logits.shape[1]
    num_blocks = -(-vocab // _BLOCK)
    weights, tops, bits = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.int32)
    powers = bits.view(np.float32)
    reached, inside = np.empty(num_blocks, np.float64), np.empty(_BLOCK, np.float64)
    for row in range(start, stop):
        own, temperature = logits[row], temperatures[row]
        top, total = _largest(own, tops), 0.0
        for block in range(num_blocks):
            total += _weigh(own[block * _BLOCK : (block + 1) * _BLOCK], top, temperature, weights, powers, bits)
            reached[block] = total
        target = min(uniforms[row] * total, np.nextafter(total, 0.0))
        block = _first_above(target, reached, num_blocks)
        chosen = own[block * _BLOCK : (block + 1) * _BLOCK]
        _weigh(chosen, top, temperature, weights, powers, bits)
        inside_total = 0.0
        for place in range(chosen.shape[0]):
            inside_total += np.float64(weights[place])
            inside[place] = inside_total
        before = reached[block - 1] if block > 0 else 0.0
        rest = min(target - before, np.nextafter(inside_total, 0.0))
        place = _first_above(rest, inside, chosen.shape[0])
        token_ids[row] = block * _BLOCK + place
        valid[row] = math.isfinite(top) and math.isfinite(total) and total > 0.0
        logprobs[row] = math.log(np.float64(weights[place])) - math.log(total) if valid[row] else math.nan
