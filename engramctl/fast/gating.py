"""The gate's inner loops as LLVM's generic IR on vectors of a given width: a stream's three sums, and its output.

A vector of BF16 pairs is its even elements, shifted up, and its odd ones, masked: no shuffle is needed to widen, or to
put rounded results back. So a pair of vectors takes 2 * lanes elements in a row, which is how `spread` lays out the
weights, and a partial sum stays in one lane: it adds its elements in ascending order, as `arithmetic.md` has it.
"""

# ruff: noqa: ANN401 - llvmlite and Numba have no types
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engramctl.fast.vectors import F32, I16, I32, I64, at, constant, every, insert, intrinsic, load, loop, store
from engramctl.reference import PARTIALS

REGISTERS = 12  # vectors summed in at once, of the 16 or 32 there are; if three sums need more: one after another
UPPER, SIZE = 0xFFFF0000, 0x7FFF


def _widened(b: Any, pairs: Any) -> tuple[Any, Any]:
    """Even and odd elements as F32."""
    lanes = pairs.type.count
    halves = b.shl(pairs, constant(I32, lanes, 16)), b.and_(pairs, constant(I32, lanes, UPPER))
    even, odd = (b.bitcast(half, ir.VectorType(F32, lanes)) for half in halves)
    return even, odd


def _rounded(b: Any, value: Any) -> Any:
    """F32 to bits whose upper half is the nearest BF16, ties to even, as `bits.narrow`."""
    lanes = value.type.count
    bits = b.bitcast(value, ir.VectorType(I32, lanes))
    odd = b.and_(b.lshr(bits, constant(I32, lanes, 16)), constant(I32, lanes, 1))
    return b.add(b.add(bits, constant(I32, lanes, 0x7FFF)), odd)


@intrinsic
def spread(typing: Any, q: Any, k: Any, weight: Any, count: Any, lanes: Any) -> Any:
    """spread(q, k, weight, count, lanes): q * k of `count` times 2 * lanes BF16 numbers, at least once, as summed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, b, width = signature.args, builder, int(signature.args[4].literal_value)
        x, y, out = (at(context, b, kinds[i], arguments[i], I64(0)) for i in range(3))

        def body(i: Any, _: list[Any]) -> list[Any]:
            here = b.mul(i, I64(2 * width))
            both = zip(*(_widened(b, load(b, p, ir.VectorType(I32, width), here)) for p in (x, y)), strict=True)
            for odd, (a, c) in enumerate(both):
                store(b, b.fmul(a, c), out, b.add(here, I64(odd * width)))
            return []

        loop(b, arguments[3], [], body)
        return context.get_dummy_value()

    return types.void(q, k, weight, types.int64, lanes), generate


@intrinsic
def add_sums(
    typing: Any, hidden: Any, begin: Any, key: Any, key_begin: Any, weight: Any, weight_begin: Any, partials: Any,
    count: Any, lanes: Any,
) -> Any:  # fmt: skip
    """add_sums(hidden, begin, key, key_begin, weight, weight_begin, partials, count, lanes): partials[3 * PARTIALS].

    Of `count` times PARTIALS elements, at least once: h * h, key * key and h * w * key, from 0. `lanes` is a literal.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, b = signature.args, builder
        width = int(kinds[8].literal_value)
        h, k = (b.bitcast(at(context, b, kinds[i], *arguments[i : i + 2]), I32.as_pointer()) for i in (0, 2))
        w, sums = at(context, b, kinds[4], *arguments[4:6]), at(context, b, kinds[6], arguments[6], I64(0))
        vector, pairs = ir.VectorType(F32, width), PARTIALS // (2 * width)

        def add(which: tuple[int, ...]) -> None:
            def body(i: Any, before: list[Any]) -> list[Any]:
                made: list[Any] = []
                for pair in range(pairs):
                    here = b.add(b.mul(i, I64(PARTIALS // 2)), I64(pair * width))
                    x, y = (_widened(b, load(b, p, ir.VectorType(I32, width), here)) for p in (h, k))
                    for one in which:
                        for odd in range(2):
                            if one == 2:
                                scale = load(b, w, vector, b.add(b.mul(here, I64(2)), I64(odd * width)))
                                product = b.fmul(b.fmul(x[odd], scale), y[odd])
                            else:
                                product = b.fmul((x, y)[one][odd], (x, y)[one][odd])
                            made.append(b.fadd(before[len(made)], product))
                return made

            ends = loop(b, arguments[7], [ir.Constant(vector, None)] * (2 * pairs * len(which)), body)
            for pair in range(pairs):
                for one in which:  # even and odd elements in turn again
                    even, odd, ends = ends[0], ends[1], ends[2:]
                    for part in range(2):
                        order = [j + p for j in range(part * width // 2, (part + 1) * width // 2) for p in (0, width)]
                        some = b.shuffle_vector(even, odd, ir.Constant(ir.VectorType(I32, width), order))
                        store(b, some, sums, one * PARTIALS + (2 * pair + part) * width)

        if 3 * 2 * pairs <= REGISTERS:
            add((0, 1, 2))
        else:
            for one in range(3):
                add((one,))
        return context.get_dummy_value()

    return types.void(
        hidden, types.int64, key, types.int64, weight, types.int64, partials, types.int64, lanes
    ), generate


@intrinsic
def add_gated(
    typing: Any, hidden: Any, begin: Any, value: Any, value_begin: Any, gated: Any, out: Any, to: Any, count: Any,
    lanes: Any,
) -> Any:  # fmt: skip
    """add_gated(hidden, begin, value, value_begin, gated, out, to, count, lanes) -> the largest size, as BF16 bits.

    `count` times 2 * lanes elements, at least once: BF16 of h + gated * value. `lanes` is a literal.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, b = signature.args, builder
        width = int(kinds[8].literal_value)
        places = (0, 2, 5)
        h, v, o = (b.bitcast(at(context, b, kinds[i], *arguments[i : i + 2]), I32.as_pointer()) for i in places)
        times, words = every(b, arguments[4], width), ir.VectorType(I16, 2 * width)

        def body(i: Any, before: list[Any]) -> list[Any]:
            here = b.mul(i, I64(width))
            halves = []
            for x, y in zip(*(_widened(b, load(b, p, ir.VectorType(I32, width), here)) for p in (h, v)), strict=True):
                halves.append(_rounded(b, b.fadd(x, b.fmul(times, y))))
            low = b.lshr(halves[0], constant(I32, width, 16))
            both = b.or_(low, b.and_(halves[1], constant(I32, width, UPPER)))
            store(b, both, o, here)
            size = b.and_(b.bitcast(both, words), constant(I16, 2 * width, SIZE))
            return [b.select(b.icmp_unsigned(">", size, before[0]), size, before[0])]

        most = loop(b, arguments[7], [ir.Constant(words, None)], body)[0]
        kind = ir.FunctionType(I16, [words])
        name = f"llvm.vector.reduce.umax.v{2 * width}i16"
        return b.call(insert(b.module, kind, name), [most])

    return types.uint16(
        hidden, types.int64, value, types.int64, types.float32, out, types.int64, types.int64, lanes
    ), generate
