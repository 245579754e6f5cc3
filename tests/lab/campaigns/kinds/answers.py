"""What befalls single answers, through the whole of a client's life: it must come through, and nobody hears of it."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from collections.abc import Callable

from ..life import Kind, Life
from ..proxy import Call, CutAfter, CutBefore, Earlier, Fault, Half, Instead, Late, Rewritten, Rule, Shortened, Twice
from ..proxy import refusal as refused
from ..wish import Wish

UNLUCKY = ("CapacityError", "CleanupError")  # of a call whose every try was unlucky
HTML = b"<html><head><title>502 Bad Gateway</title></head><body><center>nginx</center></body></html>"
TAGS_LATE_S = 5.0


def often(writes: float, others: float, fault: Callable[[Call], Fault]) -> Rule:
    """Of the calls that change something so many in one, and of the rest so many."""

    def rule(call: Call) -> Fault | None:
        return fault(call) if call.luck < (writes if call.writes else others) else None

    return rule


def works(life: Life, *rules: Rule, within_s: float = 240.0) -> None:
    """A client that works to its end under these rules."""
    life.suffers(*rules)
    life.end(life.client(Wish(rounds=life.dice.randint(1, 3)), fits=UNLUCKY, within_s=within_s))


def lost(life: Life) -> None:
    """half of all writes and a tenth of the rest are carried out and not answered"""
    works(life, often(0.5, 0.1, lambda call: CutAfter(reset=call.number % 2 == 0)))


def reset(life: Life) -> None:
    """connections are reset before anybody is asked: 40 % of writes, 15 % of the rest"""
    works(life, often(0.4, 0.15, lambda call: CutBefore(reset=True)))


def half(life: Life) -> None:
    """half a body after the length of the whole: 30 % of writes, 15 % of the rest"""
    works(life, often(0.3, 0.15, lambda call: Half()))


def cut_xml(life: Life) -> None:
    """XML that ends in the middle, with a right length: 30 % of writes, 10 % of the rest"""
    part = life.dice.choice((0.0, 0.1, 0.5, 0.9))
    shortened = often(0.3, 0.1, lambda call: Shortened(part))
    works(life, lambda call: None if call.json else shortened(call))


def cut_json(life: Life) -> None:
    """JSON that ends in the middle, with a right length: 60 % of it"""
    part = life.dice.choice((0.0, 0.1, 0.5, 0.9))
    works(life, lambda call: Shortened(part) if call.json and call.luck < 0.6 else None)


def throttle(life: Life) -> None:
    """70 % of the calls are throttled for 10 s, twice"""
    began, first = time.time(), life.dice.uniform(0.0, 4.0)

    def rule(call: Call) -> Fault | None:
        bad = first <= (call.at - began) % 20.0 < first + 10.0
        return refused("RequestLimitExceeded", status=503) if bad and call.luck < 0.7 else None

    works(life, rule)


def broken(life: Life) -> None:
    """500 and 503 with a page of HTML or nothing, done or not: 40 % of writes, 10 % of the rest"""

    def fault(call: Call) -> Fault:
        status, body = (500, 503)[call.number % 2], (HTML, b"")[call.number // 2 % 2]
        return Instead(status, body, asked=call.luck < 0.2)

    works(life, often(0.4, 0.1, fault))


def slow(life: Life) -> None:
    """40 % of the writes are answered 20 s late"""
    works(life, often(0.4, 0.0, lambda call: Late(20.0)), within_s=400.0)


def twice(life: Life) -> None:
    """30 % of the requests arrive twice, and the second answer is the one that comes back"""
    works(life, often(0.3, 0.3, lambda call: Twice()))


def earlier(life: Life) -> None:
    """half of what only asks is answered with what the same question had before, up to 5 s ago"""
    works(life, lambda call: Earlier(5.0) if not call.writes and call.luck < 0.5 else None)


def stale(life: Life) -> None:
    """describes up to 10 s old and wavering, repeats answered by the id alone, and 40 % of the writes lost"""
    works(life, often(0.4, 0.0, lambda call: CutAfter()), within_s=400.0)


def very_stale(life: Life) -> None:
    """describes 20 s old"""
    works(life, within_s=400.0)


def late_tags(life: Life) -> None:
    """tags appear 5 s after the machine"""
    seen: dict[str, float] = {}

    def untagged(body: bytes) -> bytes:
        return _untagged(body, seen, time.time())

    works(life, lambda call: Rewritten(untagged) if call.action == "DescribeInstances" else None)


def mixed(life: Life) -> None:
    """a quarter of all calls suffer any of these"""
    faults: tuple[Fault, ...] = (
        CutBefore(reset=True), CutAfter(), Half(), Shortened(0.5), Instead(500, HTML), Instead(503, asked=True),
        Late(2.0), Earlier(5.0), Twice(), refused("RequestLimitExceeded", status=503),
    )  # fmt: skip
    works(life, often(0.25, 0.25, lambda call: faults[int(call.luck * 100 * len(faults)) % len(faults)]))


def _untagged(body: bytes, seen: dict[str, float], now: float) -> bytes:
    """A DescribeInstances answer without what is younger than its tags: whoever asks by a tag does not see it."""
    root = ET.fromstring(body)
    space = root.tag.partition("}")[0] + "}" if "}" in root.tag else ""
    if space:
        ET.register_namespace("", space[1:-1])
    for machines in root.iter(f"{space}instancesSet"):
        for each in list(machines):
            name = each.findtext(f"{space}instanceId", "")
            if now - seen.setdefault(name, now) < TAGS_LATE_S:
                machines.remove(each)
    changed: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return changed


KINDS = (
    Kind("lost", lost),
    Kind("reset", reset),
    Kind("half", half),
    Kind("cut-xml", cut_xml),
    Kind("cut-json", cut_json),
    Kind("throttle", throttle),
    Kind("broken", broken),
    Kind("slow", slow),
    Kind("twice", twice),
    Kind("earlier", earlier),
    Kind("stale", stale, {"stale_s": 10.0, "wavering": True, "terse_repeats": True}),
    Kind("very-stale", very_stale, {"stale_s": 20.0, "terse_repeats": True}),
    Kind("late-tags", late_tags),
    Kind("mixed", mixed),
)
