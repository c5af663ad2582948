"""params --to c and rust: both compile without a warning, and hash as the reference does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Cli

TOKENS = [0, 3, 42, 129279, 77, 5, 5, 1000]

C = r"""
#include <inttypes.h>
#include <stdio.h>
#include "params.h"

int main(void) {
    static uint32_t map[ENGRAM_VOCABULARY];
    FILE *file = fopen("map.bin", "rb");
    if (!file || fread(map, 4, ENGRAM_VOCABULARY, file) != ENGRAM_VOCABULARY) return 1;
    fclose(file);
    uint32_t past[64];
    int count = 0;
    unsigned token;
    while (scanf("%u", &token) == 1) {
        past[count++] = map[token];
        for (int layer = 0; layer < ENGRAM_LAYERS; layer++) {
            uint64_t mix = 0;
            int column = 0;
            for (int i = 0; i < ENGRAM_SIZE; i++) {
                uint64_t id = i < count ? past[count - 1 - i] : ENGRAM_PAD_ID;
                mix ^= id * ENGRAM_MULTIPLIERS[layer][i];
                for (int head = 0; i > 0 && head < ENGRAM_HEADS; head++, column++)
                    printf("%" PRIu64 "\n", mix % ENGRAM_MODULI[layer][column] + ENGRAM_OFFSETS[layer][column]);
            }
            if (column != ENGRAM_COLUMNS || ENGRAM_LAYER_IDS[layer] > 100 || !ENGRAM_ROWS[layer]) return 2;
        }
    }
    return sizeof ENGRAM_TOKEN_MAP_SHA256 == 65 && ENGRAM_COMPRESSED > 1 ? 0 : 3;
}
"""

RUST = r"""
mod params;
use params::*;
use std::io::Read;

fn main() {
    let bytes = std::fs::read("map.bin").unwrap();
    let map: Vec<u64> =
        bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as u64).collect();
    assert_eq!((map.len(), TOKEN_MAP_SHA256.len()), (VOCABULARY, 64));
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let mut past: Vec<u64> = Vec::new();
    for token in text.split_whitespace() {
        past.push(map[token.parse::<usize>().unwrap()]);
        assert!(past[past.len() - 1] < COMPRESSED);
        for layer in 0..LAYERS {
            assert!(LAYER_IDS[layer] < 100 && ROWS[layer] > 0);
            let (mut mix, mut column) = (0u64, 0);
            for i in 0..SIZE {
                let id = if i < past.len() { past[past.len() - 1 - i] } else { PAD_ID };
                mix ^= id.wrapping_mul(MULTIPLIERS[layer][i]);
                for _ in 0..if i > 0 { HEADS } else { 0 } {
                    println!("{}", mix % MODULI[layer][column] + OFFSETS[layer][column]);
                    column += 1;
                }
            }
            assert_eq!(column, COLUMNS);
        }
    }
}
"""


def rows(cli: Cli, folder: Path, source: Path | None, tokens: list[int]) -> list[int]:
    """What `hash` gives."""
    words = [] if source is None else ["--params", source]
    cli.ok("hash", *words, "--ids", ",".join(map(str, tokens)), "--to", "npy", "-o", folder / "rows.npy", "--force")
    return np.load(folder / "rows.npy").reshape(-1).tolist()


def compiled(folder: Path, form: str) -> Path:
    if form == "c":
        (folder / "main.c").write_text(C)
        command = ["cc", "-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "main.c", "-o", "main"]
    else:
        (folder / "main.rs").write_text(RUST)
        rustc = shutil.which("rustc") or str(Path.home() / ".cargo/bin/rustc")
        command = [rustc, "-D", "warnings", "-A", "dead_code", "main.rs", "-o", "main"]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "main"


@pytest.mark.parametrize(("form", "name"), [("c", "params.h"), ("rust", "params.rs")])
def test_the_source_compiles_without_a_warning_and_hashes_as_the_reference_does(
    cli: Cli, tiny: Path, tmp_path: Path, form: str, name: str
) -> None:
    cli.ok("params", "--to", form, "-o", tmp_path / name)
    cli.ok("map", "-o", tmp_path / "map.bin")
    program = compiled(tmp_path, form)
    text = " ".join(map(str, TOKENS))
    done = subprocess.run([program], cwd=tmp_path, input=text, capture_output=True, text=True, check=True)
    assert [int(line) for line in done.stdout.split()] == rows(cli, tmp_path, None, TOKENS)


def test_another_models_constants_are_written_as_well_and_equal_ones_give_equal_text(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path
) -> None:
    for form in ("c", "rust"):
        cli.ok("params", tiny, "--to", form, "-o", tmp_path / f"a.{form}")
        cli.ok("params", container, "--to", form, "-o", tmp_path / f"b.{form}")
        text = (tmp_path / f"a.{form}").read_text()
        assert text == (tmp_path / f"b.{form}").read_text()
        assert "61" in text
        assert "384006168" not in text
