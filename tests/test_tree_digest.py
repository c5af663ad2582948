"""The tree digest is what its page says, by a second construction; parts go together without their rows."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import blake3_numpy
import numpy as np
import pytest
import specs
from blake3 import blake3
from checkpoints import ROWS, Mini, token_map_of
from cli_helpers import Cli

from engramctl.journal import packed, unpacked
from formats import row264, tree_digest


def example(rows: int) -> bytes:
    i = np.arange(rows * 264, dtype=np.uint64)
    return ((131 * i + 7 * (i >> np.uint64(8))) % np.uint64(256)).astype(np.uint8).tobytes()


def second(rows: bytes, first: int, last: int) -> str:
    """As the page has it, written anew: the whole table's bytes, and a range of its rows."""
    leaves, at = b"", first
    while at < last:
        end = min((at // 4096 + 1) * 4096, last)
        leaves += blake3_numpy.blake3(rows[at * 264 : end * 264])
        at = end
    numbers = b"".join(number.to_bytes(8, "little") for number in (264, 4096, first, last))
    return blake3_numpy.blake3(b"engramctl tree digest 1\n" + numbers + leaves).hex()


def ours(rows: bytes, first: int, last: int) -> str:
    ranges = [tree_digest.block_rows(block, first, last) for block in tree_digest.blocks(first, last)]
    return tree_digest.root(first, last, [tree_digest.leaf(rows[a * 264 : b * 264]) for a, b in ranges])


def test_the_page_and_the_module_have_the_same_numbers() -> None:
    table = {row[0]: row[1] for row in specs.table("tree_digest.md", "constant")}
    assert specs.number(table["bytes in a row"]) == row264.ROW_BYTES
    assert specs.number(table["rows in a block"]) == tree_digest.LEAF_ROWS
    assert specs.number(table["bytes in a leaf"]) == tree_digest.DIGEST_BYTES


def test_the_vectors_hold_for_both_constructions() -> None:
    for row in specs.table("tree_digest.md", "first"):
        first, last, leaves = (specs.number(cell) for cell in row[:3])
        rows = example(last)
        assert len(tree_digest.blocks(first, last)) == leaves
        assert second(rows, first, last) == row[3].strip("`")
        assert ours(rows, first, last) == row[3].strip("`")


def test_zero_rows_are_rows_of_zeros() -> None:
    for first, last in ((0, 1), (0, 4096), (3, 9000)):
        leaves = tree_digest.zero_leaves(first, last)
        assert tree_digest.root(first, last, leaves) == second(bytes(last * 264), first, last)


def test_a_digest_is_of_its_numbers_too() -> None:
    """Rows moved by one, or one zero row more, are another table."""
    leaf = tree_digest.leaf(bytes(264))
    found = {tree_digest.root(first, last, [leaf]) for first, last in ((0, 1), (1, 2), (0, 2))}
    assert len(found) == 3
    with pytest.raises(ValueError, match="2 leaves for 1 blocks"):
        tree_digest.root(0, 1, [leaf, leaf])


def test_a_journal_keeps_leaves_exactly() -> None:
    rng = np.random.default_rng(0)
    digests = [rng.bytes(32) for _ in range(3)]
    for _ in range(200):
        picked = sorted(rng.choice(40, rng.integers(1, 30), replace=False).tolist())
        leaves = {7: {block: digests[rng.integers(3)] for block in picked}}
        back: dict[int, bytes] = {}
        for tensor, block, words in packed(leaves):
            assert tensor == 7
            back.update(enumerate(unpacked(words), block))
        assert back == leaves[7]


# through the command line


def rows_of(made: Mini, layer: int) -> bytes:
    codes, scales = (made.tensors[f"layers.{layer}.engram.embed.{part}"][2] for part in ("weight", "scale"))
    return b"".join(codes[256 * i : 256 * i + 256] + scales[8 * i : 8 * i + 8] for i in range(ROWS[layer]))


@pytest.mark.parametrize("kind", ["tree", "sha256"])
def test_repack_prints_the_digest_of_each_table(cli: Cli, tmp_path: Path, kind: str) -> None:
    made = Mini()
    words = ("repack", made.write(tmp_path / "ckpt"), "--token-map", token_map_of(tmp_path / "ckpt"), "--digest", kind)
    done = cli.ok(*words, "-o", tmp_path / "out.gguf")
    expected = {}
    for layer in ROWS:
        rows = rows_of(made, layer)
        expected[layer] = second(rows, 0, ROWS[layer]) if kind == "tree" else hashlib.sha256(rows).hexdigest()
    lines = [f"{expected[layer]}  blk.{layer}.engram_embd.weight\n" for layer in ROWS]
    assert done.out.decode() == "".join(lines)
    report = cli.ok(*words, "-o", tmp_path / "again.gguf", "--json").json
    assert report["digest"] == kind
    assert report["digests"] == {str(layer): digest for layer, digest in expected.items()}


def test_a_part_prints_the_digest_of_its_rows(cli: Cli, tmp_path: Path) -> None:
    made = Mini()
    words = (
        "repack",
        made.write(tmp_path / "ckpt"),
        "--token-map",
        token_map_of(tmp_path / "ckpt"),
        "--digest",
        "tree",
    )
    done = cli.ok(*words, "-o", tmp_path / "out.gguf", "--layer", 14, "--rows", "3:20")
    assert done.out.decode() == f"{second(rows_of(made, 14), 3, 20)}  blk.14.engram_embd.weight rows 3:20\n"


def test_check_packing_says_the_same_digest(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    printed = cli.ok("repack", tiny, "-o", tmp_path / "out.gguf", "--digest", "tree", "--json").json["digests"]
    for one, other in ((tiny, container), (container, tiny), (tiny, tiny)):
        assert cli.ok("check", "packing", one, other, "--digest", "tree", "--json").json["digests"] == printed


def test_holes_of_a_full_size_table_count_as_zeros(cli: Cli, full: Path, tmp_path: Path) -> None:
    """94,000 blocks of which a few hold data: nearly all leaves are the one of zeros."""
    found = cli.ok("repack", full, "-o", tmp_path / "out.gguf", "--layers", 1, "--digest", "tree", "--json").json
    start = next(t["start"] for t in found["tensors"] if t["name"] == "blk.1.engram_embd.weight")
    rows, block = 384006168, 4096 * 264
    leaves = [blake3(bytes(block)).digest()] * (rows // 4096)
    with (tmp_path / "out.gguf").open("rb") as file:
        at, end = start, start + rows * 264
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            number = (at - start) // block
            file.seek(start + number * block)
            leaves[number : number + 1] = [blake3(file.read(min(block, end - file.tell()))).digest()]
            at = start + (number + 1) * block
    assert len(leaves) == -(-rows // 4096)
    numbers = b"".join(number.to_bytes(8, "little") for number in (264, 4096, 0, rows))
    assert found["digests"]["1"] == blake3_numpy.blake3(b"engramctl tree digest 1\n" + numbers + b"".join(leaves)).hex()
