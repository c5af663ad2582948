"""The two tiers that must agree, and how a test asks both the same thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engramctl import fast, reference
from engramctl.errors import EngramctlError

TIERS = [pytest.param(reference, id="reference"), pytest.param(fast, id="fast")]


def bits(array: np.ndarray) -> np.ndarray:
    """An array as unsigned integers: -0 differs from +0, and a NaN equals itself."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def outcome(function: Callable[..., Any], *arguments: object) -> list[Any]:
    """The bits of all results, or the refusal's words."""
    try:
        results = function(*arguments)
    except EngramctlError as error:
        return [str(error)]
    return [bits(array).tolist() for array in (results if isinstance(results, tuple) else (results,))]
