"""The projection by tile instructions (AMX): the same loop over a tile machine that is the processor's or written out.

A machine has eight tiles of up to 16 rows of 64 bytes, and `dot`: for every row of a and column of b, the products of
the even inputs summed from +0 in order, those of the odd ones too, then the total plus their sum, each step one fused
F32 operation that takes and gives 0 for what is subnormal (Intel's Architecture Instruction Set Extensions, TDPBF16PS).
"""

# ruff: noqa: ANN401 - llvmlite and Numba have no types
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engramctl.fast.vectors import (
    AHEAD,
    F32,
    HALF_BITS,
    I16,
    I32,
    I64,
    PAIRS,
    TILE,
    _literal,
    at,
    constant,
    every,
    fma,
    insert,
    intrinsic,
    load,
    loop,
    prefetch,
    store,
)
from formats.row264 import BLOCK

I8 = ir.IntType(8)
LINE, TILE_BYTES, TILES = 64, 1024, 8
CONFIG_BYTES = 64  # palette, widths in bytes from COLUMNS on, rows from ROWS on
COLUMNS, ROWS = 16, 48
STATE_BYTES = CONFIG_BYTES + TILES * TILE_BYTES


class Hardware:
    """The processor's tiles. Compile this for a target that has them only."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def _call(self, name: str, *arguments: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
        self.b.call(insert(self.b.module, kind, f"llvm.x86.{name}"), arguments)

    def configure(self, config: Any) -> None:
        self._call("ldtilecfg", config)

    def release(self) -> None:
        self._call("tilerelease")

    def load(self, tile: int, pointer: Any) -> None:
        self._call("tileloadd64", I8(tile), pointer, I64(LINE))

    def store(self, tile: int, pointer: Any) -> None:
        self._call("tilestored64", I8(tile), pointer, I64(LINE))

    def dot(self, c: int, a: int, b: int) -> None:
        self._call("tdpbf16ps", I8(c), I8(a), I8(b))


class Software:
    """The same in instructions that every processor has; `state` is STATE_BYTES of memory."""

    def __init__(self, builder: Any, state: Any) -> None:
        self.b, self.state = builder, state

    def _rows(self, tile: int) -> Any:
        return self.b.zext(load(self.b, self.state, I8, ROWS + tile), I64)

    def _width(self, tile: int) -> Any:
        words = self.b.bitcast(self.state, I16.as_pointer())
        return self.b.zext(load(self.b, words, I16, COLUMNS // 2 + tile), I64)

    def _tile(self, tile: int) -> Any:
        return self.b.gep(self.state, [I64(CONFIG_BYTES + tile * TILE_BYTES)])

    def configure(self, config: Any) -> None:
        self.copy(self.state, config, I64(CONFIG_BYTES))
        self.clear(self.b.gep(self.state, [I64(CONFIG_BYTES)]), TILES * TILE_BYTES)

    def copy(self, to: Any, source: Any, count: Any) -> None:
        def byte(i: Any, _: list[Any]) -> list[Any]:
            store(self.b, load(self.b, source, I8, i), to, i)
            return []

        loop(self.b, count, [], byte)

    def clear(self, to: Any, count: int) -> None:
        def byte(i: Any, _: list[Any]) -> list[Any]:
            store(self.b, I8(0), to, i)
            return []

        loop(self.b, count, [], byte)

    def release(self) -> None:
        self.clear(self.state, STATE_BYTES)

    def load(self, tile: int, pointer: Any) -> None:
        self.clear(self._tile(tile), TILE_BYTES)
        self._by_rows(tile, self._tile(tile), pointer)

    def store(self, tile: int, pointer: Any) -> None:
        self._by_rows(tile, pointer, self._tile(tile))

    def _by_rows(self, tile: int, to: Any, source: Any) -> None:
        width = self._width(tile)

        def row(i: Any, _: list[Any]) -> list[Any]:
            here = [self.b.mul(i, I64(LINE))]
            self.copy(self.b.gep(to, here), self.b.gep(source, here), width)
            return []

        loop(self.b, self._rows(tile), [], row)

    def _flushed(self, x: Any) -> Any:
        """0 of the same sign for a subnormal."""
        b, kind = self.b, ir.VectorType(I32, TILE)
        bits = b.bitcast(x, kind)
        small = b.icmp_unsigned("==", b.and_(bits, constant(I32, TILE, 0x7F800000)), constant(I32, TILE, 0))
        return b.bitcast(b.select(small, b.and_(bits, constant(I32, TILE, 0x80000000)), bits), x.type)

    def dot(self, c: int, a: int, b: int) -> None:
        builder, vector = self.b, ir.VectorType(F32, TILE)
        pairs = builder.lshr(self._width(a), I64(2))
        words = [builder.bitcast(self._tile(tile), I32.as_pointer()) for tile in (c, a, b)]

        def halves(both: Any) -> list[Any]:
            low, high = builder.shl(both, constant(I32, TILE, 16)), builder.and_(both, constant(I32, TILE, 0xFFFF0000))
            return [self._flushed(builder.bitcast(half, vector)) for half in (low, high)]

        def row(m: Any, _: list[Any]) -> list[Any]:
            here = builder.mul(m, I64(TILE))

            def pair(k: Any, sums: list[Any]) -> list[Any]:
                x = halves(every(builder, load(builder, words[1], I32, builder.add(here, k)), TILE))
                w = halves(load(builder, words[2], ir.VectorType(I32, TILE), builder.mul(k, I64(TILE))))
                return [self._flushed(fma(builder, x[i], w[i], sums[i])) for i in range(2)]

            even, odd = loop(builder, pairs, [ir.Constant(vector, None)] * 2, pair)
            total = builder.bitcast(load(builder, words[0], ir.VectorType(I32, TILE), here), vector)
            made = self._flushed(builder.fadd(self._flushed(total), self._flushed(builder.fadd(even, odd))))
            store(builder, builder.bitcast(made, ir.VectorType(I32, TILE)), words[0], here)
            return []

        loop(builder, self._rows(c), [], row)


def emit_blocks(builder: Any, machine: Any, a: Any, a_step: Any, w: Any, c: Any, blocks: Any, tiles: int) -> None:
    """Add `blocks` blocks of inputs to the totals of `tiles` tiles of tokens (1 or 2) by BLOCK outputs.

    a: bytes, a block's tiles of tokens one after another, the next block `a_step` further; w: a block's two tiles of
    weights one after another; c: totals, [tile of tokens][tile of outputs].
    """
    outputs = BLOCK // TILE
    place = [builder.gep(c, [I64(i * TILE_BYTES)]) for i in range(tiles * outputs)]
    for i, pointer in enumerate(place):
        machine.load(i, pointer)

    def block(number: Any, _: list[Any]) -> list[Any]:
        inputs = builder.gep(a, [builder.mul(number, a_step)])
        weights = builder.gep(w, [builder.mul(number, I64(outputs * TILE_BYTES))])
        for t in range(tiles):
            machine.load(4 + t, builder.gep(inputs, [I64(t * TILE_BYTES)]))
        for n in range(outputs):
            machine.load(6 + n, builder.gep(weights, [I64(n * TILE_BYTES)]))
        for t in range(tiles):
            for n in range(outputs):
                machine.dot(t * outputs + n, 4 + t, 6 + n)
        return []

    loop(builder, blocks, [], block)
    for i, pointer in enumerate(place):
        machine.store(i, pointer)


def _machine(context: Any, builder: Any, kind: Any, state: Any, hardware: Any) -> Any:
    if _literal(hardware):
        return Hardware(builder)
    return Software(builder, at(context, builder, kind, state, I64(0)))


@intrinsic
def configure(typing: Any, config: Any, state: Any, hardware: Any) -> Any:
    """configure(config, state, hardware): the tiles' shapes, and zeros in them; `hardware` is a literal."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        machine = _machine(context, builder, kinds[1], arguments[1], kinds[2])
        machine.configure(at(context, builder, kinds[0], arguments[0], I64(0)))
        return context.get_dummy_value()

    return types.void(config, state, hardware), generate


@intrinsic
def release(typing: Any, state: Any, hardware: Any) -> Any:
    """release(state, hardware): the tiles are free, and cost nothing when threads change places."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _machine(context, builder, signature.args[0], arguments[0], signature.args[1]).release()
        return context.get_dummy_value()

    return types.void(state, hardware), generate


@intrinsic
def tile_blocks(
    typing: Any, a: Any, begin: Any, step: Any, made: Any, wide: Any, w: Any, data: Any, here: Any, totals: Any,
    to: Any, blocks: Any, state: Any, tiles: Any, hardware: Any,
) -> Any:  # fmt: skip
    """`emit_blocks` on flat arrays: weights wide[w:] where `made`, else data[here:].

    Places and `step` are in bytes, `to` in totals; `tiles` and `hardware` are literals.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, b = signature.args, builder
        pointers = {i: at(context, b, kinds[i], arguments[i], arguments[i + 1]) for i in (0, 4, 6, 8)}
        weights = b.select(b.icmp_unsigned("!=", arguments[3], I64(0)), pointers[4], pointers[6])
        c = b.bitcast(pointers[8], I8.as_pointer())
        machine = _machine(context, b, kinds[11], arguments[11], kinds[13])
        emit_blocks(b, machine, pointers[0], arguments[2], weights, c, arguments[10], _literal(kinds[12]))
        return context.get_dummy_value()

    n = types.int64
    return types.void(a, n, n, n, wide, n, data, n, totals, n, n, state, tiles, hardware), generate


@intrinsic
def e4m3_to_bf16(typing: Any, codes: Any, begin: Any, factor: Any, words: Any, to: Any) -> Any:
    """e4m3_to_bf16(codes, begin, factor, words, to): a packed block times `factor` as BF16, in the same order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, b = signature.args, builder
        source = b.bitcast(at(context, b, kinds[0], *arguments[:2]), I16.as_pointer())
        target = b.bitcast(at(context, b, kinds[3], *arguments[3:5]), I32.as_pointer())
        times, mask = every(b, arguments[2], TILE), constant(I16, TILE, HALF_BITS)

        def pair(i: Any, _: list[Any]) -> list[Any]:
            place = b.mul(i, I64(TILE))
            prefetch(b, b.gep(source, [place]), AHEAD)
            both = load(b, source, ir.VectorType(I16, TILE), place)
            bits = []
            for half in (b.shl(both, constant(I16, TILE, 8)), both):
                half = b.and_(b.ashr(half, constant(I16, TILE, 1)), mask)
                floats = b.fpext(b.bitcast(half, ir.VectorType(ir.HalfType(), TILE)), ir.VectorType(F32, TILE))
                bits.append(b.bitcast(b.fmul(floats, times), ir.VectorType(I32, TILE)))
            word = b.or_(b.lshr(bits[0], constant(I32, TILE, 16)), b.and_(bits[1], constant(I32, TILE, 0xFFFF0000)))
            store(b, word, target, place)
            return []

        loop(b, BLOCK // TILE * PAIRS, [], pair)
        return context.get_dummy_value()

    return types.void(codes, types.int64, types.float32, words, types.int64), generate
