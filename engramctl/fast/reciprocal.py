"""Remainders without division: eight moduli at once, by a reciprocal that is a little too small.

For 0 <= x < 2**63 and 2**14 < p < 2**31 let `inverse` be 1/p times 1 - 2**-50, in float64, and

    q = floor(float64(x) * inverse)        r = (x - q * p) mod 2**32        x mod p = min(r, (r - p) mod 2**32)

Proof. p and 1 - 2**-50 are float64 numbers. 1/p, its product with 1 - 2**-50, float64(x) and the last product each
round by at most 2**-53 of themselves, so what is floored is x/p times (1 - 2**-50) * (1 +- 2**-53)**4: not above x/p,
and short of it by less than x/p * 2**-49 < 2**63 / p * 2**-49 = 2**14 / p < 1. So q is floor(x/p) or one less,
x - q * p is in 0..2p-1 < 2**32, and 32 bits of it are all of it. If it is below p, r - p wraps around to more than r;
else r - p is the remainder, and less than r.
"""

# ruff: noqa: ANN401 - llvmlite and Numba have no types
from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from engramctl.fast.vectors import I32, I64, at, every, intrinsic, load, store

LANES = 8
LEAST, MOST = 1 << 14, 1 << 31  # both themselves too near
SHORT = 1 - 2.0**-50


def fits(moduli: NDArray[np.uint64]) -> bool:
    """Does the proof cover them?"""
    return int(moduli.min()) > LEAST and int(moduli.max()) < MOST


def inverses(moduli: NDArray[np.uint64]) -> NDArray[np.float64]:
    return np.float64(1) / moduli.astype(np.float64) * SHORT


@intrinsic
def eight_rows(typing: Any, x: Any, moduli: Any, inverse: Any, offsets: Any, first: Any, out: Any, to: Any) -> Any:
    """eight_rows(x, moduli, inverse, offsets, first, out, to): out[to:] = x % moduli[first:] + offsets[first:].

    x below 2**63; moduli uint32, inverses float64, offsets uint64; out int64 or int32, all flat.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, b = signature.args, builder
        narrow = ir.VectorType(I32, LANES)
        number, column = arguments[0], arguments[4]
        p = load(b, at(context, b, kinds[1], arguments[1], column), narrow)
        inverses = load(b, at(context, b, kinds[2], arguments[2], column), ir.VectorType(ir.DoubleType(), LANES))
        offset = load(b, at(context, b, kinds[3], arguments[3], column), ir.VectorType(I64, LANES))
        product = b.fmul(every(b, b.sitofp(number, ir.DoubleType()), LANES), inverses)
        q = b.trunc(b.fptosi(product, ir.VectorType(I64, LANES)), narrow)
        r = b.sub(every(b, b.trunc(number, I32), LANES), b.mul(q, p))
        less = b.sub(r, p)
        r = b.select(b.icmp_unsigned("<", less, r), less, r)
        wide = kinds[5].dtype.bitwidth == 64
        row = b.add(b.zext(r, offset.type), offset) if wide else b.add(r, b.trunc(offset, narrow))
        store(b, row, at(context, b, kinds[5], arguments[5], arguments[6]))
        return context.get_dummy_value()

    return types.void(types.uint64, moduli, inverse, offsets, types.int64, out, types.int64), generate
