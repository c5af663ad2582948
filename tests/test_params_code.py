"""params --to c and rust: both compile without a warning, and hash as the reference does."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Cli

from engramctl import profiles

TOKENS = [0, 3, 42, 128814, 77, 5, 248044, 5, 9, 248044, 248044, 1000]  # 248044 ends a segment of Qwen3.8's

C = r"""
#include <inttypes.h>
#include <stdio.h>
#include "params.h"

int main(void) {
    static uint32_t map[ENGRAM_VOCABULARY];
    FILE *file = fopen("map.bin", "rb");
    if (!file || fread(map, 4, ENGRAM_VOCABULARY, file) != ENGRAM_VOCABULARY) return 1;
    fclose(file);
    uint64_t past[64];
    int count = 0;
    unsigned token;
    while (scanf("%u", &token) == 1) {
        past[count++] = map[token];
        uint64_t window[ENGRAM_SIZE];
        int blocked = 0;
        for (int back = 0; back < ENGRAM_SIZE; back++) {
            if (back >= count) blocked = 1;
#ifdef ENGRAM_EOS_ID
            else if (back && past[count - 1 - back] == ENGRAM_EOS_ID) blocked = 1;
#endif
            window[back] = blocked ? ENGRAM_PAD_ID : past[count - 1 - back];
        }
        for (int layer = 0; layer < ENGRAM_LAYERS; layer++) {
            int column;
            for (column = 0; column < ENGRAM_COLUMNS; column++) {
                uint64_t mix = 0;
                int order = ENGRAM_SMALLEST + column / ENGRAM_HEADS;
                for (int i = 0; i < order; i++)
                    mix ^= window[OLDEST_FIRST ? ENGRAM_SIZE - 1 - i : i] * ENGRAM_MULTIPLIERS[layer][i];
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
        let (mut window, mut blocked) = ([0u64; SIZE], false);
        for back in 0..SIZE {
            blocked = blocked || back >= past.len() || (back > 0 && EOS == Some(past[past.len() - 1 - back]));
            window[back] = if blocked { PAD_ID } else { past[past.len() - 1 - back] };
        }
        for layer in 0..LAYERS {
            assert!(LAYER_IDS[layer] < 100 && ROWS[layer] > 0);
            for column in 0..COLUMNS {
                let mut mix = 0u64;
                for i in 0..SMALLEST + column / HEADS {
                    let back = if OLDEST_FIRST { SIZE - 1 - i } else { i };
                    mix ^= window[back].wrapping_mul(MULTIPLIERS[layer][i]);
                }
                println!("{}", mix % MODULI[layer][column] + OFFSETS[layer][column]);
            }
        }
    }
}
"""


def rows(cli: Cli, folder: Path, profile: str, tokens: list[int]) -> list[int]:
    """What `hash` gives."""
    words = ["--profile", profile, "--ids", ",".join(map(str, tokens))]
    cli.ok("hash", *words, "--to", "npy", "-o", folder / "rows.npy")
    return np.load(folder / "rows.npy").reshape(-1).tolist()


def compiled(folder: Path, form: str, text: str) -> Path:
    """The program of this file with the source: which end of the window id[0] is, the source's own words say."""
    said = re.search(r"id\[0\] is the (current|oldest of the last SIZE) (?:token|compressed) id", text)
    assert said
    oldest = int(said[1] != "current")
    if form == "c":
        (folder / "main.c").write_text(C)
        strict = ["-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Werror"]
        command = ["cc", "-std=c99", "-O1", *strict, f"-DOLDEST_FIRST={oldest}", "main.c", "-o", "main"]
    else:
        eos = "Some(EOS_ID)" if "EOS_ID: u64" in text else "None"
        told = f"const OLDEST_FIRST: bool = {'true' if oldest else 'false'};\nconst EOS: Option<u64> = {eos};\n"
        (folder / "main.rs").write_text(RUST + told)
        rustc = shutil.which("rustc") or str(Path.home() / ".cargo/bin/rustc")
        command = [rustc, "-D", "warnings", "-A", "dead_code", "main.rs", "-o", "main"]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "main"


@pytest.mark.parametrize("profile", [name for name in profiles.names() if not profiles.load(name).unpublished])
@pytest.mark.parametrize(("form", "name"), [("c", "params.h"), ("rust", "params.rs")])
def test_the_source_compiles_without_a_warning_and_hashes_as_the_reference_does_or_is_refused(
    cli: Cli, tmp_path: Path, form: str, name: str, profile: str
) -> None:
    if profiles.load(profile).rule.mix != "xor_mul":
        for words in (["--to", form], []):
            said = cli.refused(tmp_path, "params", "--profile", profile, *words, "-o", tmp_path / name)
            assert (said.where, said.expected) == (f"--to {form}", "the constants of a multiply-xor hash")
            assert (said.found.split(" (")[0], said.hint) == ("those of a polynomial one", "--to json holds them")
        return
    cli.ok("params", "--profile", profile, "--to", form, "-o", tmp_path / name)
    cli.ok("params", "--profile", profile, "-o", tmp_path / "params.npz")
    np.load(tmp_path / "params.npz")["token_map"].astype("<u4").tofile(tmp_path / "map.bin")
    tokens = [token for token in TOKENS if token < profiles.load(profile).sizes.vocabulary]
    program = compiled(tmp_path, form, (tmp_path / name).read_text())
    text = " ".join(map(str, tokens))
    done = subprocess.run([program], cwd=tmp_path, input=text, capture_output=True, text=True, check=True)
    assert [int(line) for line in done.stdout.split()] == rows(cli, tmp_path, profile, tokens)


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
