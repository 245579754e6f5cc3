"""What a campaign tells: a line for each life; of one that is not right, all that led to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .journal import Entry
from .plan import Life
from .referee import SETTLED, Found

BEFORE = 40  # entries that are shown of what came before the end


def line(life: Life, journal: Sequence[Entry], found: Found, *, seconds: float) -> str:
    ends = Counter(entry["what"] for entry in journal if entry["what"] in SETTLED)
    told = ", ".join(f"{count} {what}" for what, count in sorted(ends.items())) or "no calls"
    struck = ", ".join(sorted(found.struck)) or "nothing"
    return f"seed {life.seed}: {told} in {seconds:.0f} s; {life}; struck: {struck}"


def failure(
    life: Life,
    journal: Sequence[Entry],
    log: Sequence[tuple[float, str]],
    wrong: Sequence[str],
    *,
    again: str,
    logs: str,
) -> str:
    began = next((entry["at"] for entry in journal if entry["what"] == "ready"), journal[0]["at"] if journal else 0.0)
    done = [(at, f"*** {text}") for at, text in log]
    said = [(entry["at"], _said(entry)) for entry in journal]
    together = sorted([*done, *said])
    asked = {entry["number"] for entry in journal if entry["what"] in ("wrong", "error", "hang")}
    concerned = [(at, text) for at, text in together[:-BEFORE] if text.startswith("***") or _number(text) in asked]
    return "\n".join(
        [
            f"seed {life.seed} is not right:",
            *(f"  - {each}" for each in wrong),
            f"  its pool: {life}",
            "  what happened, in seconds since it was ready (*** is what was done to it):",
            *(f"  {at - began:8.2f}  {text}" for at, text in [*concerned, *together[-BEFORE:]]),
            f"  again: {again}",
            f"  logs: {logs}",
        ]
    )


def _said(entry: Entry) -> str:
    facts = {name: value for name, value in entry.items() if name not in ("at", "what", "number", "kind", "stacks")}
    where = f" {entry['number']} ({entry['kind']})" if "number" in entry else ""
    return f"{entry['what']}{where}{' ' + str(facts)[:300] if facts else ''}"


def _number(text: str) -> int | None:
    parts = text.split()
    return int(parts[1]) if len(parts) > 1 and parts[1].lstrip("-").isdigit() else None
