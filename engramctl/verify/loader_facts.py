"""What a loader's rule looks at, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.profiles import Sizes
from engramctl.verify.constants import Stored
from formats.dialects import Dialect
from formats.errors import shown
from formats.gguf_file import GgufHeader, TensorInfo

Broken = tuple[str, str, str]  # where, expected, found


def called(tensor: TensorInfo) -> str:
    """A tensor in a finding: its name, quoted and cut where it is none that anyone would give."""
    plain = tensor.name.isascii() and tensor.name.isprintable() and 0 < len(tensor.name) <= 80
    return f"tensor {tensor.name if plain else shown(tensor.name)}"


@dataclass(frozen=True)
class Facts:
    """What the rules look at: a header, what the file says of itself, and the sizes that it has to have."""

    path: Path
    header: GgufHeader
    dialect: Dialect
    stored: Stored
    sizes: Sizes  # of the layers the file should hold, from its own config or else the profile
    text: Mapping[str, Any] | None  # the config's language part, if there is one
    telling: Callable[[int], NDArray[np.int64]]  # rows of a layer's table at which addressing bugs show

    def name(self, role: str, layer: int) -> str:
        return self.dialect.tensors[role].format(layer=layer)

    def key(self, role: str) -> str:
        return self.dialect.keys[role].name

    def tensor(self, role: str, layer: int) -> TensorInfo | None:
        if role not in self.dialect.tensors:
            return None
        return self.header.named.get(self.name(role, layer))


@dataclass(frozen=True)
class Rule:
    """One demand. `source` is repository and path."""

    id: str
    demands: str
    source: str
    broken: Callable[[Facts], Iterator[Broken]]
    reads_rows: bool = False  # more than the header
