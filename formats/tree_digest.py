"""The digest of a table that needs no order: hashed in blocks, by any threads and runs (spec: tree_digest.md).

    rows   | LEAF_ROWS rows of 264 bytes | LEAF_ROWS rows | ... | the rest |
    leaves | BLAKE3                      | BLAKE3         | ... | BLAKE3   |
    digest = BLAKE3(tag, first row, row after the last, all leaves)

The rows are the logical ones, codes then scales, whatever file they lie in; a row in a hole is a row of zeros.
"""

from __future__ import annotations

from functools import cache

from blake3 import blake3

from formats.row264 import ROW_BYTES

LEAF_ROWS = 4096
DIGEST_BYTES = 32
TAG = b"engramctl tree digest 1\n"  # with the row size, LEAF_ROWS and both row numbers as 8 bytes each behind it


def leaf(rows: bytes | bytearray | memoryview) -> bytes:
    """The digest of one block's bytes."""
    return blake3(rows).digest()


def hasher() -> blake3:
    """A leaf whose rows come one after the other: `update` with them, then `digest`."""
    return blake3()


@cache
def zero_leaf(rows: int, row_bytes: int = ROW_BYTES) -> bytes:
    """The digest of a block of zero rows, computed once."""
    return leaf(bytes(rows * row_bytes))


def blocks(first: int, last: int) -> range:
    """Numbers of the blocks that rows first..last touch."""
    return range(first // LEAF_ROWS, -(-last // LEAF_ROWS))


def block_rows(block: int, first: int, last: int) -> tuple[int, int]:
    """The rows of a block that lie in first..last: all LEAF_ROWS of them, except at the ends."""
    return max(block * LEAF_ROWS, first), min((block + 1) * LEAF_ROWS, last)


def zero_leaves(first: int, last: int) -> list[bytes]:
    """The leaves of rows first..last where all of them are zero."""
    ends = (block_rows(block, first, last) for block in blocks(first, last))
    return [zero_leaf(end - start) for start, end in ends]


def root(first: int, last: int, leaves: list[bytes], row_bytes: int = ROW_BYTES) -> str:
    """The digest of rows first..last from the leaves of `blocks(first, last)`; of a whole table from row 0 on."""
    if len(leaves) != len(blocks(first, last)):
        raise ValueError(f"{len(leaves)} leaves for {len(blocks(first, last))} blocks")
    numbers = (row_bytes, LEAF_ROWS, first, last)
    head = TAG + b"".join(number.to_bytes(8, "little") for number in numbers)
    return blake3(head + b"".join(leaves)).hexdigest()
