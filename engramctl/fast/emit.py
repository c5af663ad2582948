"""Instructions that Numba has no words for: prefetch, copy, and a block's decoding 32 values at a time.

All of it is LLVM's portable IR, which every processor has or ignores; vectors are cut to the widths that there are.
Indices are not checked: who calls these has checked the row numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types

from formats.floats import E4M3_NAN
from formats.row264 import BLOCK

intrinsic: Callable[[Any], Any] = extending.intrinsic  # what it makes takes one argument fewer than is written

BYTE, WORD, BITS = ir.VectorType(ir.IntType(8), BLOCK), ir.VectorType(ir.IntType(16), BLOCK), ir.IntType(BLOCK)
SIGN, SUBNORMAL = 0x80, 8  # codes below 8, sign apart, are multiples of 2**-9

# Under scale byte 136 + 127 a subnormal code is itself: 1, 2 to 3 and 4 to 7 as BF16, and what a step between adds.
SMALL = ((1, 0x3F80, 0), (2, 0x4000, 6), (4, 0x4080, 5))
SMALL_BIAS, NORMAL_BIAS = 136, 7  # taken from the scale byte; both together with E4M3's own bias are BF16's exponent


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any, to: Any = None) -> Any:  # noqa: ANN401
    """Of a flat array's element, as a pointer to bytes or to `to`."""
    view = context.make_array(kind)(context, builder, array)
    return builder.bitcast(builder.gep(view.data, [index]), ir.PointerType(to or ir.IntType(8)))


def _every(kind: Any, number: int) -> Any:  # noqa: ANN401
    return ir.Constant(kind, [number] * BLOCK)


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:  # noqa: ANN401
    """prefetch(array, index): the line with a flat array's element will be read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        address, number = _address(context, builder, signature.args[0], *arguments), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(function, [address, number(0), number(3), number(1)])  # to read, into every cache, data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def copy(typing: Any, out: Any, to: Any, source: Any, at: Any, count: Any) -> Any:  # noqa: ANN401
    """copy(out, to, source, at, count): bytes of flat arrays that share none. A literal count is unrolled."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        kinds = signature.args
        target = _address(context, builder, kinds[0], *arguments[:2])
        origin = _address(context, builder, kinds[2], *arguments[2:4])
        count = arguments[4]
        if isinstance(kinds[4], types.IntegerLiteral):
            count = ir.IntType(64)(kinds[4].literal_value)
        kind = ir.FunctionType(ir.VoidType(), [target.type, origin.type, count.type, ir.IntType(1)])
        function = builder.module.declare_intrinsic("llvm.memcpy", [target.type, origin.type, count.type], kind)
        builder.call(function, [target, origin, count, ir.IntType(1)(0)])
        return context.get_dummy_value()

    size = count if isinstance(count, types.IntegerLiteral) else types.int64
    return types.void(out, types.int64, source, types.int64, size), generate


@intrinsic
def decode_block(typing: Any, codes: Any, at: Any, scale: Any, out: Any, to: Any) -> Any:  # noqa: ANN401
    """decode_block(codes, at, scale, out, to) -> is there a NaN: BLOCK codes to BF16 under a scale byte of 10 to 246.

    Under those, every number's value is a normal BF16 with no bit to round off: exponents are added, nothing else.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        kinds, b = signature.args, builder
        loaded = b.load(_address(context, b, kinds[0], arguments[0], arguments[1], BYTE))
        loaded.align = 1
        code = b.zext(loaded, WORD)
        size, sign = b.and_(code, _every(WORD, 0x7F)), b.shl(b.and_(code, _every(WORD, SIGN)), _every(WORD, 8))

        lanes = ir.VectorType(ir.IntType(32), BLOCK)
        one = b.insert_element(ir.Constant(WORD, ir.Undefined), b.zext(arguments[2], ir.IntType(16)), ir.IntType(32)(0))
        exponent = b.shuffle_vector(one, ir.Constant(WORD, ir.Undefined), ir.Constant(lanes, [0] * BLOCK))

        def under(value: Any, bias: int) -> Any:  # noqa: ANN401
            return b.add(value, b.shl(b.sub(exponent, _every(WORD, bias)), _every(WORD, 7)))

        small = ir.Constant(WORD, [0] * BLOCK)
        for least, bits, step in SMALL:
            stepped = b.add(_every(WORD, bits), b.shl(b.sub(size, _every(WORD, least)), _every(WORD, step)))
            if not step:
                stepped = _every(WORD, bits)
            small = b.select(b.icmp_unsigned(">=", size, _every(WORD, least)), under(stepped, SMALL_BIAS), small)
        normal = under(b.shl(size, _every(WORD, 4)), NORMAL_BIAS)
        value = b.select(b.icmp_unsigned(">=", size, _every(WORD, SUBNORMAL)), normal, small)
        stored = b.store(b.or_(value, sign), _address(context, b, kinds[3], arguments[3], arguments[4], WORD))
        stored.align = 2
        nan = b.icmp_unsigned("==", size, _every(WORD, E4M3_NAN))
        return b.icmp_unsigned("!=", b.bitcast(nan, BITS), BITS(0))

    return types.boolean(codes, types.int64, types.uint8, out, types.int64), generate
