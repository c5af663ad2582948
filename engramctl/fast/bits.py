"""BF16 inside kernels: widened and rounded by the bits, as in `formats.floats`, but for its NaN rule."""

from __future__ import annotations

import numpy as np

from engramctl.fast.cache import helper


@helper
def widen(bits: np.uint16) -> np.float32:
    """BF16 bits -> F32."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@helper
def narrow(value: np.float32) -> np.uint16:
    """F32 -> BF16 bits, nearest even. A NaN whose lower half is set could leave the NaNs: kernels only make others."""
    bits = np.float32(value).view(np.uint32)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
