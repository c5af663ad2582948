"""Known mistakes of map, constants, hash and history: each is what it says, shows on its probe, and is named by it."""

from __future__ import annotations

import gzip
import importlib.util
import re
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hashing import constants, formula, pasts, sequences
from hypothesis import given, settings
from hypothesis import strategies as st
from published import fixture, release, sha256, shipped_map

from engramctl import profiles, vocabulary
from engramctl.mistakes import catalogue, hash_probes, keys, map_deltas, map_sources, pages
from engramctl.mistakes.hashing import HashCase, HashPlan, rows
from engramctl.mistakes.history import SeenRows
from engramctl.mistakes.record import STAGES, Mistake
from engramctl.mistakes.token_map import KEY_PLANS, OLDER
from engramctl.row_dumps import Rows
from engramctl.verify import name_rows, row_structure

ROOT = Path(__file__).parent.parent
GENERATED = fixture("rows_generated")
ENTRIES = {entry.name: entry for entry in catalogue.HASHING}
PUBLISHED_NAMES = {  # of a map's digest in the fixture, by the mistake that gives it
    "special-tokens-skipped": "skip_special_tokens_true",
    "base-vocabulary-only": "base_vocab_only",
    "no-empty-fallback": "no_empty_fallback",
    "no-lone-space": "no_lone_space_sentinel(empty->raw text)",
    "no-nfd": "no_nfd",
    "accents-kept": "no_stripaccents",
    "spaces-not-collapsed": "no_ws_collapse",
    "not-stripped": "no_strip",
    "casefolded": "python_casefold",
    "accents-by-combining-class": "python_combining!=0",
    "piece-for-text": "id_to_token_instead_of_decode",
}


@cache
def plan() -> HashPlan:
    params = release()
    return HashPlan.of(params, map_sources.for_params(params, profiles.load()))


def varied(*names: str) -> HashPlan:
    made = plan()
    for name in names:
        after = ENTRIES[name].vary(made)
        assert after is not None
        made = after
    return made


# The plan without a mistake.


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_plan_of_defaults_gives_the_rows_of_any_constants(data: st.DataObject) -> None:
    params = data.draw(constants())
    tokens, mask = data.draw(sequences(params))
    past = data.draw(pasts(params))
    want = formula(params, tokens, mask, past)
    made = rows(HashPlan.of(params), HashCase(tokens, mask, past))
    np.testing.assert_array_equal(made, want)
    at = np.arange(len(tokens))[::2]
    np.testing.assert_array_equal(rows(HashPlan.of(params), HashCase(tokens, mask, past), at), want[::2])


# Mistakes against numbers that others computed.


SIGNATURES = {
    "multipliers_reversed_over_full_window": ("multipliers-reversed",),
    "start_filled_with_0_instead_of_pad2": ("filler-zero",),
    "offsets_not_added": ("offsets-missing",),
    "layer14_primes_restart_at_16000057": ("primes-restart",),
    "multipliers_from_raw_vocab_129280": ("bound-from-raw-vocabulary",),
    "seed_by_engram_index_0_1": ("seed-by-index",),
    "raw_token_ids": ("raw-ids",),
    "mix_truncated_to_uint32": ("mix-32-bit",),
    "oldest_first_within_each_ngram": ("oldest-token-first",),
    "engram_peft_1.2.7": ("oldest-token-first", "short-orders-misaligned"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_mistakes_have_the_signatures_that_others_computed(name: str) -> None:
    facts = GENERATED["mistake_signatures"]
    want = (facts["signatures"] | facts["of_the_rules"])[name]
    tokens = np.array(GENERATED["probes"][facts["probe"]]["token_ids"], np.int64)
    made = rows(varied(*SIGNATURES[name]), HashCase(tokens))[:, :, facts["columns_listed"]]
    for at in (5, 1):
        assert made[at].tolist() == [want[f"pos{at}"]["l1"], want[f"pos{at}"]["l14"]]


def test_masks_and_histories_go_wrong_as_the_formula_says() -> None:
    params, tokens = release(), np.arange(40, 60) * 31
    mask = np.arange(20) % 7 != 3
    none = np.ones(20, bool)
    right, case = formula(params, tokens, mask), HashCase(tokens, mask, chunks=(6, 14))
    np.testing.assert_array_equal(rows(varied("mask-ignored"), case), formula(params, tokens))
    np.testing.assert_array_equal(rows(varied("mask-inverted"), case), formula(params, tokens, ~mask))
    np.testing.assert_array_equal(rows(varied("all-dead"), case), formula(params, tokens, ~none))
    np.testing.assert_array_equal(rows(varied("positions-shifted"), case)[1:], right[:-1])
    np.testing.assert_array_equal(rows(varied("layers-swapped"), case), right[:, ::-1])
    np.testing.assert_array_equal(rows(varied("filler-zero"), case), formula(replace(params, pad_id=0), tokens, mask))
    lost = np.concatenate([formula(params, tokens[:6], mask[:6]), formula(params, tokens[6:], mask[6:])])
    np.testing.assert_array_equal(rows(varied("history-lost"), case), lost)
    zero = np.where(mask[:, None, None], right, 0)
    np.testing.assert_array_equal(rows(varied("dead-rows-left-zero"), case), zero)
    forked = HashCase(tokens, mask, (7, 8, 9), stale=(4, 5, 6))
    np.testing.assert_array_equal(rows(varied("history-not-restored"), forked), right)
    np.testing.assert_array_equal(
        rows(varied("fork-keeps-parents-end"), forked), formula(params, tokens, mask, (4, 5, 6))
    )
    many = HashCase(np.resize(tokens, 140))
    dead = formula(params, many.tokens, np.arange(140) >= 128)
    np.testing.assert_array_equal(rows(varied("dead-until-cached"), many), dead)


def test_a_mask_that_does_not_stick_fills_only_dead_slots() -> None:
    params, tokens, mask = release(), np.array([5, 6, 7, 8]), np.array([True, False, True, True])
    a, c, d = (int(params.token_map[t]) for t in (5, 7, 8))
    made = rows(varied("mask-not-sticky"), HashCase(tokens, mask))
    window = [d, c, params.pad_id, a]
    products = [one * int(m) for one, m in zip(window, params.multipliers[0], strict=True)]
    mix = products[0] ^ products[1] ^ products[2] ^ products[3]
    assert made[3, 0, 23] == mix % int(params.moduli[0, 23]) + int(params.offsets[0, 23])
    own = rows(varied("current-position-ignored"), HashCase(tokens, mask))
    np.testing.assert_array_equal(own[[0, 2, 3]], formula(params, tokens, mask)[[0, 2, 3]])
    np.testing.assert_array_equal(own[1], formula(params, tokens)[1])


# Mistaken maps that ship as data.


def test_shipped_maps_have_the_digests_that_others_computed() -> None:
    made = map_deltas.shipped("deepseek-v4.1-flash")
    assert set(made) == {*KEY_PLANS, OLDER}
    for name, published in PUBLISHED_NAMES.items():
        want = fixture("token_map")["variants"][published]
        assert (made[name].size, int(made[name].max()) + 1) == (want["entries"], want["size"])
        assert sha256(made[name], "<u4") == want["sha256_u32le"]
    assert made[OLDER].size == 128_815
    assert len({array.tobytes() for array in made.values()}) == len(made)


def tool(name: str) -> object:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_shipped_maps_are_what_the_tool_makes_of_the_tokenizer() -> None:
    extra = vocabulary.extra_tokenizer()
    assert extra is not None, "pip install engramctl[deepseek]"
    shipped = map_deltas.shipped("deepseek-v4.1-flash")
    unpublished = [name for name in KEY_PLANS if name not in PUBLISHED_NAMES]  # the others' digests are enough
    maps = dict(tool("mistaken_maps").maps(keys.Texts(vocabulary.load_tokenizer(extra)), [*unpublished, "casefolded"]))
    for name, ids in maps.items():
        np.testing.assert_array_equal(ids, shipped[name], err_msg=name)
    again = map_deltas.encode(shipped_map(), [(name, shipped[name]) for name in [*KEY_PLANS, OLDER]])
    data = (ROOT / "engramctl" / "data" / "deepseek-v4.1-flash.mistaken_maps.gz").read_bytes()
    assert gzip.decompress(data) == again


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_any_map_survives_being_a_difference(truth: list[int], data: st.DataObject) -> None:
    ids = map_deltas.numbered(map_deltas.first_of(np.array(truth)))
    size = data.draw(st.integers(1, len(truth)))
    other = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    variant = map_deltas.numbered(map_deltas.first_of(np.array(other)))
    made = map_deltas.decode(map_deltas.encode(ids, [("x", variant), ("y", ids)]), ids)
    np.testing.assert_array_equal(made["x"], variant)
    np.testing.assert_array_equal(made["y"], ids)


# The probe.


def test_the_probe_tells_every_mistake_from_the_truth_and_from_every_other() -> None:
    pairs = hash_probes.matrix(plan())
    names = ["truth", *ENTRIES]
    assert [{pair.one, pair.other} for pair in pairs] == [{*two} for two in combinations(names, 2)]
    alike = [(pair.one, pair.other) for pair in pairs if pair.sequence is None]
    assert alike == [("truth", "raw-pad")]
    assert all(pair.reason for pair in pairs if pair.sequence is None)
    by_name = {each.name: each.case for each in hash_probes.sequences(plan())}
    for pair in pairs[:: len(pairs) // 100]:  # what the matrix says holds
        if pair.sequence is not None:
            one, other = (plan() if name == "truth" else varied(name) for name in (pair.one, pair.other))
            case = by_name[pair.sequence]
            assert (rows(one, case)[pair.position] != rows(other, case)[pair.position]).any()


def test_the_one_mistake_that_the_release_hides_shows_where_the_map_moves_the_pad() -> None:
    ids = shipped_map().copy()
    ids[[1, 2]] = 0, 1
    moved = HashPlan.of(replace(release(ids), pad_id=1))
    raw = ENTRIES["raw-pad"].vary(moved)
    assert raw is not None
    assert raw.pad == 2
    case = HashCase(np.array([5, 6]))
    assert (rows(raw, case) != rows(moved, case)).any(axis=(1, 2)).all()


def searched(made: HashPlan) -> name_rows.Search:
    """The probe as an engine with that plan would dump it."""
    parts = []
    for each in hash_probes.sequences(plan()):
        seen = SeenRows(rows(made, each.case), (0, 1), np.ones(each.case.tokens.size, np.bool_))
        parts.append(name_rows.Part(plan(), each.case, seen, each.name))
    return name_rows.Search(plan(), parts)


@pytest.mark.parametrize("name", [name for name in ENTRIES if name != "raw-pad"])
def test_every_mistake_is_named_on_the_probe(name: str) -> None:
    found = name_rows.diagnose(searched(varied(name)), (1, 14))
    assert found is not None
    assert (found.name, found.explains, list(found.runners_up)) == (name, 1.0, [])
    assert found.decided_at.startswith("sequence ")


PAIRS = [
    ("raw-ids", "oldest-token-first"),
    ("casefolded", "mask-not-sticky"),
    ("seed-by-index", "primes-restart"),
    ("oldest-token-first", "short-orders-misaligned"),
    ("offsets-missing", "history-lost"),
    ("filler-zero", "history-not-restored"),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_mistakes_at_once_are_named_on_the_probe(one: str, other: str) -> None:
    found = name_rows.diagnose(searched(varied(one, other)), (1, 14))
    assert found is not None
    assert ({entry.name for entry in found.entries}, found.explains) == ({one, other}, 1.0)


def test_nothing_is_named_where_nothing_differs_or_nothing_fits() -> None:
    assert name_rows.diagnose(searched(plan()), (1, 14)) is None
    search = searched(plan())
    for part in search.parts:
        part.seen.rows[:] = np.random.default_rng(0).integers(0, 384_000_000, part.seen.rows.shape)
    again = name_rows.Search(plan(), [name_rows.Part(plan(), part.case, part.seen, part.name) for part in search.parts])
    assert name_rows.diagnose(again, (1, 14)) is None
    facts = row_structure.facts(again, (1, 14))
    assert any("every position differs" in fact for fact in facts)


# Dumps of one sequence.


def dumped(
    made: HashPlan, case: HashCase, layers: tuple[int, ...] = (1, 14), wanted: np.ndarray | None = None
) -> name_rows.Search:
    found = rows(made, case)[:, [(1, 14).index(layer) for layer in layers]]
    every = np.ones(case.tokens.size, np.bool_) if wanted is None else wanted
    maps = map_sources.for_params(release(), profiles.load())
    return name_rows.search_of(Rows(layers, found), case.tokens, release(), case.mask, case.history, every, maps)


LONG = HashCase(
    np.random.default_rng(1).integers(0, 129_280, 4096), np.random.default_rng(2).random(4096) > 0.05, (5, 6, 7)
)


@pytest.mark.parametrize(
    ("entry", "plan_of", "detail"),
    [
        ("history-lost", lambda: replace(plan(), cuts=tuple(range(512, 4096, 512))), "every 512 tokens"),
        ("history-lost", lambda: replace(plan(), cuts=(100, 101, 900)), "at position 100, 101, 900"),
        ("history-lost", lambda: replace(plan(), cuts=(64,), kept=1), "at position 64 with 1 of the ids before"),
        ("history-lost", lambda: replace(plan(), cuts=tuple(range(1, 4096))), "every 1 token"),
        ("dead-until-cached", lambda: replace(plan(), dead_until=77), "until position 77"),
        ("positions-shifted", lambda: replace(plan(), shift=-2), "by -2"),
        ("fork-keeps-parents-end", lambda: replace(plan(), past="stale", stale=(3, 9, 27)), "look-back has 3, 9, 27"),
    ],
)
def test_a_mistakes_parameter_is_read_off_a_dump(entry: str, plan_of: object, detail: str) -> None:
    assert callable(plan_of)
    tokens = LONG.tokens
    case = LONG if entry == "fork-keeps-parents-end" else HashCase(tokens)
    found = name_rows.diagnose(dumped(plan_of(), case), (1, 14))
    assert found is not None
    assert (found.name, found.detail) == (entry, detail)
    assert found.explains > 0.999


def test_a_long_dump_is_looked_at_from_its_first_difference_on() -> None:
    case = HashCase(np.random.default_rng(3).integers(0, 129_280, 60_000))
    made = replace(plan(), cuts=(50_000, 58_000))
    found = name_rows.diagnose(dumped(made, case), (1, 14))
    assert found is not None
    assert (found.name, found.detail) == ("history-lost", "at position 50000, 58000")
    assert found.decided_at == "position 50000 layer 1 column 0"


def test_one_layer_and_live_positions_are_enough() -> None:
    found = name_rows.diagnose(dumped(varied("oldest-token-first"), LONG, (14,), LONG.mask), (14,))
    assert found is not None
    assert found.name == "oldest-token-first"
    hidden = dumped(varied("dead-rows-left-zero"), LONG, wanted=LONG.mask)
    assert name_rows.diagnose(hidden, (1, 14)) is None
    assert row_structure.facts(hidden, (1, 14)) == []


def test_what_an_input_cannot_separate_is_said_with_the_input_that_would() -> None:
    case = HashCase(np.array([5, 129_279, 129_280 - 3]), history=(9, 9, 9))
    found = name_rows.diagnose(dumped(varied("older-tokenizer"), case), (1, 14))
    assert found is not None
    both = {found.name, *(runner.name for runner in found.runners_up)}
    assert both == {"older-tokenizer", "base-vocabulary-only"}
    assert "of sequence telling of `engramctl probe hash`" in found.runners_up[0].separated_by


def test_facts_about_rows_that_no_mistake_explains() -> None:
    case = HashCase(LONG.tokens[:16])
    search = dumped(plan(), case)
    part = search.parts[0]
    other = case.tokens.copy()
    other[3] = 1000
    found = rows(plan(), HashCase(other))
    facts = row_structure.facts(
        name_rows.Search(plan(), [name_rows.Part(plan(), case, replace(part.seen, rows=found))]), (1, 14)
    )
    ids = shipped_map()[other[:4]].tolist()
    right = shipped_map()[case.tokens[:4]].tolist()
    assert f"position 3 layer 1 has the rows of compressed ids {ids}, oldest first, for {right}" in facts
    assert "positions 3 to 6, 4 of 16" in facts
    found = rows(replace(plan(), pad=7), case)
    facts = row_structure.facts(
        name_rows.Search(plan(), [name_rows.Part(plan(), case, replace(part.seen, rows=found))]), (1, 14)
    )
    assert [fact.partition(": ")[2] for fact in facts if "oldest first" in fact] == ["the filler is 7, not 2"]
    found = rows(plan(), case) + 384_000_000
    facts = row_structure.facts(
        name_rows.Search(plan(), [name_rows.Part(plan(), case, replace(part.seen, rows=found))]), (1, 14)
    )
    assert any(fact.endswith("; --params FILE|DIR compares with another model's constants") for fact in facts)
    found = part.right.copy()
    found[5, 1, 8:16] += 7
    facts = row_structure.facts(
        name_rows.Search(plan(), [name_rows.Part(plan(), case, replace(part.seen, rows=found))]), (1, 14)
    )
    assert "layer 1: 0 of 16 positions; layer 14: 1 of 16 positions" in facts
    assert "order 3: 8 row numbers" in facts
    assert "every one is +7 from the right row" in facts
    assert "only position 5 of 16" in facts


def test_facts_of_several_sequences_are_said_once_each() -> None:
    noise = np.random.default_rng(0)
    parts = []
    for each in hash_probes.sequences(plan()):
        found = noise.integers(0, 384_000_000, (each.case.tokens.size, 2, 24))
        seen = SeenRows(found, (0, 1), np.ones(each.case.tokens.size, np.bool_))
        parts.append(name_rows.Part(plan(), each.case, seen, each.name))
    facts = row_structure.facts(name_rows.Search(plan(), parts), (1, 14))
    assert facts[0] == f"all {len(parts)} sequences: every position differs"
    assert len(facts) <= 1 + len(parts)  # and how many rows lie outside of their columns, of each
    seen = SeenRows(parts[0].right, (0, 1), parts[0].seen.wanted)
    parts[0] = name_rows.Part(plan(), parts[0].case, seen, parts[0].name)
    facts = row_structure.facts(name_rows.Search(plan(), parts), (1, 14))
    assert facts[0] == f"sequences {', '.join(part.name for part in parts[1:])}: every position differs"


# The records.


def test_every_record_is_whole_and_its_name_unique() -> None:
    entries: list[Mistake] = list(catalogue.every())
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.stage in STAGES
        for word, said in entry.facts().items():
            assert len(said) > (2 if word in ("name", "stage") else 8), (entry.name, word)
        assert entry.what.endswith(".")
        assert "/" in entry.source or "PyPI" in entry.source
        assert not re.search(r"\bid \d", entry.source)


def test_the_pages_are_made_of_the_records() -> None:
    folder = ROOT / "engramctl" / "mistakes"
    assert {path.name: path.read_text("utf-8") for path in folder.glob("*.md")} == pages.pages()
