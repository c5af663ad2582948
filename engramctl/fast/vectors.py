"""The projection's inner loops as LLVM's generic IR on vectors of a given width: a block's weights, and its sums.

    weights  [16 pairs of inputs][16 outputs][2], twice: a BLOCK of inputs by BLOCK outputs, as `fast.weights` packs it
    wide     F32 [BLOCK inputs][BLOCK outputs], what the sums read
    inputs   F32, BLOCK of a token in a row

Nothing here is of one processor: `llvm.fma` and half to float are single instructions wherever `cpu.paths` lets these
be compiled. An output's sums keep the order of `arithmetic.md`, so neither lanes nor tokens together change a bit.
"""

# ruff: noqa: ANN401 - llvmlite and Numba have no types
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from formats.row264 import BLOCK

intrinsic: Callable[[Any], Any] = extending.intrinsic(prefer_literal=True)  # takes one argument fewer than is written

insert: Any = cgutils.get_or_insert_function

TILE = 16  # outputs of a packed tile
PAIRS = BLOCK // 2
AHEAD = 2048  # bytes of E4M3 asked for before they are needed
VECTORS = 2  # of outputs side by side: with a few tokens, as many sums as there are registers
# E4M3's bits under F16's exponent are the number times 2**-8: both widen exactly, subnormals too.
HALF_BIAS = 8
HALF_BITS = 0xBF80  # sign, then a zero, then E4M3's exponent and mantissa

F32, I16, I32, I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)


def at(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Of a flat array's element, a pointer."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def load(builder: Any, pointer: Any, kind: Any, offset: int | Any = 0) -> Any:
    """`offset` is in elements of what the pointer points to."""
    offset = I64(offset) if isinstance(offset, int) else offset
    made = builder.load(builder.bitcast(builder.gep(pointer, [offset]), kind.as_pointer()))
    made.align = 1
    return made


def store(builder: Any, value: Any, pointer: Any, offset: int | Any = 0) -> None:
    offset = I64(offset) if isinstance(offset, int) else offset
    builder.store(value, builder.bitcast(builder.gep(pointer, [offset]), value.type.as_pointer())).align = 1


def every(builder: Any, value: Any, lanes: int) -> Any:
    """A number in every lane."""
    kind = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, lanes), None))


def constant(kind: Any, lanes: int, number: Any) -> Any:
    return ir.Constant(ir.VectorType(kind, lanes), [number] * lanes)


def loop(builder: Any, count: int | Any, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """body(i, values) -> values, for i in 0..count with count at least 1; what the last one gave."""
    count = I64(count) if isinstance(count, int) else count
    before, inside = builder.block, builder.append_basic_block("each")
    after = builder.append_basic_block("done")
    builder.branch(inside)
    builder.position_at_end(inside)
    i, values = builder.phi(I64), [builder.phi(value.type) for value in carried]
    i.add_incoming(I64(0), before)
    made = body(i, list(values))
    following = builder.add(i, I64(1))
    i.add_incoming(following, builder.block)
    for value, first, then in zip(values, carried, made, strict=True):
        value.add_incoming(first, before)
        value.add_incoming(then, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, count), inside, after)
    builder.position_at_end(after)
    return made


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(a.type, [a.type] * 3)
    function = insert(builder.module, kind, f"llvm.fma.v{a.type.count}f32")
    return builder.call(function, [a, b, c])


def prefetch(builder: Any, pointer: Any, ahead: int) -> None:
    """The bytes `ahead` of here will be read; of no effect on what is computed, past an array's end too."""
    pointer = builder.gep(builder.bitcast(pointer, ir.IntType(8).as_pointer()), [I64(ahead)])
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    builder.call(function, [pointer, I32(0), I32(2), I32(1)])  # to read, into all caches but the first, data


def _literal(kind: Any) -> int:
    return int(kind.literal_value)


@intrinsic
def widen_e4m3(typing: Any, codes: Any, begin: Any, factor: Any, wide: Any, to: Any, scaled: Any) -> Any:
    """widen_e4m3(codes, begin, factor, wide, to, scaled): a packed block to F32, times 2**-8 or times `factor`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, b, lanes = signature.args, builder, 2 * TILE
        source = b.bitcast(at(context, b, kinds[0], *arguments[:2]), I16.as_pointer())
        target = at(context, b, kinds[3], *arguments[3:5])
        times = every(b, arguments[2], TILE)
        mask = constant(I16, lanes, HALF_BITS)
        for tile in range(BLOCK // TILE):

            def body(i: Any, _: list[Any], tile: int = tile) -> list[Any]:
                place = b.add(b.mul(i, I64(lanes)), I64(tile * PAIRS * TILE))
                prefetch(b, b.gep(source, [place]), AHEAD)
                both = load(b, source, ir.VectorType(I16, lanes), place)
                high = b.and_(b.ashr(both, constant(I16, lanes, 1)), mask)
                low = b.and_(b.ashr(b.shl(both, constant(I16, lanes, 8)), constant(I16, lanes, 1)), mask)
                for parity, half in enumerate((low, high)):
                    for pair in range(2):
                        some = ir.Constant(ir.VectorType(I32, TILE), list(range(pair * TILE, (pair + 1) * TILE)))
                        part = b.shuffle_vector(half, ir.Constant(half.type, ir.Undefined), some)
                        floats = b.fpext(b.bitcast(part, ir.VectorType(ir.HalfType(), TILE)), ir.VectorType(F32, TILE))
                        if _literal(kinds[5]):
                            floats = b.fmul(floats, times)
                        row = b.mul(i, I64(4 * BLOCK))
                        store(b, floats, target, b.add(row, I64((2 * pair + parity) * BLOCK + tile * TILE)))
                return []

            loop(b, PAIRS // 2, [], body)
        return context.get_dummy_value()

    return types.void(codes, types.int64, types.float32, wide, types.int64, scaled), generate


@intrinsic
def widen_bf16(typing: Any, words: Any, begin: Any, wide: Any, to: Any) -> Any:
    """widen_bf16(words, begin, wide, to): a packed block to F32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, b = signature.args, builder
        source = b.bitcast(at(context, b, kinds[0], *arguments[:2]), I32.as_pointer())
        target = at(context, b, kinds[2], *arguments[2:4])
        for tile in range(BLOCK // TILE):

            def body(i: Any, _: list[Any], tile: int = tile) -> list[Any]:
                place = b.add(b.mul(i, I64(TILE)), I64(tile * PAIRS * TILE))
                prefetch(b, b.gep(source, [place]), 2 * AHEAD)
                both = load(b, source, ir.VectorType(I32, TILE), place)
                low, high = b.shl(both, constant(I32, TILE, 16)), b.and_(both, constant(I32, TILE, 0xFFFF0000))
                for parity, bits in enumerate((low, high)):
                    row = b.mul(i, I64(2 * BLOCK))
                    store(b, bits, b.bitcast(target, I32.as_pointer()), b.add(row, I64(parity * BLOCK + tile * TILE)))
                return []

            loop(b, PAIRS, [], body)
        return context.get_dummy_value()

    return types.void(words, types.int64, wide, types.int64), generate


@intrinsic
def add_blocks(
    typing: Any, inputs: Any, begin: Any, stride: Any, wide: Any, start: Any, factors: Any, first: Any, totals: Any,
    to: Any, blocks: Any, tokens: Any, lanes: Any, fused: Any,
) -> Any:  # fmt: skip
    """Add `blocks` blocks of inputs to the totals of `tokens` tokens by BLOCK outputs.

    inputs[begin:] has a token's inputs every `stride`; wide[start:] the blocks' weights; factors[first:] a factor of
    each block, used where fused; totals[to:] is [token][output]. `tokens`, `lanes` and `fused` are literals.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, b = signature.args, builder
        count, width, fuse = (_literal(kind) for kind in kinds[10:13])
        source, weights = at(context, b, kinds[0], *arguments[:2]), at(context, b, kinds[3], *arguments[3:5])
        scale, sums = at(context, b, kinds[5], *arguments[5:7]), at(context, b, kinds[7], *arguments[7:9])
        vector = ir.VectorType(F32, width)
        zero = ir.Constant(vector, None)

        def add(a: Any, x: Any, y: Any) -> Any:
            return fma(b, x, y, a) if fuse else b.fadd(a, b.fmul(x, y))

        def block(number: Any, _: list[Any]) -> list[Any]:
            here = b.mul(number, I64(BLOCK))
            factor = every(b, load(b, scale, F32, number), width) if fuse else None
            for part in range(0, BLOCK, VECTORS * width):

                def pair(j: Any, sums: list[Any], part: int = part) -> list[Any]:
                    made: list[Any] = []
                    for parity in range(2):
                        k = b.add(here, b.add(b.mul(j, I64(2)), I64(parity)))
                        row = b.add(b.mul(k, I64(BLOCK)), I64(part))
                        w = [load(b, weights, vector, b.add(row, I64(v * width))) for v in range(VECTORS)]
                        for t in range(count):
                            where = b.add(k, b.mul(arguments[2], I64(t)))
                            e = every(b, load(b, source, F32, where), width)
                            made += [add(sums[len(made) + v], e, w[v]) for v in range(VECTORS)]
                    return made

                ends = loop(b, PAIRS, [zero] * (2 * VECTORS * count), pair)
                for i in range(VECTORS * count):
                    whole = b.fadd(ends[i], ends[i + VECTORS * count])
                    place = i // VECTORS * BLOCK + part + i % VECTORS * width
                    before = load(b, sums, vector, place)
                    store(b, fma(b, whole, factor, before) if fuse else b.fadd(before, whole), sums, place)
            return []

        loop(b, arguments[9], [], block)
        return context.get_dummy_value()

    return types.void(
        inputs, types.int64, types.int64, wide, types.int64, factors, types.int64, totals, types.int64, types.int64,
        tokens, lanes, fused,
    ), generate  # fmt: skip
