"""Expand Slurm's lists of nodes: "c[0-2,5],gpu07" is c0, c1, c2, c5 and gpu07, in that order. No I/O.

HOSTLIST-1: the names keep the order of the list, which is the order of the job's nodes, and keep their leading zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

MOST = 1 << 16  # most nodes in a list; a longer list is not from Slurm
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand(text: str) -> Sequence[str]:
    """Return the names of the nodes.

    Raises:
        ValueError: The text is not a list of nodes.
    """
    names: list[str] = []
    for each in _split(text.strip()):
        names += _expanded(each)
        if len(names) > MOST:
            raise ValueError(f"{text[:80]!r} stands for more than {MOST} nodes")
    return names


def _split(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise ValueError(f"{text!r} is no list of nodes: its brackets do not match")
        if letter == "," and not depth:
            yield text[begin:at]
            begin = at + 1
    if depth:
        raise ValueError(f"{text!r} is no list of nodes: its brackets do not match")
    if begin < len(text):
        yield text[begin:]


def _expanded(text: str) -> list[str]:
    pieces: list[Sequence[str]] = []
    at = 0
    for match in _PIECE.finditer(text):
        if match.start() != at:
            break
        at = match.end()
        pieces.append([match[2]] if match[2] is not None else list(_numbers(match[1])))
    if at != len(text) or not pieces:
        raise ValueError(f"{text!r} is no list of nodes")
    many = 1
    for piece in pieces:
        many *= len(piece)
    if many > MOST:
        raise ValueError(f"{text[:80]!r} stands for more than {MOST} nodes")
    return ["".join(parts) for parts in product(*pieces)]


def _numbers(text: str) -> Iterator[str]:
    for each in text.split(","):
        match = _RANGE.fullmatch(each)
        if match is None:
            raise ValueError(f"[{text}] is no list of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < MOST:
            raise ValueError(f"[{text}] is no list of numbers")
        for number in range(first, last + 1):
            yield f"{number:0{len(match[1])}}"
