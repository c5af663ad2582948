"""History: the compressed ids of one sequence, so that chunks, single tokens, forks and rollbacks all hash alike."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.hash_params import DEAD, HashParams, Mask, Tokens

Snapshot = tuple[int, ...]
HashRows = Callable[..., NDArray[np.int64]]


class History:
    """One sequence's past. Rows at a position depend on the size - 1 positions before it, and on nothing else.

    Every position's compressed id is kept (8 bytes a token), so any earlier length can be returned to.
    """

    def __init__(self, params: HashParams, past: Snapshot = ()) -> None:
        """`past`: compressed ids of any length, oldest first, DEAD where dead; others are refused."""
        self.params = params
        self._ids = array("q")
        self.restore(past)

    def __len__(self) -> int:
        return len(self._ids)

    def tail(self) -> tuple[int, ...]:
        """The last size - 1 compressed ids, oldest first, DEAD where dead; fewer where the sequence is shorter."""
        return tuple(self._ids[max(0, len(self._ids) - self.params.size + 1) :])

    def append(self, tokens: Tokens, mask: Mask | None = None, using: HashRows | None = None) -> NDArray[np.int64]:
        """[T] token ids (mask True: text) -> [T, L, C] rows; refused ids leave the history as it was.

        `using` is the `hash_rows` to call: the reference's unless another is given.
        """
        ids = self.params.compress(tokens, mask)
        from engramctl import reference

        rows = (using or reference.hash_rows)(tokens, self.params, mask, self.tail())
        self._ids.extend(ids.tolist())
        return rows

    def mask(self, count: int, using: HashRows | None = None) -> NDArray[np.int64]:
        """Append `count` dead positions (an image): [count, L, C] rows, all of them the filler's."""
        if count < 0:
            raise EngramctlError("mask", "a count of at least 0", f"{count}")
        return self.append(np.zeros(count, np.int64), np.zeros(count, np.bool_), using)

    def snapshot(self) -> Snapshot:
        """Everything needed to come back here; unaffected by what follows."""
        return tuple(self._ids)

    def restore(self, snapshot: Snapshot) -> None:
        """Go to where a snapshot was taken; ids that are no compressed ones are refused."""
        if snapshot and not DEAD <= min(snapshot) <= max(snapshot) < self.params.compressed:
            what = f"compressed ids in 0..{self.params.compressed - 1}, or {DEAD} for a dead position"
            raise EngramctlError("history", what, f"{min(snapshot)} to {max(snapshot)}")
        self._ids = array("q", snapshot)

    def fork(self) -> History:
        """An independent sequence with the same past."""
        made = History(self.params)
        made._ids = self._ids[:]
        return made

    def rollback(self, length: int) -> None:
        """Forget every position from `length` on (a rejected draft); a length beyond the end is refused."""
        if not 0 <= length <= len(self._ids):
            raise EngramctlError("rollback", f"a length in 0..{len(self._ids)}", f"{length}")
        del self._ids[length:]

    def reset(self) -> None:
        del self._ids[:]


__all__ = ["DEAD", "History", "Snapshot"]
