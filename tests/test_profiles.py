"""The profile against every published constant, the derivation against both, and configs that state sizes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from published import fixture, release, sha256

from engramctl import config as configs
from engramctl import constants, profiles, synth
from engramctl.errors import EngramctlError
from engramctl.hash_params import (
    INT64_MAX,
    compare,
    derive,
    digest,
    is_prime,
    pcg64_multipliers,
    published,
    unused_primes,
)
from engramctl.profiles import Profile
from formats.errors import FormatError

FACTS, MAP = fixture("constants"), fixture("token_map")
SIDE = fixture("rows_generated")["mistake_signatures"]["side"]
CONSTANTS = ("multipliers", "moduli", "offsets", "pad_id")


def profile() -> Profile:
    return profiles.load("deepseek-v4.1-flash")


def test_the_profile_holds_every_published_size() -> None:
    sizes = profile().sizes
    assert (list(sizes.layers), list(sizes.rows)) == (FACTS["layer_ids"], FACTS["rows"])
    assert (sizes.size, sizes.heads, sizes.width) == (FACTS["max_ngram"], FACTS["n_heads"], FACTS["head_dim"])
    assert (sizes.base, sizes.hidden, sizes.streams) == (FACTS["engram_vocab_size"], FACTS["dim"], FACTS["hc_mult"])
    assert (sizes.vocabulary, sizes.compressed) == (FACTS["tokenizer_entries"], FACTS["compressed_vocab_size"])
    assert sizes.pad_token_id == FACTS["pad_token_id"]
    assert (sizes.eps, profile().clamp) == (float(FACTS["rms_norm_eps"]), float(FACTS["gate_clamp"]))
    assert (sizes.columns, sizes.inputs, sizes.outputs) == (24, 6144, 25600)


def test_the_profile_holds_every_published_constant_and_their_digests() -> None:
    found = profile()
    for name, key in (("multipliers", "multipliers"), ("moduli", "primes"), ("offsets", "offsets")):
        array = getattr(found, name)
        assert array.dtype == np.uint64
        assert array.tolist() == FACTS[key]
        assert sha256(array, "<i8") == FACTS["sha256"][f"{key}_i64le"] == found.digests[f"{name}_i64"]
        assert digest(array) == FACTS["sha256"][f"{key}_i64le"]
    assert sha256(found.moduli, "<u4") == FACTS["sha256"]["primes_u32le"]


def test_the_shipped_map_is_the_published_one() -> None:
    ids = profile().token_map()
    assert (ids.dtype, ids.shape) == (np.uint32, (MAP["entries"],))
    assert sha256(ids, "<u4") == MAP["sha256_u32le"] == profile().digests["token_map_u32"]
    assert sha256(ids, "<i8") == MAP["sha256_i64le"] == profile().digests["token_map_i64"]
    assert ids[FACTS["pad_token_id"]] == FACTS["pad_compressed_id"]
    assert ids[FACTS["image_token_id"]] == FACTS["image_token_compressed"]


def test_the_whole_vocabularys_digest_is_the_official_one() -> None:
    cases = {case["label"]: case["sha"] for case in fixture("official_cases")["cases"]}
    assert profile().digests["vocabulary_rows_u64"] == cases["entire-vocabulary-in-sequence"]


def test_every_table_names_a_source_and_every_source_says_which_file() -> None:
    facts = profile().facts
    tables = {name: table for name, table in facts.items() if isinstance(table, dict) and name != "sources"}
    assert {"sizes", "storage", "module", "rule", "constants", "tensors", "digests", "shards"} <= set(tables)
    for name, table in tables.items():
        assert table["source"] in facts["sources"], name
    text = json.dumps(facts["sources"])
    for file in ("model_py", "engram_py", "inference_config_json", "tokenizer_json"):
        assert FACTS["official_sha256"][file] in text
    assert any(revision in text for revision in FACTS["official_revisions"])
    assert profile().digests["tokenizer"] == FACTS["official_sha256"]["tokenizer_json"]


def test_primes_are_prime_unused_ascending_and_add_up_to_the_rows() -> None:
    flat = profile().moduli.ravel().tolist()
    assert flat == sorted(set(flat))
    assert all(n % d for n in flat for d in range(2, 4001))  # 4001**2 > every n
    assert [sum(layer) for layer in profile().moduli.tolist()] == FACTS["rows"]
    between = set(range(flat[0], flat[-1])) - set(flat)
    assert not [n for n in between if all(n % d for d in range(2, 4001))]  # none was left out


def test_products_stay_below_2_to_the_63() -> None:
    most = [[int(m) * (FACTS["compressed_vocab_size"] - 1) for m in layer] for layer in profile().multipliers]
    assert most == FACTS["max_multiplier_times_max_id"]
    assert max(max(layer) for layer in most) <= FACTS["int64_max"] == INT64_MAX


def test_derivation_gives_what_is_stored() -> None:
    found = profile()
    derived = derive(found.sizes, found.token_map(), found.seed).check()
    assert compare(published(found), derived) == dict.fromkeys(CONSTANTS, "stored = derived")
    assert compare(release(), derived) == dict.fromkeys(CONSTANTS, "stored = derived")
    for name, key in (("multipliers", "multipliers"), ("moduli", "primes"), ("offsets", "offsets")):
        assert getattr(derived, name).tolist() == FACTS[key]
    assert (derived.layers, derived.rows, derived.heads) == ((1, 14), tuple(FACTS["rows"]), 8)


def test_the_published_parameters_are_the_release() -> None:
    mine, want = published(profile()), release()
    for name in ("layers", "rows", "heads", "compressed", "pad_id", "size", "columns", "rule"):
        assert getattr(mine, name) == getattr(want, name)


@pytest.mark.parametrize("name", CONSTANTS)
def test_one_changed_constant_is_a_conflict_and_the_only_one(name: str) -> None:
    stored, derived = release(), derive(profile().sizes, profile().token_map())
    value = 3 if name == "pad_id" else getattr(stored, name).copy()
    if name != "pad_id":
        value[1, 2] += 2
    expected = dict.fromkeys(CONSTANTS, "stored = derived") | {name: "conflict"}
    assert compare(replace(stored, **{name: value}), derived) == expected


def test_constants_without_sizes_are_stored_only() -> None:
    assert compare(release(), None) == dict.fromkeys(CONSTANTS, "stored only")
    other = replace(release(), token_map=release().token_map[:1000])
    assert constants.statuses(constants.Found(other, "a file", None), profile()) == dict.fromkeys(
        CONSTANTS, "stored only"
    )
    same = constants.statuses(constants.Found(release(), "a file", None), profile())
    assert same == dict.fromkeys(CONSTANTS, "stored = derived")


def test_constants_of_one_layer_are_compared_with_that_layers_derivation() -> None:
    whole = release()
    arrays = {name: getattr(whole, name)[1:] for name in ("multipliers", "moduli", "offsets")}
    second = replace(whole, layers=(14,), rows=whole.rows[1:], **arrays)
    found = constants.Found(second, "a file", None)
    assert constants.statuses(found, profile()) == dict.fromkeys(CONSTANTS, "stored = derived")


def test_seeds_and_bound_of_the_multipliers() -> None:
    prompt = fixture("prompt")
    assert INT64_MAX // FACTS["compressed_vocab_size"] // 2 == prompt["multiplier_bound"]
    assert prompt["multiplier_bound"] == FACTS["multiplier_exclusive_bound_before_odd"]
    for layer, want in zip((1, 14), FACTS["multipliers"], strict=True):
        drawn = np.random.default_rng(prompt["rng_seeds"][str(layer)]).integers(0, prompt["multiplier_bound"], size=4)
        assert [2 * int(x) + 1 for x in drawn] == want == pcg64_multipliers(layer, 4, 99_092)


def test_common_mistakes_of_the_derivation_give_the_published_other_numbers() -> None:
    sizes, token_map = profile().sizes, profile().token_map()
    raw = derive(replace(sizes, compressed=sizes.vocabulary), token_map)
    assert raw.multipliers.tolist() == SIDE["multipliers_from_raw_vocab"]
    index = derive(replace(sizes, layers=(0, 1)), token_map)
    assert index.multipliers.tolist() == SIDE["multipliers_seed_index"]
    restarted = [unused_primes(sizes.base, sizes.columns) for _ in sizes.layers]
    assert [sum(layer) for layer in restarted] == SIDE["primes_restart_rows"] != list(sizes.rows)
    shorter = derive(replace(sizes, size=3), token_map)
    assert shorter.multipliers.tolist() == SIDE["multipliers_max_ngram3_first3_equal"]
    for mistaken in (raw, index):
        assert "conflict" in compare(release(), mistaken).values()


def test_primality_is_decided_as_by_trial_division_and_for_known_hard_numbers() -> None:
    def by_division(n: int) -> bool:
        return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))

    assert [n for n in range(-3, 20_000) if is_prime(n)] == [n for n in range(20_000) if by_division(n)]
    hard = [561, 1729, 294409, 2047, 3215031751, 3825123056546413051, 318665857834031151167461 % 2**64]
    assert not any(map(is_prime, [*hard[:6], 4294967291**2, 4294967291 * 4294967279]))
    assert all(map(is_prime, [2**61 - 1, 2**64 - 59, 2**63 - 25, 4294967291, 1_000_000_007]))


def test_primes_from_anywhere() -> None:
    assert unused_primes(0, 5) == unused_primes(-7, 5) == [2, 3, 5, 7, 11]
    assert unused_primes(11, 12) == [
        n for layer in fixture("rows_published")["nemo_frozen_official_tiny"]["primes"] for n in layer
    ]


def test_nemos_tiny_constants_are_derived_too() -> None:
    tiny = fixture("rows_published")["nemo_frozen_official_tiny"]
    given = tiny["config"]
    sizes = replace(
        profile().sizes,
        layers=tuple(given["layers"]),
        rows=tuple(given["num_embeddings"]),
        heads=given["heads"],
        base=given["engram_vocab_size"],
        compressed=given["compressed_vocab"],
        vocabulary=9,
    )
    found = derive(sizes, np.array(tiny["token_map"], np.uint32)).check()
    assert found.multipliers.tolist() == tiny["multipliers"]
    assert found.moduli.tolist() == tiny["primes"]
    assert found.pad_id == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": 2**64}, "primes from at most 1099511627776 and .* found 18446744073709551616 and 99092"),
        ({"base": 0}, "primes from at most .* found 0 and"),
        ({"compressed": 0}, "1 to 4294967296 compressed ids, found 16000000 and 0"),
        ({"compressed": 2**62}, "1 to 4294967296 compressed ids"),
        ({"heads": 10_000}, "1 to 4096 hash columns, found 60000"),
        ({"heads": 0}, "1 to 4096 hash columns, found 0"),
        ({"size": 1}, "1 to 4096 hash columns, found 0"),
        ({"layers": ()}, "1 to 4096 hash columns, found 0"),
        ({"pad_token_id": 129_280}, "an entry for the pad 129280, found 129280 entries"),
        ({"pad_token_id": -1}, "an entry for the pad -1"),
    ],
)
def test_sizes_that_nothing_can_be_derived_from_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngramctlError, match=message):
        derive(replace(profile().sizes, **changes), profile().token_map())


def test_the_largest_sizes_that_are_not_refused_give_valid_constants() -> None:
    sizes = replace(profile().sizes, base=2**40, heads=600, size=4, compressed=2**32)
    found = derive(sizes, profile().token_map())
    rows = tuple(int(total) for total in found.moduli.sum(axis=1))
    replace(found, rows=rows).check()
    assert int(found.offsets[-1, -1]) == sum(int(m) for m in found.moduli[-1, :-1])


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    for name in ("deepseek", "", "../deepseek-v4.1-flash", "deepseek-v4.1-flash.rows", "/etc/passwd"):
        known = ", ".join(profiles.names())
        with pytest.raises(
            EngramctlError, match=re.escape(f"--profile: expected one of {known}, or a file.toml, found {name!r}")
        ):
            profiles.load(name)
    assert "deepseek-v4.1-flash" in profiles.names()
    assert profiles.load().name == profile().name == "deepseek-v4.1-flash"


def test_published_rows_of_the_release_are_those_of_token_42() -> None:
    case = fixture("rows_published")["real_token_42"]["rows"]
    found = profile().real_rows()
    assert {layer: [row["row"] for row in rows] for layer, rows in found.items()} == {1: case[0], 14: case[1]}
    assert all(re.fullmatch("[0-9a-f]{64}", row["codes_sha256"]) for rows in found.values() for row in rows)


# A config states the sizes.


def config(**changes: object) -> dict[str, Any]:
    made = synth.config(profile().sizes, 7)
    made["text_config"] |= changes
    return made


def read(made: dict[str, Any]) -> profiles.Sizes:
    return configs.read_sizes(configs.parse(json.dumps(made), "config.json"), profile(), "config.json")


def test_a_config_in_the_published_spelling_states_the_sizes() -> None:
    assert read(config()) == profile().sizes
    assert read(config()["text_config"]) == profile().sizes  # a config without a text_config is one itself
    keys = {"engram_layer_ids", "engram_num_embeddings", "engram_max_ngram_size", "engram_vocab_size"}
    keys |= {"engram_n_heads", "engram_head_dim", "engram_pad_token_id", "engram_compressed_vocab_size"}
    assert keys | {"vocab_size", "hidden_size", "hc_mult", "rms_norm_eps"} <= set(config()["text_config"])


def test_the_other_spelling_of_the_pad_counts_too() -> None:
    made = config(engram_pad_id=2)
    assert read(made).pad_token_id == 2
    del made["text_config"]["engram_pad_token_id"]
    assert read(made).pad_token_id == 2
    with pytest.raises(FormatError, match="engram_pad_id: expected 2 as in engram_pad_token_id, found 3"):
        read(config(engram_pad_id=3))


def test_a_size_that_differs_is_named_with_both_values() -> None:
    other = read(config(hidden_size=64, engram_layer_ids=[1, 15]))
    assert profile().sizes.differences(other) == {"hidden": (5120, 64), "layers": ((1, 14), (1, 15))}


@pytest.mark.parametrize(
    "key", sorted({key for keys in profile().config_keys.values() for key in keys} - {"engram_pad_id"})
)
@pytest.mark.parametrize("value", [None, "5", 2.5, True, -1, 2**70, [], {}, [[1]], [True, 14], [1, "14"], [1, 2.0], ""])
def test_a_size_that_is_absent_or_odd_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(FormatError, match=f"^config.json at (text_config|text_config.{key}): expected .*") as caught:
        read(config(**{key: value}))
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("eps", ["NaN", "Infinity", "-0.5", "1", "1e400"])
def test_an_eps_that_is_no_small_number_is_refused(eps: str) -> None:
    text = json.dumps(config(rms_norm_eps=123456)).replace("123456", eps)
    with pytest.raises(FormatError, match=r"config\.json"):
        configs.read_sizes(configs.parse(text, "config.json"), profile(), "config.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"engram_num_embeddings": [384_006_168]},
            "engram_num_embeddings: expected 2 row counts, one a layer, found 1",
        ),
        ({"engram_layer_ids": [1, 1]}, r"engram_layer_ids: expected each layer once, found \[1, 1\]"),
        ({"engram_layer_ids": [1, -1]}, "engram_layer_ids: expected an integer from 0 to 4096, found -1"),
        ({"engram_layer_ids": list(range(300))}, "engram_layer_ids: expected a list of 1 to 256 integers"),
        ({"engram_num_embeddings": [0, 5]}, "engram_num_embeddings: expected an integer from 1"),
        ({"engram_pad_token_id": 129_280}, "engram_pad_token_id: expected a token id below 129280, found 129280"),
        (
            {"engram_compressed_vocab_size": 129_281},
            "engram_compressed_vocab_size: expected at most the 129280 token ids",
        ),
        ({"engram_max_ngram_size": 1}, "engram_max_ngram_size: expected an integer from 2 to 64, found 1"),
        ({"engram_n_heads": 0}, "engram_n_heads: expected an integer from 1 to 1024, found 0"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(config(**changes))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        '"x"',
        "{'a': 1}",
        '{"a": 1}}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_a_config_that_is_no_json_object_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(FormatError, match=r"^config\.json: expected a JSON object, found ") as caught:
        configs.parse(text, "config.json")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_text_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(FormatError, match=r"config\.json at text_config: expected a JSON object, found list"):
        read({"text_config": [1]})
    with pytest.raises(FormatError, match=r"config\.json at text_config: expected engram_layer_ids, found no such key"):
        read({})
