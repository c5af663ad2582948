"""check gate: published gates and outputs pass, published mistakes do not; masked positions; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checks import differs, found, only, passes, wheres
from cli_helpers import Cli
from published import fixture
from safetensors.numpy import save

from engramctl import array_files

CASE = fixture("lookup_project_gate")["cases"][0]
Arrays = dict[str, np.ndarray]


def bits(numbers: list[Any] | np.ndarray) -> np.ndarray:
    return np.array(numbers, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


@pytest.fixture
def arrays() -> Arrays:
    """The published case, whole: inputs, gates in float64 and outputs as BF16 bits."""
    full, S = CASE["full"], CASE["hc_mult"]
    kv = np.array(full["kv_official_bf16"], np.uint16).reshape(CASE["tokens"], S + 1, CASE["dim"])
    made = {"hidden": full["x_bf16"], "q_weight": full["q_bf16"], "k_weight": full["k_bf16"], "out": full["out_bf16"]}
    found = {name: np.array(array, np.uint16) for name, array in made.items()}
    found |= {"key": kv[:, :S], "value": kv[:, S], "gate": np.array(CASE["gate_f64"], np.float32)}
    if CASE["token_mask"] is not None:
        found["mask"] = np.array(CASE["token_mask"], bool)
    return found


def saved(folder: Path, arrays: Arrays) -> Path:
    np.savez(folder / "gate.npz", **arrays)
    return folder / "gate.npz"


def test_the_published_case_passes_in_every_form(cli: Cli, tmp_path: Path, arrays: Arrays) -> None:
    count = arrays["gate"].size + arrays["out"].size
    report = passes(cli, "gate", saved(tmp_path, arrays))
    assert report["coverage"] == {"unit": "numbers", "checked": count, "of": count, "sampled": False}
    (tmp_path / "g.safetensors").write_bytes(save({name: np.ascontiguousarray(a) for name, a in arrays.items()}))
    passes(cli, "gate", tmp_path / "g.safetensors")
    passes(cli, "gate", "-", stdin=(tmp_path / "g.safetensors").read_bytes())
    passes(cli, "gate", "-", stdin=(tmp_path / "gate.npz").read_bytes())
    widened = {
        name: array.view(ml_dtypes.bfloat16).astype(np.float32) if array.dtype == np.uint16 else array
        for name, array in ((name, np.ascontiguousarray(array)) for name, array in arrays.items())
    }
    passes(cli, "gate", saved(tmp_path, widened))


@pytest.mark.parametrize("one", ["gate", "out"])
def test_either_is_enough(cli: Cli, tmp_path: Path, arrays: Arrays, one: str) -> None:
    del arrays["out" if one == "gate" else "gate"]
    assert passes(cli, "gate", saved(tmp_path, arrays))["coverage"]["checked"] == arrays[one].size


def test_a_dump_of_nothing_is_refused(cli: Cli, tmp_path: Path, arrays: Arrays) -> None:
    none = {name: array if "weight" in name else array[:0] for name, array in arrays.items()}
    refusal = cli.refused(tmp_path, "check", "gate", saved(tmp_path, none))
    assert refusal.expected == "[T, streams, D], none of them 0"


@pytest.mark.parametrize("mistake", [name for name in CASE["negative_control_gates"] if name != "eps_1e-6"])
def test_a_published_mistake_is_found(cli: Cli, tmp_path: Path, arrays: Arrays, mistake: str) -> None:
    arrays["gate"] = np.array(CASE["negative_control_gates"][mistake], np.float32)
    assert all(where.startswith("gate of ") for where in wheres(differs(cli, "gate", saved(tmp_path, arrays))))


EDGES = {case["name"]: case for case in fixture("gate_edge")["cases"] if "pattern" not in case}


@pytest.mark.parametrize("name", list(EDGES))
def test_a_published_edge_passes(cli: Cli, tmp_path: Path, name: str) -> None:
    arrays = edge(name)
    passes(cli, "gate", saved(tmp_path, arrays))
    arrays["gate"] = arrays["gate"] + np.float32(2e-3)  # a dot product about 0 may have either sign
    assert differs(cli, "gate", saved(tmp_path, arrays))["findings_total"] == 4


def edge(name: str) -> Arrays:
    case = EDGES[name]
    S, D = case["hc"], case["dim"]
    kv = bits(case["kv"]).reshape(1, S + 1, D)
    made = {
        "hidden": bits(case["x"]).reshape(1, S, D),
        "key": kv[:, :S],
        "value": kv[:, S],
        "q_weight": bits(case["q"]).reshape(S, D),
        "k_weight": bits(case["k"]).reshape(S, D),
        "gate": np.array(case["gate"], np.float32).reshape(1, S),
        "out": np.array(case["out_bits"], np.uint16).reshape(1, S, D),
    }
    return made if case["mask"] is None else made | {"mask": np.array(case["mask"], bool)}


def test_an_eps_of_1e_6_shows_on_tiny_norms(cli: Cli, tmp_path: Path) -> None:
    arrays = edge("tiny_norms_eps_1e-20")
    arrays["gate"] = np.full((1, 4), 0.542, np.float32)
    assert only_gates(differs(cli, "gate", saved(tmp_path, arrays)))


def only_gates(report: dict[str, Any]) -> bool:
    return wheres(report) == [f"gate of position 0 stream {stream}" for stream in range(4)]


def test_one_output_is_named(cli: Cli, tmp_path: Path, arrays: Arrays) -> None:
    arrays["out"][1, 2, 5] ^= 0x8000
    where, expected, _ = only(differs(cli, "gate", saved(tmp_path, arrays)))
    assert where == "out of position 1 stream 2 element 5"
    assert " within " in expected


def test_one_gate_is_named_with_its_range(cli: Cli, tmp_path: Path, arrays: Arrays) -> None:
    arrays["gate"][0, 3] += np.float32(1e-3)
    where, expected, got = only(differs(cli, "gate", saved(tmp_path, arrays)))
    low, high = map(float, expected.split(" to "))
    assert where == "gate of position 0 stream 3"
    assert low < CASE["gate_f64"][0][3] < high < float(got)


def test_a_masked_position_keeps_its_hidden_state(cli: Cli, tmp_path: Path, arrays: Arrays) -> None:
    arrays["mask"][0] = False
    report = differs(cli, "gate", saved(tmp_path, arrays))
    assert {where.split("position ")[1].split()[0] for where in wheres(report)} == {"0"}
    assert found(report)[0][1] == "0, as the position is dead"
    arrays["gate"][0], arrays["out"][0] = 0, arrays["hidden"][0]
    arrays["key"], arrays["value"] = arrays["key"].copy(), arrays["value"].copy()
    arrays["key"][0], arrays["value"][0] = 0x7FC0, 0x7F80  # nobody uses them
    report = passes(cli, "gate", saved(tmp_path, arrays))
    assert report["notes"] == ["2 of 3 positions are dead"]
    arrays["out"][0, 0, 0] += 1  # the next number is not allowed here
    assert only(differs(cli, "gate", saved(tmp_path, arrays)))[1].startswith("its hidden state kept")


@pytest.mark.parametrize("kept", [("gate",), ("out",), ("gate", "out")])
def test_gates_that_the_mask_does_not_close_are_named(cli: Cli, tmp_path: Path, kept: tuple[str, ...]) -> None:
    cli.ok("probe", "gate", "--with-answers", "--hidden-size", 96, "-o", tmp_path / "probe.npz")
    made = {name: array for name, array in np.load(tmp_path / "probe.npz").items() if name != "dot"}
    gates, out = closed_by_nothing(made)
    made |= {"gate": gates, "out": out}
    made = {name: array for name, array in made.items() if name not in {"gate", "out"} - {*kept}}
    report = differs(cli, "gate", saved(tmp_path, made))
    assert report["diagnosis"]["name"] == "masked-rows-gated"
    made["key"][7, 0, 0] = made["value"][8, 3] = 0x7FC0  # a dead token may still hold what is no number
    differs(cli, "gate", saved(tmp_path, made))


def closed_by_nothing(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Gates and outputs of every position, written out here from the model's formula in float64."""
    numbers = ("hidden", "key", "value", "q_weight", "k_weight")
    h, k, v, q, w = (arrays[name].view(ml_dtypes.bfloat16).astype(np.float64) for name in numbers)
    rms = [np.sqrt((x * x).mean(-1, keepdims=True) + 1e-20) for x in (h, k)]
    dot = (h / rms[0] * q * (k / rms[1] * w)).sum(-1) / np.sqrt(h.shape[-1])
    gate = 1 / (1 + np.exp(-np.copysign(np.sqrt(np.maximum(np.abs(dot), 1e-6)), dot)))
    return gate.astype(np.float32), bits(h + gate[:, :, None] * v[:, None])


@pytest.mark.parametrize("number", [0x7FC0, 0x7F80])
def test_an_output_that_is_no_number_is_a_finding(cli: Cli, tmp_path: Path, arrays: Arrays, number: int) -> None:
    arrays["out"][0, 0, 0], arrays["gate"][1, 1] = number, np.nan
    report = differs(cli, "gate", saved(tmp_path, arrays))
    assert wheres(report) == ["gate of position 1 stream 1", "out of position 0 stream 0 element 0"]
    assert found(report)[0][2] == "nan"


def drop(name: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.pop(name)


def put(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.__setitem__(name, make(arrays.get(name, arrays["hidden"])))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (drop("hidden"), "an array hidden"),
        (drop("k_weight"), "an array k_weight"),
        (lambda arrays: (arrays.pop("gate"), arrays.pop("out")), "an array gate or out"),
        (put("hidden", lambda a: a[0]), "[T, streams, D]"),
        (put("hidden", lambda a: a.astype(np.float64)), "float32 or uint16"),
        (put("key", lambda a: a[:, :2]), "float32 or uint16"),
        (put("value", lambda a: a[:, :-1]), "float32 or uint16"),
        (put("gate", lambda a: a.T), "float32"),
        (put("gate", lambda a: a.astype(np.float64)), "float32"),
        (put("value", lambda a: np.full(a.shape, 0x7FC0, np.uint16)), "finite values"),
        (put("q_weight", lambda a: np.full(a.shape, np.inf, np.float32)), "finite values"),
        (put("hidden", lambda a: np.full(a.shape, 1.0001, np.float32)), "values that BF16 holds exactly"),
        (put("mask", lambda a: np.full(len(a), 2)), "1 for text or 0 for dead"),
        (put("mask", lambda a: np.ones(len(a) + 1, bool)), "bool"),
        (put("mask", lambda a: np.ones(len(a), np.float32)), "bool"),
        (put("out", lambda a: np.array([None], object)), "an array of numbers"),
    ],
)
def test_what_does_not_fit_is_refused(
    cli: Cli, tmp_path: Path, arrays: Arrays, change: Callable[[Arrays], object], expected: str
) -> None:
    change(arrays)
    assert expected in cli.refused_twice(tmp_path, "check", "gate", saved(tmp_path, arrays)).expected


def test_a_dump_is_read_only_where_shapes_agree(tmp_path: Path, arrays: Arrays) -> None:
    """Shapes are known before anything is unpacked."""
    dump = array_files.read(saved(tmp_path, arrays))
    assert dump.arrays["hidden"].shape == arrays["hidden"].shape
