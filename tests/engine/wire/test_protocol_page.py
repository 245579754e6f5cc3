"""The page that a second client is written from says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, get_args, get_origin

import pytest

from outrider.engine.node import blobs, facts, freeports, output, peers, sampler, slots, worker_scheduler
from outrider.engine.node.worker_streams import WINDOW
from outrider.engine.objects import blob_transfers
from outrider.engine.transport import channels, route
from outrider.engine.wire import codec, messages, values
from outrider.engine.wire.session import ACK_EVERY, FOR_CLIENTS, FOR_NODES, UNCOUNTED

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (\w+) \| (.*?) ?\|$", PAGE, re.MULTILINE)
HEX = [line for block in re.findall(r"```hex\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
RANGES = {name: get_args(kind)[1] for name, kind in vars(messages).items() if get_origin(kind) is Annotated}
TYPES = {
    "str": "str", "bytes": "bin", "bool": "bool", "None": "nil", "Cause": "str", "Value": "value", "Peer": "peer",
    "tuple[GpuSample, ...]": "[gpu]", "tuple[Value, ...]": "[value]",
    "tuple[str, ...]": "[str]", "dict[str, Any]": "map",
    **{name: name.lower() for name in RANGES}, **{f"tuple[{name}, ...]": f"[{name.lower()}]" for name in RANGES},
}  # fmt: skip


def fields(kind: type[messages.Message]) -> str:
    described = []
    for name, annotation in kind.__annotations__.items():
        union = str(getattr(annotation, "__forward_arg__", annotation)).split(" | ")
        described.append(f"{name} {' or '.join(TYPES[part] for part in union)}")
    return ", ".join(described)


def test_every_message_has_its_row() -> None:
    assert sorted((int(tag), name) for tag, name, _ in ROWS) == sorted(
        (tag, kind.__name__) for kind, tag in codec.TAGS.items()
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_a_row_has_the_fields_of_its_message(row: tuple[str, str, str]) -> None:
    assert row[2] == fields(getattr(messages, row[1]))


def test_the_ranges_are_the_codes() -> None:
    rows = re.findall(r"^\| (\w+) \| (-?\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    assert {name: (int(least), int(most)) for name, least, most in rows} == {
        name.lower(): (range_.least, range_.most) for name, range_ in RANGES.items()
    }


def test_the_tables_say_who_says_what() -> None:
    tables = [re.findall(r"^\| \d+ \| (\w+)", part, re.MULTILINE) for part in re.split(r"\n\n(?=\| tag)", PAGE)[1:]]
    to_node, to_client, both, _ = (set(table) for table in tables)
    assert to_node | both == {kind.__name__ for kind in FOR_NODES} | {"Hello"}
    assert to_client | both == {kind.__name__ for kind in FOR_CLIENTS}
    assert both - {"Credit", "PreemptionNotice"} == {"Ack", "Ping", "Pong"}


@pytest.mark.parametrize("line", HEX)
def test_an_example_is_a_frame(line: str) -> None:
    data = bytes.fromhex(line)
    (message,) = map(codec.decode, codec.Splitter().feed(data))
    assert codec.encode(message) == data


def test_flags_and_causes_are_all_there() -> None:
    flags = dict(re.findall(r"^\| ([A-Z]+) \| (\d+) \|", PAGE, re.MULTILINE))
    assert flags == {flag.name: str(flag.value) for flag in messages.RunFlag}
    causes = re.findall(r"^\| ([a-z]+) \| [^|]* \| [^|]*\|$", PAGE, re.MULTILINE)
    assert [cause for cause in causes if cause in {str(c) for c in messages.Cause}] == [str(c) for c in messages.Cause]


def test_uncounted_messages_are_listed() -> None:
    (listed,) = re.findall(r"\*\*reliable\*\* except (.*?)\. Each", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == {kind.__name__ for kind in UNCOUNTED}


def test_numbers_in_the_text_are_the_codes() -> None:
    text = " ".join(PAGE.split())  # wherever its lines are broken
    assert f"A body has at most {codec.MAX_FRAME_BYTES} bytes" in text
    assert f"Up to {values.INLINE_BYTES} bytes go inline" in text
    assert f"at most {output.PIECE_BYTES} bytes in each" in text
    assert f"without an end for {output.UNFINISHED_S:g} s, and then every {output.UNFINISHED_S:g} s" in text
    assert f"the newest {output.AWAY_BYTES} bytes of what tasks print" in text
    assert f"whenever {ACK_EVERY} reliable frames" in text
    assert f"`Credit(attempt, stream, {WINDOW})`" in text
    assert f"`slots` (1 to {facts.MAX_SLOTS} tasks at a time)" in text
    assert f"at most {freeports.FEW} of one node in a world" in text
    assert f"up to {slots.DEPTH} lie" in text
    assert f"longer than {slots.STALL_S * 1000:g} ms" in text
    assert f"not reacted after {worker_scheduler.PATIENCE_S:g} s" in text
    assert f"`version` is {messages.PROTOCOL_VERSION}." in text
    assert f"keeps {freeports.KEPT} TCP ports" in text
    assert f"when {freeports.FEW} or fewer are left" in text
    assert f"at most {route.TRANSFERS} transfers with a node" in text
    assert f"a `Get` is not answered within {channels.ANSWER_S:g} s" in text
    assert f"no further byte of the blob comes for {channels.STALL_S:g} s" in text
    assert f"no `Have` comes for {channels.TAKEN_S:g} s" in text
    assert f"of length 0 after {peers.IDLE_S:g} s" in text
    assert (
        f"not reached within {peers.CONNECT_S:g} s (`connected` false), sent nothing for {peers.SILENCE_S:g} s" in text
    )
    assert f"at most {peers.PIECE_BYTES} in each" in text
    assert f"begun {blob_transfers.CHANNEL_TRIES} times in a row" in text
    assert f"seconds, {sampler.LEAST_S} or more" in text
    assert f"has {blobs.SPARE} descriptors left beside it for other channels (where its limit is below 128" in text


def test_the_layout_of_a_value_is_as_computed() -> None:
    view = memoryview(bytearray(262))
    cut = [len(part) for part in values.cut(view, [100, 8, 70])]
    assert cut == [100, 8, 70]
    starts = [100 + (-100 % values.ALIGN_BYTES), 136 + (-136 % values.ALIGN_BYTES)]
    assert f"buffers lie at {starts[0]} and at {starts[1]}" in PAGE
