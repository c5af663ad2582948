"""Which processors kernels' threads are kept on, for `--pin`: one a physical core, a package a layer, some left free.

The rule is zLLM's: of a package with 16 cores or more that are allowed to us, a quarter is left to whoever feeds the
accelerator. A core is known by its siblings and a package by its number, as Linux tells; where it tells nothing, every
processor is a core and all are one package.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

SYSTEM = Path("/sys/devices/system/cpu")
LARGE = 16  # cores, from which on a package has some to spare


def processors(allowed: Iterable[int], turn: int = 0, system: Path = SYSTEM) -> list[int]:
    """Of the processors `allowed`, those for the model's layer number `turn`, from 0: at least one if one is online."""
    packages = by_package(allowed, system)
    some = packages[turn % len(packages)] if packages else []
    return some[: len(some) - len(some) // 4] if len(some) >= LARGE else some


def by_package(allowed: Iterable[int], system: Path = SYSTEM) -> list[list[int]]:
    """Those online, the first of each physical core, ascending; packages in the order of their numbers."""
    online = _span(_told(system / "online", ""))
    packages: dict[int, dict[str, int]] = {}
    for number in sorted(allowed):
        if online and number not in online:
            continue
        topology = system / f"cpu{number}" / "topology"
        package, core = (
            _told(topology / "physical_package_id", "0"),
            _told(topology / "thread_siblings_list", f"{number}"),
        )
        packages.setdefault(int(package), {}).setdefault(core, number)
    return [list(cores.values()) for _, cores in sorted(packages.items())]


def _told(path: Path, otherwise: str) -> str:
    try:
        return path.read_text().strip() or otherwise
    except OSError:
        return otherwise


def _span(text: str) -> set[int]:
    """0-3,8 as Linux writes it."""
    ends = [part.split("-") for part in text.split(",") if part]
    return {number for part in ends for number in range(int(part[0]), int(part[-1]) + 1)}
