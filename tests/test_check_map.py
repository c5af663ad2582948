"""check map: one wrong entry among 129,280 is found and named; size alone proves nothing."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from checkpoints import rewrite
from checks import changed, differs, found, only, passes, set_u32, wheres
from cli_helpers import Cli, Copy
from published import fixture, sha256, shipped_map

from engramctl import profiles
from engramctl.source import FoundMap
from engramctl.verify import second_map, token_map
from engramctl.vocabulary import extra_tokenizer, normaliser

PUBLISHED = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"


def u32(path: Path, ids: np.ndarray) -> Path:
    path.write_bytes(ids.astype("<u4").tobytes())
    return path


@pytest.fixture
def real(tmp_path: Path) -> np.ndarray:
    return shipped_map().copy()


def test_the_published_map_passes_in_every_form(cli: Cli, tmp_path: Path, real: np.ndarray) -> None:
    files = [u32(tmp_path / "a.bin", real), tmp_path / "b.bin", tmp_path / "c.npy", tmp_path / "d.json"]
    files[1].write_bytes(real.astype("<i8").tobytes())
    np.save(files[2], real.astype(np.int32))
    files[3].write_text(json.dumps({"token_map": real.tolist()}))
    for file in files:
        report = passes(cli, "map", file)
        assert report["coverage"] == {"unit": "token ids", "checked": 129280, "of": 129280, "sampled": False}
        assert report["found"] == {"origin": str(file), "entries": 129280, "compressed": 99092, "sha256": PUBLISHED}
    assert passes(cli, "map", "-", stdin=files[0].read_bytes())["found"]["origin"] == "standard input"


def test_one_other_entry_of_equal_count_and_classes_is_named(cli: Cli, tmp_path: Path, real: np.ndarray) -> None:
    real[203], before = real[204], int(real[203])
    report = differs(cli, "map", u32(tmp_path / "map.bin", real))
    assert (report["found"]["entries"], report["found"]["compressed"], report["differing"]) == (129280, 99092, 1)
    assert found(report)[0] == ("token id 203", f"{before} as in profile deepseek-v4.1-flash", f"{real[204]}")
    assert found(report)[1] == ("SHA-256 of the map as u32", f"{PUBLISHED} as published", sha256(real, "<u4"))


def test_two_swapped_entries_are_both_found(cli: Cli, tmp_path: Path, real: np.ndarray) -> None:
    real[[5000, 6000]] = real[[6000, 5000]]
    assert {"token id 5000", "token id 6000"} <= set(wheres(differs(cli, "map", u32(tmp_path / "map.bin", real))))


@pytest.mark.parametrize("variant", ["base vocabulary only", "identity"])
def test_another_count_is_named_first(cli: Cli, tmp_path: Path, real: np.ndarray, variant: str) -> None:
    ids = real[:128000] if variant.startswith("base") else np.arange(129280)
    report = differs(cli, "map", u32(tmp_path / "map.bin", ids))
    if variant == "identity":
        assert found(report)[0] == ("number of compressed ids", "99092 as in profile deepseek-v4.1-flash", "129280")
        assert report["findings_total"] > 30_000
    else:
        assert found(report)[0] == ("number of token ids", "129280 as in profile deepseek-v4.1-flash", "128000")
        assert report["coverage"]["checked"] == 128000


def test_an_id_that_skips_a_class_is_no_first_appearance(cli: Cli, container: Path, tmp_path: Path) -> None:
    report = differs(cli, "map", changed(container, tmp_path, set_u32("token_map", 10, 300)))
    assert found(report)[0] == ("token id 10", "a compressed id of at most 9, numbered by first appearance", "300")


def test_a_checkpoint_is_held_against_a_second_derivation(cli: Cli, tiny: Path) -> None:
    report = passes(cli, "map", tiny)
    assert report["coverage"]["checked"] == report["coverage"]["of"] == 384
    assert "by Unicode" in report["derived"]["origin"]
    assert "published" not in report


def test_a_container_is_held_against_the_tokenizer_it_was_made_with(cli: Cli, tiny: Path, container: Path) -> None:
    report = passes(cli, "map", container, "--tokenizer", tiny / "tokenizer.json")
    assert report["coverage"]["checked"] == 384


def test_a_container_with_another_entry_is_caught(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    at_203 = json.loads(cli.ok("map", tiny / "tokenizer.json", "--to", "json", "--allow-mismatch", "-o", "-").out)[203]
    path = changed(container, tmp_path, set_u32("token_map", 203, 1))
    where, expected, got = only(differs(cli, "map", path, "--tokenizer", tiny / "tokenizer.json"))
    assert (where, got) == ("token id 203", "1")
    assert expected.startswith(f"{at_203} as in ")


def test_without_a_tokenizer_nothing_can_be_said_of_another_models_map(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path
) -> None:
    refusal = cli.refused_twice(tmp_path, "check", "map", container)
    assert (refusal.found, refusal.hint) == ("neither for this model", "give --tokenizer FILE")
    passes(cli, "map", container, "--tokenizer", tiny / "tokenizer.json")


def test_a_tokenizer_is_no_map(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    refusal = cli.refused_twice(tmp_path, "check", "map", tiny / "tokenizer.json")
    assert refusal.found == "a tokenizer"
    assert "engramctl map" in refusal.hint


def test_a_container_whose_map_has_fewer_classes_than_its_config_says(
    cli: Cli, container: Path, tmp_path: Path
) -> None:
    def change(data: bytearray) -> None:
        for token in range(384):
            set_u32("token_map", token, min(token, 3))(data)

    report = differs(cli, "map", changed(container, tmp_path, change))
    assert found(report)[0][1:] == ("310 as in the source's config", "4")


def test_another_tokenizer_is_another_map(cli: Cli, tiny: Path, tmp_path: Path, copied: Copy) -> None:
    folder = copied(tiny)
    rewrite(folder / "tokenizer.json", lambda data: data.replace(b'"Word"', b'"Wore"'))
    text = (folder / "tokenizer.json").read_bytes().replace(b'"Word"', b'"Wore"')
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_bytes(text)
    made = cli.ok("map", tiny / "tokenizer.json", "-o", tmp_path / "map.bin", "--allow-mismatch")
    assert made.code == 0
    report = differs(cli, "map", tmp_path / "map.bin", "--tokenizer", folder / "tokenizer.json", "--allow-mismatch")
    assert found(report)[0] == ("number of compressed ids", "311 as in " + report["derived"]["origin"], "310")


def test_the_profile_is_not_asked_with_allow_mismatch(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    cli.ok("map", tiny / "tokenizer.json", "-o", tmp_path / "map.bin", "--allow-mismatch")
    words = ("map", tmp_path / "map.bin", "--tokenizer", tiny / "tokenizer.json")
    passes(cli, *words, "--allow-mismatch")
    assert wheres(differs(cli, *words)) == ["SHA-256 of the map as u32"]


def test_the_second_derivation_gives_the_published_map() -> None:
    tokenizer = extra_tokenizer()
    if tokenizer is None:
        pytest.skip("the deepseek extra is not installed")
    assert sha256(second_map.derive(tokenizer).ids, "<u4") == fixture("token_map")["sha256_u32le"] == PUBLISHED


@pytest.mark.parametrize(
    "text",
    ["", " ", "  ", "\t", " \n ", "\u00a0", "\x1c", "\x1f a", "E\u0301", "\u0301", "\u00c9 ", "\u0130", "\u03a3"],
)
def test_both_derivations_normalise_alike(text: str) -> None:
    assert second_map.normalised(text) == (normaliser()(text) or text)


@pytest.mark.parametrize(
    "text", ["\v", "\f", "a \t b", "\u200b", "\ufe0f", "\u1680x", "\u2028", "\u0903", "\u20dd", "Stra\u00dfe", "\ufb01"]
)
def test_both_derivations_normalise_rare_text_alike(text: str) -> None:
    assert second_map.normalised(text) == (normaliser()(text) or text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "data"),
        (b"\0\1\2", "whole entries of 4 or 8 bytes"),
        (b"abc", "a token map, a tokenizer.json, a container or a checkpoint"),
        (b"[1, 2.5]", "a compressed id below 2**32"),
        (b"\x93NUMPY", "npy"),
    ],
)
def test_what_is_no_map_is_refused(cli: Cli, tmp_path: Path, data: bytes, expected: str) -> None:
    (tmp_path / "map").write_bytes(data)
    assert expected in cli.refused_twice(tmp_path, "check", "map", tmp_path / "map").expected


def test_no_tokenizer_to_be_found_is_refused(cli: Cli, full: Path, container: Path, tmp_path: Path) -> None:
    assert cli.refused(tmp_path, "check", "map", full).expected == "a tokenizer.json"
    assert cli.refused(tmp_path, "check", "map", tmp_path / "none").found == "nothing there"
    refusal = cli.refused(tmp_path, "check", "map", container, "--tokenizer", tmp_path / "none.json")
    assert (refusal.expected, refusal.found) == ("a tokenizer.json", "nothing there")
    assert cli.refused(tmp_path, "check", "map", container, "--tokenizer", container).expected == "UTF-8 text"


def test_a_map_of_millions_of_entries_is_named_in_little_memory(real: np.ndarray) -> None:
    """A hostile one: every known mistake is held against it, and every pair of them."""
    ids = np.arange(3_000_000, dtype=np.uint32)
    ids[: real.size] = real
    tracemalloc.start()
    result = token_map.check(FoundMap(ids, "x"), None, profiles.load())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not result.ok
    assert peak < 900 << 20
