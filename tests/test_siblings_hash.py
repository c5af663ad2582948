"""Every sibling's rows are the published or independently computed ones (fixtures/siblings), in both tiers.

What no fixture holds is compared with the plain rule-by-rule reference, over any sequence, mask and history.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import Cli
from hashing import constants, sequences
from hypothesis import given, settings
from hypothesis import strategies as st

from engramctl import derivation, fast, hash_params, mixes, profiles, reference
from engramctl.errors import EngramctlError
from engramctl.fast import mixes as fast_mixes
from engramctl.hash_params import HashParams, compare, digest, published
from engramctl.history import History

FOLDER = Path(__file__).parent.parent / "fixtures" / "siblings"
SIBLINGS = ("engram-demo", "qwen3.8-flash-next", "longcat-flash-lite", "longcat-2.0", "engram-peft", "blt")
LONGCATS = ("longcat-flash-lite", "longcat-2.0")
VARIANTS = {"eos-ignored": "eos_ignored", "eos-zeroed": "current_eos_hashes_to_zero"}
TIERS = {"reference": reference.hash_rows, "fast": fast.hash_rows}
SEEDED = settings(max_examples=60, deadline=None, derandomize=True, database=None)

tiers = pytest.mark.parametrize("tier", TIERS)


def fixture(name: str) -> Any:  # noqa: ANN401 - whatever the JSON holds
    return json.loads((FOLDER / f"{name}.json").read_text())


def params(name: str) -> HashParams:
    return published(profiles.load(name))


def rows(tier: str, name: str, ids: list[int], history: list[int] | None = None) -> list[Any]:
    """[T][L][C]"""
    return TIERS[tier](np.array(ids, np.int64), params(name), None, history or []).tolist()


@tiers
def test_the_demos_sentence_has_its_rows(tier: str) -> None:
    facts = fixture("engram-demo")
    found = rows(tier, "engram-demo", facts["prompt"]["ids"])
    for number, layer in enumerate(("1", "15")):
        assert [row[number] for row in found] == facts["layers"][layer]["rows_global"]


@tiers
def test_ples_sequences_have_their_rows(tier: str) -> None:
    facts = fixture("qwen3.8-flash-next")
    for case in facts["sequences"].values():
        assert [row[0] for row in rows(tier, "qwen3.8-flash-next", case["ids"])] == case["rows"]
    step = facts["decode_step"]
    assert [r[0] for r in rows(tier, "qwen3.8-flash-next", step["ids"], step["history"][-2:])] == step["rows"]


@tiers
@pytest.mark.parametrize("name", LONGCATS)
def test_longcats_rows_under_the_three_rules_for_eos(tier: str, name: str) -> None:
    facts = fixture(name)
    for case in facts["sequences"].values():
        assert [row[0] for row in rows(tier, name, case["ids"])] == case["global_rows"]
    for variant, key in VARIANTS.items():
        case = next(case for title, case in facts["divergent"].items() if title.startswith(key))
        found = [row[0] for row in rows(tier, f"{name}:{variant}", case["ids"])]
        assert found == case["global_rows"]
        assert found != [row[0] for row in rows(tier, name, case["ids"])]


@tiers
def test_engram_pefts_rows_are_its_own_and_not_the_demos(tier: str) -> None:
    """Its fixture holds local rows, from before the offsets."""
    facts = fixture("engram-peft")
    ids, made = fixture("engram-demo")["prompt"]["ids"], params("engram-peft")
    found = np.array(rows(tier, "engram-peft", ids)) - made.offsets.astype(np.int64)
    assert found[:, 0].tolist() == facts["rows"]["1"]
    assert found[:, 1].tolist() == facts["rows"]["14"]
    straight = replace(made, rule=params("engram-demo").rule)  # equal constants, the demo's windows
    assert (TIERS[tier](np.array(ids), straight) != TIERS[tier](np.array(ids), made))[2:].any(axis=(1, 2)).all()


def test_a_bigram_of_engram_peft_does_not_see_the_current_token() -> None:
    made = params("engram-peft")
    one, other = (reference.hash_rows(np.array([1000, 2000, last]), made) for last in (3000, 4000))
    np.testing.assert_array_equal(one[:, :, :8], other[:, :, :8])
    assert (one[2, :, 8:] != other[2, :, 8:]).all()


@tiers
def test_byte_groups_have_their_rows(tier: str) -> None:
    facts = fixture("blt")
    local = np.array(rows(tier, "blt", facts["ids"]))[:, 0] - params("blt").offsets.astype(np.int64)
    for number, group in enumerate(("3", "4", "5", "6", "7", "8")):
        assert local[:, number].tolist() == facts["local_rows"][group]


def test_published_constants_are_the_fixtures() -> None:
    demo = fixture("engram-demo")["layers"]
    for number, layer in enumerate(("1", "15")):
        made = params("engram-demo")
        assert made.multipliers[number].tolist() == demo[layer]["multipliers"]
        assert made.moduli[number].tolist() == [prime for order in demo[layer]["primes"] for prime in order]
        assert made.offsets[number].tolist() == demo[layer]["offsets"]
        assert made.rows[number] == demo[layer]["total_rows"]
    ple, made = fixture("qwen3.8-flash-next"), params("qwen3.8-flash-next")
    assert made.multipliers[0].tolist() == ple["multipliers"]
    assert made.moduli[0].tolist() == ple["head_vocab_sizes"]
    assert made.offsets[0].tolist() == ple["head_offsets"]
    assert made.rows[0] - int(made.moduli.sum()) == ple["unused_tail_rows"]
    for name in LONGCATS:
        facts, made = fixture(name), params(name)
        assert made.moduli[0].tolist() == facts["moduli"]
        assert made.offsets[0].tolist() == facts["offsets"]
        assert made.rows == (facts["total_rows"],)
        for column, weights in enumerate(facts["power_weights"]):
            assert made.multipliers[0, column].tolist() == weights + [0] * (made.size - len(weights))
    peft, made = fixture("engram-peft"), params("engram-peft")
    for number, layer in enumerate(("1", "14")):
        assert made.moduli[number].tolist() == [prime for order in peft["primes"][layer] for prime in order]
        assert made.multipliers[number].tolist() == peft["multipliers_if_compressed_vocab_98627"][layer]
        assert made.rows[number] == peft["total_rows"][layer]


def test_the_demos_token_map_is_a_prefix_of_the_shipped_one() -> None:
    facts, found = fixture("engram-demo")["token_map"], profiles.load("engram-demo").token_map()
    assert found.size == facts["tokens"]
    assert digest(found, "<u4") == facts["sha256_uint32_le"]
    assert digest(found, "<i8") == facts["sha256_int64_le"]
    assert all(found[int(token)] == entry for token, entry in facts["samples"].items())


@pytest.mark.parametrize("name", SIBLINGS)
def test_derivation_gives_what_is_stored(name: str) -> None:
    profile = profiles.load(name)
    derived = derivation.derive(profile, profile.sizes, profile.token_map()).check()
    assert set(compare(published(profile), derived).values()) == {"stored = derived"}
    assert derivation.rows(profile, profile.sizes) == profile.sizes.rows


@pytest.mark.parametrize("seed", ["0", "1", "42"])
def test_another_seed_gives_ples_other_multipliers(seed: str) -> None:
    facts, profile = fixture("qwen3.8-flash-next"), profiles.load("qwen3.8-flash-next")
    other = replace(profile, derivation=dict(profile.derivation) | {"seed": int(seed)})
    found = derivation.derive(other, profile.sizes, profile.token_map())
    assert found.multipliers[0].tolist() == facts["multipliers_other_seeds_for_negative_tests"][seed]
    assert compare(published(profile), found)["multipliers"] == "conflict"


def test_a_second_ple_layer_counts_its_place_and_not_its_number() -> None:
    profile = profiles.load("qwen3.8-flash-next")
    two = replace(profile.sizes, layers=(1, 9), rows=profile.sizes.rows * 2)
    found = derivation.derive(profile, two, profile.token_map()).multipliers
    assert found[1].tolist() == fixture("qwen3.8-flash-next")["multipliers_ple_index_1_hypothetical"]


def test_longcat_2s_moduli_are_even_and_a_rows_parity_is_the_tokens() -> None:
    """vocabulary = 5 * 2**15 and even moduli: modulo 2, only the current token counts."""
    made, ids = params("longcat-2.0"), np.arange(1000, 1200)
    assert not (made.moduli % np.uint64(2)).any()
    local = reference.hash_rows(ids, made)[:, 0] - made.offsets[0].astype(np.int64)
    np.testing.assert_array_equal(local % 2, np.repeat(ids[:, None] % 2, made.columns, axis=1))


def test_an_image_placeholder_is_hashed_as_it_stands_or_as_eos() -> None:
    image, eos, ids = 248056, 248044, [5, 248056, 248056, 7]
    name = "qwen3.8-flash-next"
    assert profiles.load(name).sizes.image_token_id == image
    assert rows("fast", f"{name}:image-as-eos", ids) == rows("fast", name, [eos if i == image else i for i in ids])
    assert rows("fast", f"{name}:image-as-eos", ids)[1:] != rows("fast", name, ids)[1:]


@st.composite
def sequences_with_marks(draw: st.DrawFn, made: HashParams) -> tuple[np.ndarray, np.ndarray | None, tuple[int, ...]]:
    """Token ids with many EOS among them, a mask where the rule has a word for it, and any history."""
    some = st.integers(0, made.token_map.size - 1)
    if made.eos is not None:
        some = st.just(made.eos) | some
    ids = np.array(draw(st.lists(some, max_size=30)), np.int64)
    known = {"dead", "eos"} & set(made.rule.boundary)
    mask = np.array(draw(st.lists(st.booleans(), min_size=ids.size, max_size=ids.size)), np.bool_)
    past = draw(st.lists(some if made.rule.id_space != "map" else st.integers(0, 9), max_size=made.size - 1))
    return ids, mask if known and draw(st.booleans()) else None, tuple(past)


@pytest.mark.parametrize("name", [*SIBLINGS, *(f"{name}:{variant}" for name in LONGCATS for variant in VARIANTS)])
def test_both_tiers_agree_on_any_sequence(name: str) -> None:
    made = params(name)

    @SEEDED
    @given(sequences_with_marks(made))
    def agree(case: tuple[np.ndarray, np.ndarray | None, tuple[int, ...]]) -> None:
        ids, mask, past = case
        found = fast.hash_rows(ids, made, mask, past)
        np.testing.assert_array_equal(found, reference.hash_rows(ids, made, mask, past))
        ends = made.offsets + made.moduli
        assert (found >= made.offsets.astype(np.int64)).all()
        assert (found < ends.astype(np.int64)).all()

    agree()


@pytest.mark.parametrize("name", SIBLINGS)
def test_chunks_with_history_are_the_whole(name: str) -> None:
    made = params(name)
    random = np.random.default_rng(3)
    ids = random.integers(0, made.token_map.size, 40)
    if made.eos is not None:
        ids[[0, 7, 8, 20]] = made.eos
    whole = reference.hash_rows(ids, made)
    for step in (1, 2, 7):
        history = History(made)
        parts = [history.append(ids[at : at + step], None, fast.hash_rows) for at in range(0, ids.size, step)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@SEEDED
@given(st.data())
def test_the_rule_by_rule_reference_agrees_with_the_papers(data: st.DataObject) -> None:
    """V4.1 is one point among the rules: two texts of the same hash, and the kernel through the siblings' door."""
    made = data.draw(constants())
    tokens, mask = data.draw(sequences(made))
    want = reference.hash_rows(tokens, made, mask)
    np.testing.assert_array_equal(mixes.hash_rows(tokens, made, mask), want)
    np.testing.assert_array_equal(fast_mixes.hash_rows(tokens, made, mask), want)


@pytest.mark.parametrize("name", SIBLINGS)
@pytest.mark.parametrize("bad", [-1, None])
def test_ids_outside_the_vocabulary_are_refused_everywhere(name: str, bad: int | None) -> None:
    made = params(name)
    ids = np.array([0, made.token_map.size if bad is None else bad])
    for tier in TIERS.values():
        with pytest.raises(EngramctlError, match=f"expected ids in 0..{made.token_map.size - 1}, found {ids[1]}"):
            tier(ids, made)


def test_a_mask_is_refused_where_the_rule_has_no_word_for_it() -> None:
    for name in ("engram-demo", "engram-peft", "blt", "longcat-2.0:eos-ignored"):
        with pytest.raises(EngramctlError, match="mask: expected no mask"):
            reference.hash_rows(np.array([1, 2]), params(name), np.array([True, False]))
        with pytest.raises(EngramctlError, match="history: expected compressed ids in 0"):
            reference.hash_rows(np.array([1, 2]), params(name), None, [-1])


def test_padding_is_eos_to_ple() -> None:
    """transformers puts the EOS id where the attention mask is 0, before it hashes."""
    made = params("qwen3.8-flash-next")
    ids, mask = np.array([9, 9, 5, 1000]), np.array([False, False, True, True])
    np.testing.assert_array_equal(
        reference.hash_rows(ids, made, mask), reference.hash_rows(np.array([248044, 248044, 5, 1000]), made)
    )


def test_engram_27b_is_a_record_that_says_what_is_missing() -> None:
    with pytest.raises(EngramctlError, match="expected published constants, found none: no weights"):
        published(profiles.load("engram-27b"))


@pytest.mark.parametrize("name", SIBLINGS)
def test_hash_prints_the_same_rows(cli: Cli, name: str) -> None:
    ids = [1, 76, 105, 112, 2, 115]
    printed = cli.ok("hash", "--profile", name, "--ids", ",".join(map(str, ids))).out.decode().splitlines()
    want = [
        [position, layer, *columns]
        for position, by_layer in enumerate(rows("reference", name, ids))
        for layer, columns in zip(params(name).layers, by_layer, strict=True)
    ]
    assert [[int(x) for x in line.split("\t")] for line in printed] == want


def test_profiles_lists_all_and_prints_each_whole(cli: Cli) -> None:
    listed = {entry["name"] for entry in cli.ok("profiles", "--json").json["profiles"]}
    assert {"deepseek-v4.1-flash", "engram-27b", *SIBLINGS} <= listed
    for name in sorted(listed):
        whole = cli.ok("profiles", name, "--json").json["profile"]
        assert {"sizes", "rule", "storage", "module", "sources"} <= set(whole)
        assert cli.ok("profiles", name).out


def test_an_unknown_variant_is_refused_with_the_known_ones(cli: Cli, tmp_path: Path) -> None:
    refusal = cli.refused(tmp_path, "hash", "--profile", "longcat-2.0:eos", "--ids", "1")
    assert "longcat-2.0:eos-ignored, longcat-2.0:eos-zeroed" in refusal.expected


def test_splitmix64_is_its_authors() -> None:
    """The first output of seed 1234567, as in the generator's published test values."""
    assert derivation.splitmix64(1234567) == 6457827717110365317


def test_unused_primes_and_odd_walks_need_not_be_prime() -> None:
    made = params("longcat-flash-lite")
    assert not all(hash_params.is_prime(int(m)) for m in made.moduli[0])
