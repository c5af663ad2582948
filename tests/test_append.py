"""repack --append-to: what a model, its file system or another run may do to it, and its tensors stay as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import Cli, Refusal

from formats import gguf_file as gguf

KEYS = [("general.architecture", gguf.string("deepseek41"))]
UNKNOWN = 250  # no ggml type


def small(path: Path, kind: int = 0, more: bytes = b"") -> Path:
    """A model of one tensor of 128 bytes."""
    layout = gguf.encode_header(KEYS, [("a.weight", kind, (32,), 128)])
    path.write_bytes(layout.header + bytes(range(128)) + more)
    return path


def refused_both_ways(cli: Cli, tiny: Path, folder: Path, model: Path) -> list[Refusal]:
    """By a copy and in place, and the model is as it was."""
    ways = (("-o", folder / "full.gguf"), ("--in-place",))
    return [cli.refused(folder, "repack", tiny, "--append-to", model, *way) for way in ways]


def test_tensors_of_unknown_size_are_not_written_over(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    for refusal in refused_both_ways(cli, tiny, tmp_path, small(tmp_path / "model.gguf", UNKNOWN)):
        assert (refusal.expected, refusal.found) == ("a ggml type of known size", f"type {UNKNOWN}")


@pytest.mark.parametrize("more", [1, 32, 100_000])
def test_bytes_behind_the_last_tensor_are_neither_lost_nor_taken_over(
    cli: Cli, tiny: Path, tmp_path: Path, more: int
) -> None:
    for refusal in refused_both_ways(cli, tiny, tmp_path, small(tmp_path / "model.gguf", more=b"x" * more)):
        assert (refusal.expected, refusal.found) == ("a file that ends with its last tensor", f"{more} bytes more")
