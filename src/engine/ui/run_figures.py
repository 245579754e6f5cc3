"""The present figures of an open run for a monitoring system, updated by what is added to the run's record.

A counter only increases while the run is open. The figure of a metric is its newest value in the newest generation. A
run exports at most `MOST_METRICS` metrics, and the number of its other metrics.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...actors import events as ev
from ..api.snapshot import STATES
from ..runs.event_reading import event_in
from ..runs.lines import EVENTS, parsed_events
from ..runs.metrics import METRICS, Logged, metrics_in
from ..runs.reader import Run, at_present
from ..runs.samples import SYSTEM, samples_in

MOST_METRICS = 1000  # most metrics that a run exports; each rank's metric counts
READ_BYTES = 16 << 20  # most bytes of a file that one call of `look` reads
NODE_STATES = tuple(dict.fromkeys(state for state in STATES.values() if state != "lost"))
COUNTED: dict[str, str] = {  # name of an event -> name of the counter of such events
    "node_lost": "nodes_lost",
    "node_noticed": "preemption_notices",
    "launch_failed": "launch_failures",
    "generation_lost": "generations_lost",
    "stalled": "stalls",
}
_NODES = {kind.name: state for kind, state in STATES.items()} | {"node_dismissed": "lost"}


class MetricName(NamedTuple):
    """The identity of a metric.

    ``rank``: None outside of broadcasts. The tasks of a map have one common metric, with the newest value.
    """

    function: str
    rank: int | None
    name: str


class MetricValue(NamedTuple):
    value: float
    step: int | None
    of: tuple[int, int]  # (job, generation) that logged the value


class Tail:
    """A file to which another program appends lines.

    Each call reads at most `READ_BYTES`. ``skip``: True: if more has been added, skip the older lines.
    """

    def __init__(self, path: Path, *, skip: bool) -> None:
        self._path, self._skip, self._read = path, skip, 0

    def new_lines(self) -> bytes:
        """Return the complete lines that were added since the last call."""
        try:
            size = self._path.stat().st_size
            if size <= self._read:
                return b""
            with self._path.open("rb", buffering=0) as file:
                cut = self._skip and size - self._read > READ_BYTES
                file.seek(size - READ_BYTES if cut else self._read)
                self._read = file.tell()
                content = file.read(READ_BYTES)
        except OSError:
            return b""
        end = content.rfind(b"\n") + 1
        self._read += end or (len(content) if len(content) == READ_BYTES else 0)
        return content[content.find(b"\n") + 1 : end] if cut else content[:end]


class RunFigures:
    """The figures of ``run``, as they were at the last call of `look`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.state = "starting"  # the run's state by its record; "died": its program was killed
        self.spent_usd = 0.0
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED.values(), 0))
        self.metrics: dict[MetricName, MetricValue] = {}
        self.metrics_left_out: set[MetricName] = set()
        self.samples: dict[int, ev.NodeSampled] = {}  # node -> its newest sample
        # node -> (bytes received, bytes sent) since the first call of `look`
        self.network: dict[int, tuple[int, int]] = {}
        self._node_states: dict[int, str] = {}
        self._events = Tail(run.directory / EVENTS, skip=False)
        self._logged = Tail(run.directory / METRICS, skip=True)
        self._sampled = Tail(run.directory / SYSTEM, skip=True)

    def look(self) -> None:
        """Read what was added to the record, and update the figures."""
        owner, self.run = at_present(self.run)
        for fields in parsed_events(self._events.new_lines()):
            self._happened(fields)
        for logged in metrics_in(self._logged.new_lines().split(b"\n")[:-1]):
            self._log(logged)
        for sample in samples_in(self._sampled.new_lines().split(b"\n")[:-1]):
            self._sample(sample)
        self.spent_usd = max(self.spent_usd, self.run.spent_usd(None if self.run.ended else time.time()) or 0.0)
        died = owner == "dead" and not self.run.ended
        self.state = "died" if died else str(self.run.status.get("state", "starting"))
        if died or self.run.ended:
            self._node_states.clear()
            self.samples.clear()

    @property
    def over(self) -> bool:
        return self.state in ("ended", "died")

    def nodes(self) -> dict[str, int]:
        """Return state -> number of nodes in it."""
        states = Counter(self._node_states.values())
        return {state: states[state] for state in NODE_STATES}

    def _happened(self, fields: dict[str, Any]) -> None:
        kind = str(fields.get("event"))
        if kind in COUNTED and event_in(fields) is not None:
            self.counts[COUNTED[kind]] += 1
        node = fields.get("node")
        if kind in _NODES and isinstance(node, int):
            self._node_states[node] = _NODES[kind]
            if _NODES[kind] == "lost":
                for known in (self._node_states, self.samples, self.network):
                    known.pop(node, None)

    def _log(self, logged: Logged) -> None:
        of = (logged.job, logged.generation)
        for name, value in logged.values.items():
            key = MetricName(logged.function, logged.rank, name)
            before = self.metrics.get(key)
            if before is None and len(self.metrics) >= MOST_METRICS:
                if len(self.metrics_left_out) < MOST_METRICS:
                    self.metrics_left_out.add(key)
            elif before is None or logged.rank is None or of >= before.of:
                self.metrics[key] = MetricValue(value, logged.step, of)

    def _sample(self, sample: ev.NodeSampled) -> None:
        received, sent = self.network.get(sample.node, (0, 0))
        self.network[sample.node] = received + sample.received_bytes, sent + sample.sent_bytes
        self.samples[sample.node] = sample

    def present_samples(self) -> Iterator[ev.NodeSampled]:
        """Yield the newest sample of each node that is still in the pool."""
        yield from (sample for node, sample in sorted(self.samples.items()) if node in self._node_states)
