"""What a campaign prints: a line for each life, and tables at its end."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence

from .verdict import Verdict


def tell(verdict: Verdict, *, make: str) -> None:
    """One life; what it broke in full, with how to play it again by the target ``make``."""
    clock, outcomes = time.strftime("%H:%M:%S"), ", ".join(verdict.outcomes)
    faults = sum(verdict.hits.values())
    measured = "".join(f", {what} {seconds:.1f} s" for what, seconds in verdict.measured)
    print(
        f"{clock} {verdict.kind} {verdict.seed}: {outcomes}; {faults} faults{measured}, {verdict.took_s:.0f} s",
        flush=True,
    )
    for each in verdict.broken:
        print(f"    {each}", flush=True)
    if verdict.broken:
        print(f"    again: make {make} KIND={verdict.kind} SEED={verdict.seed} LIVES=1", flush=True)


def table(verdicts: Sequence[Verdict]) -> None:
    print(f"\n{'kind':14} {'lives':>5} {'broken':>6} {'mean s':>6} {'most s':>6}  how their clients ended")
    for kind in dict.fromkeys(verdict.kind for verdict in verdicts):
        lives = [verdict for verdict in verdicts if verdict.kind == kind]
        took = [verdict.took_s for verdict in lives]
        ends = Counter(outcome for verdict in lives for outcome in verdict.outcomes)
        ended = ", ".join(f"{count} {outcome}" for outcome, count in ends.most_common())
        broken = sum(bool(verdict.broken) for verdict in lives)
        print(f"{kind:14} {len(lives):5} {broken:6} {sum(took) / len(took):6.0f} {max(took):6.0f}  {ended}")
    rules = Counter(each.partition(":")[0] for verdict in verdicts for each in verdict.broken)
    if rules:
        print("broken: " + ", ".join(f"{rule} {count} times" for rule, count in sorted(rules.items())))
    _measured(verdicts)


def _measured(verdicts: Sequence[Verdict]) -> None:
    """What was measured, by kind."""
    found: dict[str, list[float]] = {}
    for verdict in verdicts:
        for what, seconds in verdict.measured:
            found.setdefault(f"{verdict.kind}: {what}", []).append(seconds)
    if found:
        print(f"\n{'seconds of':34} {'times':>5} {'median':>6} {'most':>6}")
    for what, each in sorted(found.items()):
        print(f"{what:34} {len(each):5} {statistics.median(each):6.1f} {max(each):6.1f}")
