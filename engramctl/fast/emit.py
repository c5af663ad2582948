"""Instructions that Numba has no words for: prefetch and copy.

Both are LLVM's portable IR, which every processor has or ignores.
Indices are not checked: who calls these has checked the row numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types

intrinsic: Callable[[Any], Any] = extending.intrinsic  # what it makes takes one argument fewer than is written


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:  # noqa: ANN401
    """Of a flat array's element, as a pointer to bytes."""
    view = context.make_array(kind)(context, builder, array)
    return builder.bitcast(builder.gep(view.data, [index]), ir.PointerType(ir.IntType(8)))


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
