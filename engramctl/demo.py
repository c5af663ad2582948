"""demo: the whole main job by the commands themselves, on small checkpoints in the real format, in a temporary folder.

Two checkpoints: a tiny tokenizer whose map moves the pad, and the release's real token map. What one engine or format
made is checked against another; at the end one byte is damaged, and the check must see it.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engramctl.cli import edge
from engramctl.errors import EngramctlError

LAYER = 1
TOKENS = 48
Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One command of the demo and what its outcome means."""

    command: str
    compared: str
    against: str
    ok: bool

    def cells(self) -> tuple[str, str, str, str]:
        return self.command, self.compared, self.against, "ok" if self.ok else "DIFFERS"

    def as_dict(self) -> dict[str, Any]:
        return {"command": self.command, "compared": self.compared, "with": self.against, "ok": self.ok}


def talk(line: str) -> None:
    """Each command on standard error, as one would type it."""
    edge.say(line)


def run(say: Say | None = None) -> list[Step]:
    """All steps, in order; a command that cannot run raises its own error."""
    steps: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="engramctl-demo-") as folder:
        for name in ("tiny", "real"):
            steps += _Demo(Path(folder) / name, name, say).run()
    return steps


class _Demo:
    """One checkpoint's way through the commands."""

    def __init__(self, folder: Path, tokens: str, say: Say | None) -> None:
        folder.mkdir()
        self.folder, self.tokens, self.say, self.steps = folder, tokens, say, list[Step]()

    def run(self) -> list[Step]:
        self.make()
        self.convert()
        self.use()
        self.damage()
        return self.steps

    def call(self, *words: str) -> tuple[int, dict[str, Any]]:
        """A command by its words, `@name` being a file of the demo: its exit code, and its JSON if it printed any."""
        from engramctl.cli.main import app

        if self.say:
            self.say("$ engramctl " + " ".join(word.removeprefix("@") for word in words))
        arguments = [str(self.folder / word[1:]) if word.startswith("@") else word for word in words]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = app(args=arguments, prog_name="engramctl", standalone_mode=False)
        report = json.loads(out.getvalue()) if out.getvalue().startswith("{") else {}
        return int(code or 0), report

    def do(self, *words: str) -> None:
        """A command that makes something."""
        code, _ = self.call(*words)
        if code:
            raise EngramctlError(f"demo: {' '.join(words)}", "exit code 0", f"{code}")

    def check(self, what: str, against: str, *words: str, fails: bool = False) -> None:
        """A check, and what it compared with what; `fails` where it must see a difference."""
        code, report = self.call("check", *words, "--json")
        seen = report["coverage"]
        compared = f"{what}: {seen['checked']:,} of {seen['of']:,} {seen['unit']}"
        self.steps.append(Step(f"check {words[0]} ({self.tokens})", compared, against, bool(code) == fails))

    def make(self) -> None:
        """A checkpoint, its token map and its constants."""
        self.do("synth", "@ckpt", "--tokens", self.tokens, "--seed", "7", "--quiet")
        if self.tokens == "tiny":
            self.do("map", "@ckpt/tokenizer.json", "-o", "@engram_token_map.bin", "--allow-mismatch", "--quiet")
            self.check(
                "its token map", "its tokenizer", "map", "@engram_token_map.bin", "--tokenizer", "@ckpt/tokenizer.json"
            )
        else:
            self.do("map", "-o", "@engram_token_map.bin", "--quiet")
            self.check("the shipped token map", "the published SHA-256", "map", "@engram_token_map.bin")
        self.do("params", "@ckpt", "-o", "@params.json", "--quiet")
        self.check("its config, index and tensors", "each other and the profile", "source", "@ckpt")

    def convert(self) -> None:
        """Checkpoint to container."""
        self.do("repack", "@ckpt", "-o", "@engram.gguf", "--quiet")
        self.do("show", "@engram.gguf", "--json")
        self.check("the container", "the rules of ds4's loader", "file", "@engram.gguf")
        self.check("its constants", "the derivation", "params", "@engram.gguf")
        self.check("every byte of every row", "the checkpoint", "packing", "@ckpt", "@engram.gguf")

    def use(self) -> None:
        """Tokens to hidden states by the fast engine, from the container; checked by the reference, from the checkpoint."""
        ids, mask = self.sequence()
        some = ("--layer", str(LAYER), "--ids", ids, "--mask", mask)
        for stage in ("rows", "values", "kv", "gate"):
            hidden = ("--hidden", "@hidden.npy") if stage == "gate" else ()
            self.do("run", "@engram.gguf", *some, *hidden, "--stop-at", stage, "-o", f"@{stage}.npy")
        self.do("run", "@engram.gguf", *some, "--hidden", "@hidden.npy", "-o", "@out.npy")
        self.check("row numbers", "the reference", "hash", "@rows.npy", "--params", "@ckpt", *some)
        self.check("looked-up values", "the reference, from the checkpoint", "values", "@values.npy", "@ckpt", *some)
        self.check("keys and values", "the reference, within its bound", "kv", "@kv.npy", "@ckpt", *some)
        self.gate_dump(mask)
        self.check("gates and outputs", "the reference, within their bounds", "gate", "@gate.npz")

    def sequence(self) -> tuple[str, str]:
        """Token ids over the vocabulary, with an image in the middle, and hidden states to go with them."""
        from engramctl.source import open_source
        from engramctl.synth import random_u64

        with open_source(self.folder / "ckpt") as source:
            sizes = source.sizes
        ids = random_u64(1, 0, TOKENS) % np.uint64(sizes.vocabulary)
        mask = ["0" if 20 <= t < 24 else "1" for t in range(TOKENS)]
        drawn = random_u64(2, 0, TOKENS * sizes.streams * sizes.hidden)
        bits = (drawn >> np.uint64(48) & np.uint64(0x80FF)) | np.uint64(0x3F00)  # BF16 between 0.5 and 2, either sign
        np.save(self.folder / "hidden.npy", bits.astype(np.uint16).reshape(TOKENS, sizes.streams, sizes.hidden))
        return ",".join(map(str, ids.tolist())), ",".join(mask)

    def gate_dump(self, mask: str) -> None:
        """An engine's dump of its gate, as `check gate` reads it."""
        from engramctl.source import open_source

        with open_source(self.folder / "ckpt") as source:
            weights = source.weights(LAYER)
        kv = np.load(self.folder / "kv.npy")
        arrays = {name: np.load(self.folder / f"{name}.npy") for name in ("hidden", "gate", "out")}
        alive = np.array([part == "1" for part in mask.split(",")])
        arrays |= {"key": kv[:, :-1], "value": kv[:, -1], "mask": alive}
        np.savez(self.folder / "gate.npz", q_weight=weights.q_weight, k_weight=weights.k_weight, **arrays)

    def damage(self) -> None:
        """One bit of one scale in a copy: the check must see it."""
        from formats.gguf_file import read_header

        data = bytearray((self.folder / "engram.gguf").read_bytes())
        table = next(
            t for t in read_header(self.folder / "engram.gguf").tensors if t.name.endswith("engram_embd.weight")
        )
        data[table.start + table.shape[0] - 1] ^= 1
        (self.folder / "damaged.gguf").write_bytes(data)
        words = ("packing", "@ckpt", "@damaged.gguf")
        self.check("a copy with one bit changed", "the checkpoint, and it must differ", *words, fails=True)
