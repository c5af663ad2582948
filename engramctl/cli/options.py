"""Options that several commands share, written once: one name, one help text, one type."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

STDIN = Path("-")  # also standard output; `arrays.STDIN` without NumPy

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes on standard error.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write; - is standard output.")]
Profile = Annotated[
    str, typer.Option("--profile", metavar="NAME", help="The model: a name that `profiles` lists, or a .toml.")
]
MaybeProfile = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="NAME", help="The model; else what the source's config says, else deepseek-v4.1-flash."
    ),
]
Layer = Annotated[
    int | None,
    typer.Option(
        "--layer",
        metavar="L",
        help="Decoder layer, 0-based (-1: a table at the input embedding); needed where there are several.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        envvar="ENGRAMCTL_THREADS",
        help="Threads; else one a processor, fewer for files.",
    ),
]
Pin = Annotated[bool, typer.Option("--pin", help="Keep threads on physical cores, a package a layer; Linux only.")]
TokenMap = Annotated[
    Path | None,
    typer.Option("--token-map", metavar="FILE", help="The token map to use, in any form, or a tokenizer.json."),
]
MapTokenizer = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="FILE", help="tokenizer.json that the token map should come from."),
]
Tokenizer = Annotated[Path | None, typer.Option("--tokenizer", metavar="FILE", help="tokenizer.json for --text.")]
Params = Annotated[
    Path | None,
    typer.Option("--params", metavar="SOURCE", help="Another model's constants: checkpoint, container or params.json."),
]
Ids = Annotated[str | None, typer.Option("--ids", metavar="1,2,3", help="Token ids.")]
IdsFile = Annotated[
    Path | None,
    typer.Option("--ids-file", metavar="FILE", help="Token ids in a file (text, .npy, .jsonl); - is standard input."),
]
Text = Annotated[
    str | None,
    typer.Option("--text", metavar="TEXT", help="Text to tokenize; no BOS is added, special tokens are parsed."),
]
Mask = Annotated[str | None, typer.Option("--mask", metavar="1,1,0", help="1 text, 0 dead, one per token id.")]
MaskFile = Annotated[
    Path | None, typer.Option("--mask-file", metavar="FILE", help="The mask in a file (text or .npy).")
]
History = Annotated[
    str | None,
    typer.Option(
        "--history", metavar="4015,9933,-1", help="Compressed ids before the first, oldest first; -1 is dead."
    ),
]
Hidden = Annotated[
    Path | None, typer.Option("--hidden", metavar="FILE", help="Hidden states [T, streams, D]: npy or safetensors.")
]
RoundHidden = Annotated[
    bool, typer.Option("--round-hidden", help="Round float32 hidden states to BF16 instead of refusing inexact ones.")
]


class KernelName(StrEnum):
    auto = "auto"
    amx = "amx"
    avx512 = "avx512"
    avx2 = "avx2"
    portable = "portable"


Kernel = Annotated[KernelName, typer.Option("--kernel", help="Which kernels project; auto takes the fastest.")]


class IdsFormat(StrEnum):
    auto = "auto"
    text = "text"
    npy = "npy"
    jsonl = "jsonl"
    u32 = "u32"


IdsForm = Annotated[IdsFormat, typer.Option("--ids-format", help="How the file of token ids is written.")]
