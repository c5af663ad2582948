"""A row's codes to BF16, many at a time, as LLVM's generic IR on vectors of a given width and one look-up of bytes.

A code's bits without the sign are 8 * exponent + eighths, and so are a BF16 number's over 16; only a subnormal code is
a few units off, by how many is a table of eight bytes. With m a code without its sign, and modulo 256 and 65536:

    b     = m + 0x78                      0x80 and above, but for a subnormal
    b     = b + SMALL[b % 16]             for those only: a zero's is 0, the others' 0x68 to 0x7E
    word  = min(16 * b + base, 256 * b)   base is the scale's; the second for a zero alone, which has no exponent
    BF16  = word | sign

Under a scale byte of LEAST_SCALE to MOST_SCALE every number's value is a normal BF16 with no bit to round off, and
16 * b + base is at most 256 * b unless b is 0. Rows with other scales or a NaN are left to a table of all values.
"""

# ruff: noqa: ANN401 - llvmlite and Numba have no types
from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from engramctl.fast.vectors import I16, I32, at, constant, insert, intrinsic, load, store
from formats.floats import E4M3_NAN
from formats.row264 import BLOCK, SCALES, WIDTH

I8, I64 = ir.IntType(8), ir.IntType(64)
NORMAL = 0x78
LEAST_SCALE, MOST_SCALE = 10, 217
BASE = 22  # taken from a scale byte: E4M3's bias, and NORMAL's 15 exponents
# m of 1 to 7 is m/8 without a leading 1; with one, it is of a lower exponent: 8 units less for each.
SMALL = (0,) * 8 + tuple(units % 256 for units in (-NORMAL, -17, -10, -7, -4, -3, -2, -1))
# Of a byte by its lower four bits, 0 where the top one is set; within lanes, as interleaving is.
SHUFFLES = {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b"}
LANE = 16


def bases() -> NDArray[np.uint32]:
    """Of each scale byte, twice side by side."""
    word = ((np.arange(256) - BASE) * 128).astype(np.uint16).astype(np.uint32)
    return word | word << np.uint32(16)


@intrinsic
def decode_row(
    typing: Any, codes: Any, begin: Any, scales: Any, under: Any, bases: Any, out: Any, to: Any, lanes: Any,
    shuffled: Any,
) -> Any:  # fmt: skip
    """decode_row(codes, begin, scales, under, bases, out, to, lanes, shuffled) -> are these the values?

    WIDTH codes from `begin` on under scales from `under` on to WIDTH words; all arrays are flat. Not where a code is a
    NaN or a scale is not usual. The last two are literals: a vector's bytes, and whether it has one of SHUFFLES.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, b = signature.args, builder
        count, quick = int(kinds[7].literal_value), bool(kinds[8].literal_value)
        source, scale = at(context, b, kinds[0], *arguments[:2]), at(context, b, kinds[2], *arguments[2:4])
        base, target = at(context, b, kinds[4], arguments[4], I64(0)), at(context, b, kinds[5], *arguments[5:7])
        half, vector = count // 2, ir.VectorType(I8, count)
        most = ir.Constant(vector, None)
        for start in range(0, WIDTH, count):
            code = _in_lanes(b, load(b, source, vector, start))
            size = b.add(b.and_(code, constant(I8, count, 0x7F)), constant(I8, count, NORMAL))
            most = b.select(b.icmp_unsigned(">", size, most), size, most)
            size = b.add(size, _looked_up(b, size) if quick else _compared(b, size))
            for part, pairs in enumerate(_interleaved(b, size, code)):
                block = (start + part * half) // BLOCK
                number = b.zext(b.load(b.gep(scale, [I64(block)])), I64)
                twice = b.insert_element(_undefined(I32, half // 2), b.load(b.gep(base, [number])), I32(0))
                added = b.bitcast(b.shuffle_vector(twice, twice, _numbers([0] * (half // 2))), pairs.type)
                wide = b.shl(pairs, constant(I16, half, 8))
                word = b.add(b.lshr(wide, constant(I16, half, 4)), added)
                word = b.select(b.icmp_unsigned("<", word, wide), word, wide)
                sign = b.and_(pairs, constant(I16, half, 0x8000))
                store(b, b.or_(word, sign), target, start + part * half)
        under = b.sub(load(b, scale, ir.VectorType(I8, SCALES)), constant(I8, SCALES, LEAST_SCALE))
        unusual = b.icmp_unsigned(">", under, constant(I8, SCALES, MOST_SCALE - LEAST_SCALE))
        nan = b.icmp_unsigned("==", most, constant(I8, count, E4M3_NAN + NORMAL))
        return b.not_(b.or_(_any(b, nan), _any(b, unusual)))

    return types.boolean(codes, types.int64, scales, types.int64, bases, out, types.int64, lanes, shuffled), generate


def _any(b: Any, found: Any) -> Any:
    bits = ir.IntType(found.type.count)
    return b.icmp_unsigned("!=", b.bitcast(found, bits), bits(0))


def _undefined(kind: Any, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(kind, lanes), ir.Undefined)


def _numbers(places: list[int]) -> Any:
    return ir.Constant(ir.VectorType(I32, len(places)), places)


def _in_lanes(b: Any, code: Any) -> Any:
    """Eights of bytes so that interleaving within lanes leaves all in order: first halves here, second there."""
    eights = code.type.count // 8
    order = [i // 2 + i % 2 * (eights // 2) for i in range(eights)]
    eight = b.bitcast(code, ir.VectorType(I64, eights))
    return b.bitcast(b.shuffle_vector(eight, eight, _numbers(order)), code.type)


def _interleaved(b: Any, low: Any, high: Any) -> list[Any]:
    """Words of the bytes of two vectors, those of the lanes' first halves and those of the second."""
    count, words = low.type.count, ir.VectorType(I16, low.type.count // 2)
    made = []
    for part in (0, LANE // 2):
        places = [lane + part + i for lane in range(0, count, LANE) for i in range(LANE // 2)]
        made.append(b.shuffle_vector(low, high, _numbers([p for place in places for p in (place, place + count)])))
    return [b.bitcast(each, words) for each in made]


def _looked_up(b: Any, size: Any) -> Any:
    """What SMALL has for each byte."""
    count = size.type.count
    function = insert(b.module, ir.FunctionType(size.type, [size.type] * 2), SHUFFLES[count])
    return b.call(function, [ir.Constant(size.type, list(SMALL) * (count // LANE)), size])


def _compared(b: Any, size: Any) -> Any:
    """The same without a look-up."""
    count = size.type.count
    found = ir.Constant(size.type, None)
    for place, step in enumerate(SMALL[8:]):
        here = b.icmp_unsigned("==", size, constant(I8, count, NORMAL + place))
        found = b.select(here, constant(I8, count, step), found)
    return found
