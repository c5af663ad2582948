"""Axes in any order: which of them may an array's dimensions be?

Axes have one letter each: T tokens, L layers, N n-gram orders, H heads, W a row's values, S streams and the value, D
the hidden width. A dimension may be several neighbouring axes in one; N and H in one dimension are the columns, orders
outside. Axes of size 1 may be there or not. `sizes` has the letters in their natural order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError

LETTERS = "TLNHWSD"
Sizes = Mapping[str, int]  # by letter


def readings(shape: tuple[int, ...], sizes: Sizes) -> list[str]:
    """Every order of the axes longer than 1 that fits the shape, the natural one first."""
    letters = [letter for letter in sizes if sizes[letter] > 1]
    dims = [size for size in shape if size != 1]
    if math.prod(dims) != math.prod(sizes[letter] for letter in letters):
        return []
    return ["".join(order) for order in permutations(letters) if _fits("".join(order), dims, sizes)]


def _fits(order: str, dims: list[int], sizes: Sizes) -> bool:
    """Do the dimensions part the axes, in this order, with columns whole where both of theirs are in one?"""
    at = 0
    for dim in dims:
        start, size = at, 1
        while size < dim and at < len(order):
            size *= sizes[order[at]]
            at += 1
        group = order[start:at]
        if size != dim or ("N" in group and "H" in group and "NH" not in group):
            return False
    return at == len(order)


def natural(array: NDArray[Any], order: str, sizes: Sizes) -> NDArray[Any]:
    """The array with every axis, in the natural order."""
    parted = array.reshape([sizes[letter] for letter in order])
    letters = [letter for letter in sizes if letter in order]
    turned = parted.transpose([order.index(letter) for letter in letters])
    return np.ascontiguousarray(turned).reshape(tuple(sizes.values()))


def is_natural(order: str, sizes: Sizes) -> bool:
    return [*order] == sorted(order, key=[*sizes].index)


def chosen(shape: tuple[int, ...], sizes: Sizes, said: str | None) -> str | None:
    """The order that was said, the natural one, or the only one; None if nothing fits. An open choice is asked for."""
    orders = readings(shape, sizes)
    if said is not None:
        wanted = "".join(letter for letter in parse(said) if sizes.get(letter, 1) > 1)
        if wanted not in orders:
            ways = " or ".join(shown(order) for order in orders) or "none"
            raise EngramctlError("--axes", f"an order that {list(shape)} allows: {ways}", shown(wanted) or "none")
        return wanted
    if not orders or len(orders) == 1 or is_natural(orders[0], sizes):
        return orders[0] if orders else None
    ways = " or ".join(shown(order) for order in orders)
    raise EngramctlError("--axes", f"which of {ways} {list(shape)} is", "none")


def parse(text: str) -> str:
    """`--axes T,L,C`: letters in the array's order; C stands for N,H."""
    order = text.replace(",", "").replace(" ", "").upper().replace("C", "NH")
    if not order or len(set(order)) != len(order) or not set(order) <= set(LETTERS):
        raise EngramctlError("--axes", "letters of T, L, C (or N, H), W, S, D, each once, as in T,L,C", repr(text)[:40])
    return order


def shown(order: str) -> str:
    """An order as a user writes it."""
    return ",".join(order.replace("NH", "C"))
