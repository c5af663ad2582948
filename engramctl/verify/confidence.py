"""What a sample proves: how many differing rows it could have missed.

n rows are drawn from N without putting any back. If D of the N differ, the draw misses them all with probability

    C(N - D, n) / C(N, n)  <=  (1 - D / N) ** n

so when none of the n differs, every D with (1 - D / N) ** n < 5 % is ruled out with 95 % confidence:

    D < N * (1 - 0.05 ** (1 / n)),  about 3 N / n

If k of the n do differ, the same holds for the largest D whose chance of showing k or fewer is still 5 %.
Rows that are looked at for another reason (the telling ones) prove nothing about the rest and do not count.
"""

from __future__ import annotations

import math

from engramctl.verify.result import Result

SURE = 0.95


def most_missed(rows: int, sampled: int, wrong: int = 0, sure: float = SURE) -> int:
    """The least D so that, with confidence `sure`, fewer than D of `rows` differ, as `wrong` of the `sampled` do."""
    if sampled >= rows:
        return wrong + 1
    if wrong >= sampled:
        return rows + 1
    least, most = 0.0, 1.0
    for _ in range(100):  # halving: the chance to see so few falls as the rate rises
        rate = (least + most) / 2
        least, most = (rate, most) if _chance(wrong, sampled, rate) > 1 - sure else (least, rate)
    return min(rows + 1, max(wrong + 1, math.ceil(rows * most)))


def _chance(wrong: int, sampled: int, rate: float) -> float:
    """Of at most `wrong` among `sampled`, at this rate."""
    if rate <= 0:
        return 1.0
    if rate >= 1:
        return float(wrong >= sampled)
    total = 0.0
    for k in range(min(wrong, sampled) + 1):
        ways = math.lgamma(sampled + 1) - math.lgamma(k + 1) - math.lgamma(sampled - k + 1)
        total += math.exp(ways + k * math.log(rate) + (sampled - k) * math.log1p(-rate))
    return total


def say(layer: int, rows: int, sampled: int, wrong: int, what: str, result: Result) -> None:
    """Note what a layer's sample proves; `what` is what wrong rows do: "differ", "are invalid".

    `wrong` may count telling rows too, which only makes the bound weaker.
    """
    wrong = min(wrong, sampled)
    bound = most_missed(rows, sampled, wrong)
    facts = {"rows": rows, "sampled": sampled, "wrong": wrong, "sure": SURE, "fewer_than": bound}
    result.extra.setdefault("confidence", {})[str(layer)] = facts
    if bound > rows:
        none = "no row was drawn by chance" if not sampled else "all rows that were drawn are wrong"
        result.notes.append(f"layer {layer}: {none}, so nothing is known of the rest")
        return
    seen = f"as {wrong:,} of {sampled:,} seeded ones" if wrong else f"as none of {sampled:,} seeded ones"
    share = f"{bound / rows:.2%}" if bound / rows >= 1e-4 else f"{bound / rows:.2g}"
    result.notes.append(
        f"layer {layer}: 95 % sure that fewer than {bound:,} of {rows:,} rows ({share}) {what}, {seen} {_does(what)}"
    )


def _does(what: str) -> str:
    return {"differ": "do", "are invalid": "are"}[what]
