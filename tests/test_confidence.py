"""What a sample proves, against exact counting; and that sampled checks say it."""

from __future__ import annotations

import hashlib
from math import comb
from pathlib import Path

import pytest
from checks import differs, passes
from cli_helpers import Cli, Copy

from engramctl.verify import confidence
from engramctl.verify.checkpoint import file_digest
from formats.disk import ReadFile


def chance(rows: int, bad: int, sampled: int, wrong: int) -> float:
    """Of drawing at most `wrong` of `bad` rows, without putting any back."""
    ways = sum(comb(bad, k) * comb(rows - bad, sampled - k) for k in range(wrong + 1))
    return ways / comb(rows, sampled)


@pytest.mark.parametrize("rows", [10, 100, 2826])
@pytest.mark.parametrize("sampled", [1, 5, 9, 60, 1000])
@pytest.mark.parametrize("wrong", [0, 1, 4])
def test_the_bound_holds_by_exact_counting(rows: int, sampled: int, wrong: int) -> None:
    if not wrong <= sampled < rows:
        return
    bound = confidence.most_missed(rows, sampled, wrong)
    for bad in range(bound, rows + 1, max(1, rows // 50)):
        assert chance(rows, bad, sampled, wrong) <= 0.05 + 1e-9, (bad, bound)
    if wrong == 0 and rows > 20 * sampled:  # and it is no weaker than it has to be
        assert chance(rows, int(bound * 0.9), sampled, wrong) > 0.05


def test_the_formula_for_no_difference() -> None:
    rows, sampled = 384_006_168, 1000
    assert confidence.most_missed(rows, sampled) == -int(-rows * (1 - 0.05 ** (1 / sampled)) // 1) == 1_148_659
    assert confidence.most_missed(rows, 0) == rows + 1
    assert confidence.most_missed(50, 50) == 1
    assert confidence.most_missed(50, 60, 3) == 4


def test_a_sampled_check_says_what_it_may_have_missed(cli: Cli, tiny: Path, container: Path) -> None:
    report = passes(cli, "packing", tiny, container, "--sample", 100)
    assert report["confidence"]["1"] == {
        "rows": 2826, "sampled": 100, "wrong": 0, "sure": 0.95, "fewer_than": 84,
    }  # fmt: skip
    note = "layer 1: 95 % sure that fewer than 84 of 2,826 rows (2.97%) differ, as none of 100 seeded ones do"
    assert note in report["notes"]
    report = passes(cli, "source", tiny, "--sample", 50)
    assert report["confidence"]["14"]["fewer_than"] == 346
    assert any("rows (5.82%) are invalid, as none of 50 seeded ones are" in note for note in report["notes"])
    assert "confidence" not in passes(cli, "packing", tiny, container)
    assert "confidence" not in passes(cli, "source", tiny, "--all-rows")
    report = passes(cli, "source", tiny, "--sample", 0)
    assert "layer 1: no row was drawn by chance, so nothing is known of the rest" in report["notes"]


def test_what_was_found_raises_the_bound(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.gguf"
    made.write_bytes(container.read_bytes())
    with made.open("r+b") as file:  # one byte in each of the last 3,000 rows
        for row in range(1, 3001):
            file.seek(-264 * row, 2)
            byte = file.read(1)
            file.seek(-264 * row, 2)
            file.write(bytes([byte[0] ^ 1]))
    report = differs(cli, "packing", tiny, made, "--sample", 200, "--layer", "14")
    facts = report["confidence"]["14"]
    assert 3000 < facts["fewer_than"] <= 5940
    assert facts["wrong"] > 50


def test_a_whole_shard_is_digested_in_pieces(tmp_path: Path) -> None:
    data = bytes(range(256)) * (1 << 17)
    (tmp_path / "shard").write_bytes(data)
    with ReadFile.open(tmp_path / "shard") as file:
        assert file_digest(file) == hashlib.sha256(data).hexdigest()


def test_the_releases_shards_are_digested_when_every_row_is_looked_at(
    cli: Cli, tiny: Path, copied: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    from engramctl import profiles

    folder = copied(tiny)
    config = json.loads((folder / "config.json").read_text())
    del config["engramctl_synthetic"]
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    shard = next(folder.glob("*-00001-of-*.safetensors"))
    raw = shard.read_bytes()
    header = hashlib.sha256(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).hexdigest()
    right = {
        "file": shard.name,
        "bytes": len(raw),
        "header_sha256": header,
        "file_sha256": hashlib.sha256(raw).hexdigest(),
    }
    facts = profiles.load("deepseek-v4.1-flash").facts
    monkeypatch.setitem(facts, "shards", {"x": right})
    report = passes(cli, "source", folder, "--all-rows")
    assert f"{shard.name}: the published SHA-256" in report["notes"]
    assert not any("SHA-256" in note for note in passes(cli, "source", folder)["notes"])
    monkeypatch.setitem(facts, "shards", {"x": right | {"file_sha256": "0" * 64}})
    report = differs(cli, "source", folder, "--all-rows")
    assert report["findings"][0]["expected"] == f"SHA-256 {'0' * 64} as published"
