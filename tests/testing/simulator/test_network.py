"""Lines and circuits: late and in order, held while blocked, gone with their circuit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.testing.simulator.clock import VirtualLoop
from outrider.testing.simulator.network import IN, OUT, Circuit, Line


class Wire:
    def __init__(self, latency_s=0.05):
        self.loop = VirtualLoop()
        self.line = Line(self.loop, random.Random(3), latency_s)
        self.heard = []
        self.circuit = self.connect()

    def connect(self):
        circuit = Circuit(self.line)
        circuit.on_data[OUT] = lambda data: self.heard.append((self.loop.now, data))
        return circuit

    def run(self, *steps):
        """(at, what) in order, and then whatever follows from it."""

        async def main():
            import asyncio

            for at, what in steps:
                self.loop.call_at(at, what)
            await asyncio.sleep(max((at for at, _ in steps), default=0.0) + 120.0)

        self.loop.run(main())

    @property
    def data(self):
        return [data for _, data in self.heard]


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from(["send", "block", "unblock"])), max_size=40))
@settings(max_examples=100, deadline=None)
def test_everything_arrives_once_and_in_order(script):
    wire, sent, blocks = Wire(), [], 0

    def send():
        sent.append(b"%d" % len(sent))
        wire.circuit.send(OUT, sent[-1])

    steps = []
    for at, what in sorted(script):
        if what == "send":
            steps.append((at, send))
        elif what == "block":
            steps.append((at, lambda: wire.line.block(OUT)))
            blocks += 1
        elif blocks:
            steps.append((at, lambda: wire.line.unblock(OUT)))
            blocks -= 1
    steps += [(6.0, lambda: wire.line.unblock(OUT))] * blocks
    wire.run(*steps)
    assert wire.data == sent
    assert [at for at, _ in wire.heard] == sorted(at for at, _ in wire.heard)


def test_what_is_sent_takes_its_time():
    wire = Wire(latency_s=1.0)
    wire.run((2.0, lambda: wire.circuit.send(OUT, b"x")))
    ((at, _),) = wire.heard
    assert 2.8 <= at <= 3.2


def test_a_closed_circuit_loses_what_is_under_way_and_tells_the_other_end():
    wire, told = Wire(), []
    wire.circuit.on_end[OUT] = lambda: told.append(OUT)
    wire.circuit.on_end[IN] = lambda: told.append(IN)
    wire.run((1.0, lambda: wire.circuit.send(OUT, b"x")), (1.001, lambda: wire.circuit.close(by=IN)))
    assert wire.data == []
    assert told == [OUT]


@pytest.mark.parametrize("how", ["vanish", "blocked"])
def test_nobody_is_told_of_an_end_that_cannot_be_heard(how):
    wire, told = Wire(), []
    wire.circuit.on_end[IN] = lambda: told.append(IN)
    if how == "vanish":
        wire.run((1.0, wire.circuit.vanish))
    else:
        wire.run((0.5, lambda: wire.line.block(IN)), (1.0, lambda: wire.circuit.close(by=OUT)))
    assert told == []
