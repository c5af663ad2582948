"""demo: the whole main job by the commands themselves, on small checkpoints in the real format, in a temporary folder.

Two checkpoints: a tiny tokenizer whose map moves the pad, and the release's real token map. What one engine or format
made is checked against another; at the end one byte is damaged, and the check must see it.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engramctl.errors import EngramctlError

LAYER = 1
TOKENS = 48
Say = Callable[[str], None]

PROVES = {
    "source": "the checkpoint is whole and says what it is",
    "map": "tokens fold together as they should",
    "file": "the loader takes it",
    "params": "the hash constants are right",
    "packing": "no byte was lost or moved",
    "hash": "the right rows are addressed",
    "values": "rows decode to the right values",
    "kv": "the projection is right",
    "gate": "gate and residual are right",
}


@dataclass(frozen=True)
class Step:
    """One command of the demo and what its outcome means."""

    command: str
    compared: str
    against: str
    proves: str
    ok: bool

    def cells(self) -> tuple[str, ...]:
        return self.command, self.compared, self.against, self.proves, "ok" if self.ok else "DIFFERS"

    def as_dict(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "compared": self.compared,
            "with": self.against,
            "proves": self.proves,
            "ok": self.ok,
        }


def talk(line: str) -> None:
    """Each command on standard error, as one would type it."""
    sys.stderr.write(line + "\n")


def run(say: Say | None = None) -> list[Step]:
    """All steps, in order; a command that cannot run raises its own error."""
    steps: list[Step] = []
    try:
        with tempfile.TemporaryDirectory(prefix="engramctl-demo-") as folder:
            for name in ("tiny", "real"):
                steps += _Demo(Path(folder) / name, name, say).run()
    except BaseException as stop:
        if not isinstance(stop, Exception):  # what a stopped command kept went with the folder
            stop.args = ()
        raise
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
        from engramctl.cli import edge
        from engramctl.cli.main import app

        if self.say:
            self.say("$ engramctl " + " ".join(word.removeprefix("@") for word in words))
        arguments = [str(self.folder / word[1:]) if word.startswith("@") else word for word in words]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = edge.call(app, arguments)
        report = json.loads(out.getvalue()) if out.getvalue().startswith("{") else {}
        return code, report

    def do(self, *words: str) -> None:
        """A command that makes something."""
        code, _ = self.call(*words)
        if code:
            raise EngramctlError(f"demo: {' '.join(words)}", "exit code 0", f"{code}")

    def check(self, what: str, against: str, *words: str, fails: bool = False) -> None:
        """A check, and what it compared with what; `fails` where it must see a difference."""
        code, report = self.call("check", *words, "--json")
        compared = f"{report['coverage']['checked']:,} {report['coverage']['unit']}: {what}"
        proves = "the check can fail" if fails else PROVES[words[0]]
        file = words[2 if words[0] == "packing" else 1].removeprefix("@")
        self.steps.append(Step(f"{words[0]} {self.tokens}/{file}", compared, against, proves, bool(code) == fails))

    def make(self) -> None:
        """A checkpoint, its token map and its constants."""
        self.do("synth", "@ckpt", "--tokens", self.tokens, "--seed", "7", "--quiet")
        if self.tokens == "tiny":
            self.do("map", "@ckpt/tokenizer.json", "-o", "@engram_token_map.bin", "--allow-mismatch", "--quiet")
        else:
            self.do("map", "-o", "@engram_token_map.bin", "--quiet")
            self.check("the shipped map", "the published SHA-256", "map", "@engram_token_map.bin")
        self.do("params", "@ckpt", "-o", "@params.json", "--quiet")
        self.check("config, index, tensors", "each other, the profile", "source", "@ckpt")

    def convert(self) -> None:
        """Checkpoint to container."""
        self.do("repack", "@ckpt", "-o", "@engram.gguf", "--quiet")
        self.do("show", "@engram.gguf", "--json")
        tokenizer = ("--tokenizer", "@ckpt/tokenizer.json") if self.tokens == "tiny" else ()
        against = "its tokenizer" if tokenizer else "the published SHA-256"
        self.check("the container's", against, "map", "@engram.gguf", *tokenizer)
        self.check("the container", "ds4's own loader", "file", "@engram.gguf")
        self.check("the container's", "the derivation", "params", "@engram.gguf")
        self.check("every byte", "the checkpoint", "packing", "@ckpt", "@engram.gguf")

    def use(self) -> None:
        """Tokens to hidden states by the fast engine from the container; the reference checks from the checkpoint."""
        self.sequence()
        some = ("--layer", str(LAYER), "--ids-file", "@ids.txt", "--mask-file", "@mask.txt")
        for stage in ("rows", "values", "kv", "gate"):
            hidden = ("--hidden", "@hidden.npy") if stage == "gate" else ()
            self.do("run", "@engram.gguf", *some, *hidden, "--stop-at", stage, "-o", f"@{stage}.npy")
        self.do("run", "@engram.gguf", *some, "--hidden", "@hidden.npy", "-o", "@out.npy")
        both = ("--ids-file", "@ids.txt", "--mask-file", "@mask.txt")
        self.do("hash", *both, "--params", "@engram.gguf", "--to", "npy", "-o", "@both.npy", "--quiet")
        self.check("of both layers", "the reference", "hash", "@both.npy", "--params", "@ckpt", *both)
        self.check("of the engine", "the reference", "hash", "@rows.npy", "--params", "@ckpt", *some)
        wanted = ("--layer", str(LAYER), "--rows", "0,1,5,100:200")
        self.do("lookup", "@engram.gguf", *wanted, "-o", "@looked.npy")
        self.check("looked up by number", "the checkpoint's", "values", "@looked.npy", "@ckpt", *wanted)
        self.check("of the engine", "the reference", "values", "@values.npy", "@ckpt", *some)
        self.check("keys and values", "the reference, in bounds", "kv", "@kv.npy", "@ckpt", *some)
        self.gate_dump()
        self.check("gates and outputs", "the reference, in bounds", "gate", "@gate.npz")

    def sequence(self) -> None:
        """Token ids over the vocabulary, with an image in the middle, and hidden states to go with them."""
        from engramctl.source import open_source
        from engramctl.synth import random_u64

        with open_source(self.folder / "ckpt") as source:
            sizes = source.sizes
        ids = random_u64(1, 0, TOKENS) % np.uint64(sizes.vocabulary)
        mask = ["0" if 20 <= t < 24 else "1" for t in range(TOKENS)]
        drawn = random_u64(2, 0, TOKENS * sizes.streams * sizes.hidden)
        # BF16 between 0.5 and 2, of either sign
        bits = (drawn >> np.uint64(48) & np.uint64(0x80FF)) | np.uint64(0x3F00)
        np.save(self.folder / "hidden.npy", bits.astype(np.uint16).reshape(TOKENS, sizes.streams, sizes.hidden))
        (self.folder / "ids.txt").write_text(" ".join(map(str, ids.tolist())) + "\n")
        (self.folder / "mask.txt").write_text(" ".join(mask) + "\n")

    def gate_dump(self) -> None:
        """An engine's dump of its gate, as `check gate` reads it."""
        from engramctl.source import open_source

        with open_source(self.folder / "ckpt") as source:
            weights = source.weights(LAYER)
        kv = np.load(self.folder / "kv.npy")
        arrays = {name: np.load(self.folder / f"{name}.npy") for name in ("hidden", "gate", "out")}
        alive = np.array([word == "1" for word in (self.folder / "mask.txt").read_text().split()])
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
        self.check("one bit changed", "the checkpoint", *words, fails=True)
