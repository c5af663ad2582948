"""HashParams: everything between a token id and a row number. One gate checks it; nothing behind the gate doubts it.

    row[layer, column] = (xor over the order's tokens of id * multiplier) mod modulus[column] + offset[column]

Derivation (a check on stored constants, since NumPy's generator promises no stream across versions): moduli are the
unused primes
from `base` upwards in one ascending walk over layers, orders and heads; multipliers come from
`numpy.random.default_rng(seed + 10007 * layer)`, odd, and below 2**63 / compressed so that no product overflows.
Source: deepseek-ai/DeepSeek-V4.1-Flash inference/engram.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engramctl import rules
from engramctl.errors import EngramctlError
from engramctl.profiles import Profile, Sizes
from engramctl.rules import V41_RULE, HashRule

DEAD = -1  # a position that is no text (an image): it blocks look-back, its own rows are all filler
INT64_MAX = 2**63 - 1
SEED_STEP = 10007  # a layer's generator is seeded with seed + SEED_STEP * layer
MOST_COMPRESSED = 1 << 32  # a token map's entries have 32 bits
MOST_BASE = 1 << 40  # so that a layer's moduli add up to less than 2**63, whatever their number
MOST_COLUMNS = 1 << 12  # derivation of more is refused: a config that asks for it is not a model's

Tokens = NDArray[np.int64] | Sequence[int]
Mask = NDArray[np.bool_] | Sequence[bool]
Status = Literal["stored = derived", "stored only", "conflict"]


def as_row(values: Tokens | Mask, where: str, expected: str) -> NDArray[Any]:
    """The values as an array; lists of unequal lists raise `EngramctlError`."""
    try:
        return np.asarray(values)
    except ValueError:
        raise EngramctlError(where, expected, "lists of unequal lengths") from None


@dataclass(frozen=True)
class HashParams:
    """L layers, N n-gram size, C columns (in V4.1 (N - 1) * heads), V token ids."""

    layers: tuple[int, ...]
    rows: tuple[int, ...]  # [L] rows in each layer's table
    heads: int
    compressed: int  # every id after the map is below this
    pad_id: int  # compressed filler; 0 where a blocked slot counts nothing
    token_map: NDArray[np.uint32]  # [V]
    multipliers: NDArray[np.uint64]  # [L, N]; position 0 is the current token. [L, C, N] where columns have their own
    moduli: NDArray[np.uint64]  # [L, C]
    offsets: NDArray[np.uint64]  # [L, C]
    rule: HashRule = V41_RULE
    eos: int | None = None  # compressed id that ends a segment, where the rule knows segments
    smallest: int = 2  # order of the first columns

    @property
    def size(self) -> int:
        return int(self.multipliers.shape[-1])

    @property
    def columns(self) -> int:
        return (self.size - self.smallest + 1) * self.heads

    def used(self, layer: int) -> int:
        """The row after the last that a layer's columns address; what follows is padding."""
        number = self.layers.index(layer)
        return max(int(o) + int(m) for o, m in zip(self.offsets[number], self.moduli[number], strict=True))

    def check(self, where: str = "hash constants") -> HashParams:
        """Everything the hash relies on, once; the first thing that does not hold raises `EngramctlError`."""
        layers = len(self.layers)
        rules.check(self.rule, where)
        own = self.rule.mix_scope == "column"
        few = self.multipliers.ndim != 2 + own or not 1 < self.smallest <= self.size
        if few or self.heads < 1 or layers < 1 or len(self.rows) != layers:
            found = f"{layers} layers, {len(self.rows)} row counts, {self.heads} heads, multipliers "
            raise EngramctlError(where, "at least one layer, order and head", f"{found}{list(self.multipliers.shape)}")
        if len(set(self.layers)) != layers:
            raise EngramctlError(where, "each layer once", f"{list(self.layers)}")
        each = (layers, self.columns)
        shapes = {"multipliers": (*each, self.size) if own else (layers, self.size), "moduli": each, "offsets": each}
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype != np.uint64:
                raise EngramctlError(where, f"{name} uint64 {list(shape)}", f"{array.dtype} {list(array.shape)}")
        if not 1 <= self.compressed <= MOST_COMPRESSED or not 0 <= self.pad_id < self.compressed:
            raise EngramctlError(where, f"a pad id below the {self.compressed} compressed ids", f"{self.pad_id}")
        ids = self.token_map
        if ids.ndim != 1 or not ids.size or ids.dtype != np.uint32:
            raise EngramctlError(where, "a token map, uint32 [token ids]", f"{ids.dtype} {list(ids.shape)}")
        if int(ids.max()) >= self.compressed:
            raise EngramctlError(where, f"token map entries below {self.compressed}", f"{ids.max()}")
        if "eos" in self.rule.boundary and (self.eos is None or not 0 <= self.eos < self.compressed):
            raise EngramctlError(where, f"an EOS id below the {self.compressed} ids", f"{self.eos}")
        self._check_multipliers(where)
        for layer, rows, moduli, offsets in zip(self.layers, self.rows, self.moduli, self.offsets, strict=True):
            for column in range(self.columns):
                modulus, offset = int(moduli[column]), int(offsets[column])
                if modulus < 1 or not offset + modulus <= rows <= INT64_MAX:
                    what = f"layer {layer} column {column}: a modulus of at least 1 that ends within {rows} rows"
                    raise EngramctlError(where, what, f"offset {offset} and modulus {modulus}")
        return self

    def _check_multipliers(self, where: str) -> None:
        """No product, or sum of products, leaves 63 bits, but for a mix that is defined to wrap around."""
        if self.rule.mix == "wrap_poly":
            return
        most = INT64_MAX // self.compressed
        if self.rule.mix == "poly_mod":
            most //= self.size
        odd = self.rule.mix == "xor_mul"
        if (odd and not (self.multipliers % np.uint64(2)).all()) or int(self.multipliers.max()) > most:
            found = f"{self.multipliers.tolist()}"
            raise EngramctlError(where, f"{'odd ' if odd else ''}multipliers up to {most}", f"{found:.200}")

    def compress(self, tokens: Tokens, mask: Mask | None) -> NDArray[np.int64]:
        """[T] token ids and mask (True: text) -> [T] compressed ids, DEAD where masked (EOS where only that blocks);
        ids outside the map are refused."""
        tokens = as_row(tokens, "token ids", "a row of integers")
        mask = None if mask is None else as_row(mask, "mask", "booleans, True for text")
        if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and tokens.size):
            raise EngramctlError("token ids", "a row of integers", f"{tokens.dtype} {list(tokens.shape)}")
        if mask is not None and mask.shape != tokens.shape:
            raise EngramctlError("mask", f"one entry for each of {tokens.size} token ids", f"{list(mask.shape)}")
        if mask is not None and mask.dtype != np.bool_:
            raise EngramctlError("mask", "booleans, True for text", f"{mask.dtype}")
        outside = np.flatnonzero((tokens < 0) | (tokens >= self.token_map.size))
        if outside.size:
            first = int(outside[0])
            raise EngramctlError(
                "token ids", f"ids in 0..{self.token_map.size - 1}", f"{tokens[first]} at position {first}"
            )
        ids = self.token_map[tokens.astype(np.int64)].astype(np.int64)
        return ids if mask is None else np.where(mask, ids, self._dead())

    def _dead(self) -> int:
        """What stands for a masked position; a rule that has no word for it refuses."""
        if "dead" in self.rule.boundary:
            return DEAD
        if self.eos is not None and "eos" in self.rule.boundary:  # padding is EOS: transformers, modular_qwen4_exp.py
            return self.eos
        raise EngramctlError("mask", "no mask: this model's hash knows no dead positions", "one")

    def past(self, history: Sequence[int]) -> NDArray[np.int64]:
        """Compressed ids before the first token, oldest first, DEAD for a dead position; bad ones are refused."""
        if len(history) >= self.size:
            raise EngramctlError("history", f"at most {self.size - 1} compressed ids", f"{len(history)}")
        for entry in history:
            if isinstance(entry, bool) or not isinstance(entry, (int, np.integer)) or not self._in_history(int(entry)):
                dead = f", or {DEAD} for a dead position" if "dead" in self.rule.boundary else ""
                what = f"compressed ids in 0..{self.compressed - 1}{dead}"
                raise EngramctlError("history", what, f"{entry!r:.40}")
        return np.array([int(entry) for entry in history], np.int64)

    def _in_history(self, entry: int) -> bool:
        return (entry == DEAD and "dead" in self.rule.boundary) or 0 <= entry < self.compressed


def derive(sizes: Sizes, token_map: NDArray[np.uint32], seed: int = 0) -> HashParams:
    """The constants that the released code derives from the sizes and the token map. Not yet checked."""
    if not 1 <= sizes.columns * len(sizes.layers) <= MOST_COLUMNS:
        raise EngramctlError("config", f"1 to {MOST_COLUMNS} hash columns", f"{sizes.columns * len(sizes.layers)}")
    if not 1 <= sizes.base <= MOST_BASE or not 1 <= sizes.compressed <= MOST_COMPRESSED:
        what = f"primes from at most {MOST_BASE} and 1 to {MOST_COMPRESSED} compressed ids"
        raise EngramctlError("config", what, f"{sizes.base} and {sizes.compressed}")
    if not 0 <= sizes.pad_token_id < token_map.size:
        raise EngramctlError("token map", f"an entry for the pad {sizes.pad_token_id}", f"{token_map.size} entries")
    moduli = np.array(unused_primes(sizes.base, sizes.columns * len(sizes.layers)), np.uint64)
    moduli = moduli.reshape(len(sizes.layers), sizes.columns)
    offsets = np.zeros_like(moduli)
    offsets[:, 1:] = np.cumsum(moduli, axis=1)[:, :-1]
    return HashParams(
        layers=sizes.layers,
        rows=sizes.rows,
        heads=sizes.heads,
        compressed=sizes.compressed,
        pad_id=int(token_map[sizes.pad_token_id]),
        token_map=token_map,
        multipliers=np.array(
            [pcg64_multipliers(layer, sizes.size, sizes.compressed, seed) for layer in sizes.layers], np.uint64
        ),
        moduli=moduli,
        offsets=offsets,
    )


def published(profile: Profile, token_map: NDArray[np.uint32] | None = None) -> HashParams:
    """The profile's published constants (the main entry for `hash` without a file), checked."""
    profile.needs_constants()
    sizes, token_map = profile.sizes, profile.token_map() if token_map is None else token_map
    constants = (profile.multipliers, profile.moduli, profile.offsets)
    return with_rule(
        HashParams(sizes.layers, sizes.rows, sizes.heads, sizes.compressed, 0, token_map, *constants), profile, sizes
    ).check()


def with_rule(params: HashParams, profile: Profile, sizes: Sizes) -> HashParams:
    """The constants under the profile's rule: its filler, its EOS, its smallest order. Not yet checked."""
    rule = profile.rule
    wanted = {rule.filler} | ({"eos"} & set(rule.boundary))
    ids: dict[str, int] = {}
    for word, token in (("pad", sizes.pad_token_id), ("eos", sizes.eos_token_id)):
        if word in wanted and (token is None or token >= params.token_map.size):
            raise EngramctlError("token map", f"an entry for the {word} {token}", f"{params.token_map.size} entries")
        if word in wanted and token is not None:
            ids[word] = int(params.token_map[token])
    return replace(params, pad_id=ids.get(rule.filler, 0), rule=rule, eos=ids.get("eos"), smallest=sizes.smallest)


def unused_primes(base: int, count: int) -> list[int]:
    """The first `count` primes from `base` upwards: what a walk that restarts at base - 1 with one seen set gives."""
    primes: list[int] = []
    candidate = max(base, 2)
    while len(primes) < count:
        if is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    return primes


def is_prime(n: int) -> bool:
    """Miller-Rabin with the bases that decide every n below 2**64 (Sinclair's and Jaeschke's sets: the first 12
    primes)."""
    small = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if n < 2 or any(n % p == 0 for p in small):
        return n in small
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(n, base, odd, twos) for base in small)


def _passes(n: int, base: int, odd: int, twos: int) -> bool:
    x = pow(base, odd, n)
    return x in (1, n - 1) or any((x := x * x % n) == n - 1 for _ in range(twos - 1))


def pcg64_multipliers(layer: int, size: int, compressed: int, seed: int = 0) -> list[int]:
    """`size` odd multipliers of a layer, each below 2**63 / compressed."""
    half = INT64_MAX // compressed // 2
    drawn = np.random.default_rng(seed + SEED_STEP * layer).integers(0, half, size=size)
    return [int(x) * 2 + 1 for x in drawn]


def digest(array: NDArray[Any], dtype: str = "<i8") -> str:
    """SHA-256 of an array's integers in the given byte order and width, as publications give it."""
    return hashlib.sha256(np.ascontiguousarray(array).astype(dtype).tobytes()).hexdigest()


def compare(stored: HashParams, derived: HashParams | None) -> dict[str, Status]:
    """For each constant: does the derivation give what is stored?"""
    statuses: dict[str, Status] = {}
    for name in ("multipliers", "moduli", "offsets", "pad_id"):
        if derived is None:
            statuses[name] = "stored only"
        else:
            same = np.array_equal(getattr(stored, name), getattr(derived, name))
            statuses[name] = "stored = derived" if same else "conflict"
    return statuses
