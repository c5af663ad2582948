"""map --explain: who shares a compressed id, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import Cli

from engramctl import explain_map, vocabulary


def test_words_that_differ_in_case_and_blanks_are_one_class(cli: Cli, tiny: Path) -> None:
    tokenizer = tiny / "tokenizer.json"
    told = cli.ok("map", tokenizer, "--explain", "The", "--json").json["explain"]
    members = {member["piece"]: member["why"] for each in told for member in each["members"]}
    assert {"the", "The", "THE", "\u0120the", "\u0120The"} <= set(members)
    assert members["the"] == "as it is"
    assert members["THE"] == "lower case"
    assert members["\u0120The"] == "lower case, blanks at the ends dropped"
    assert told[0]["shared_by"] == len(told[0]["members"])
    text = cli.ok("map", tiny, "--explain", "The").out.decode()
    assert "lower case" in text
    assert "class" in text


def test_a_piece_of_a_character_and_a_lone_mark_have_rules_of_their_own() -> None:
    assert explain_map.reason("\u0122", "\ufffd")[1].startswith("its text is no whole character")
    assert explain_map.reason("\u00cc\u0123", "\u0301")[1].startswith("nothing is left")
    assert explain_map.reason("\u0120", " ") == (" ", "as it is")
    assert explain_map.reason("\u0120\u0120", "  ") == (" ", "blanks to one space")


def test_the_steps_together_are_the_normaliser() -> None:
    for text in ("  The CAF\u00c9 \t\n ", " ", "\t", "\ufb01n\u00e9", "\u0301", "a", "\u2126 x "):
        key = vocabulary.normaliser()(text)
        for step in explain_map._steps().values():
            text = step(text)
        assert text == key


def test_an_id_of_a_bare_map_lists_its_class_without_reasons(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    cli.ok("map", tiny / "tokenizer.json", "-o", tmp_path / "map.bin", "--allow-mismatch")
    told = cli.ok("map", tmp_path / "map.bin", "--explain", "1", "--json").json["explain"]
    assert [member["token"] for member in told[0]["members"]] == [0, 1]
    assert "no tokenizer" in told[0]["members"][0]["why"]
    assert "tokenizer" in cli.refused(tmp_path, "map", tmp_path / "map.bin", "--explain", "The").expected
    assert "384" in cli.refused(tmp_path, "map", tmp_path / "map.bin", "--explain", "384").expected


@pytest.mark.skipif(vocabulary.extra_tokenizer() is None, reason="the deepseek extra is not installed")
def test_the_releases_largest_class_is_all_blanks(cli: Cli) -> None:
    told = cli.ok("map", "--explain", "\n\n", "--json").json["explain"]
    assert (told[0]["compressed"], told[0]["shared_by"]) == (174, 163)
