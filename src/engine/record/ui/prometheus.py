"""The figures of open runs for the monitoring system Prometheus, in its text format.

`RunFigures` has the present figures of one run, updated by what is added to the run's record. A counter only increases
while the run is open. The figure of a metric is its newest value in the newest generation (one run of a broadcast with
fixed ranks). A run exports at most `MOST_METRICS` metrics, and the number of its other metrics. `Exporter` puts the
figures of all runs together. Only this module imports prometheus_client (extra `ui`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from ....actors import events as ev
from ...api.snapshot import STATES
from ..runs.lines import EVENTS, SYSTEM, event_in, parsed_events, samples_in
from ..runs.metrics import METRICS, Logged, metrics_in
from ..runs.reader import Run, at_present, runs_in

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
    of: tuple[int, int]  # (job, generation): the call that logged the value, and the call's try


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


MOST_RUNS = 50  # if more runs are open, only this many newest runs are exported
ENDED_S = 300.0  # seconds after its end for which a run is still exported, so that Prometheus gets its last figures
RUN_STATES = ("starting", "running", "closing", "ended", "died")
COUNT_TEXTS = {
    "nodes_lost": "Ready nodes that were lost.",
    "preemption_notices": "Preemption notices of nodes.",
    "launch_failures": "Launches that the provider refused or left incomplete.",
    "generations_lost": "Generations of broadcasts that lost a rank, and began again or ended.",
    "stalls": "Tasks and broadcasts that gave no sign of life for longer than their `stall`.",
}


class Text(NamedTuple):
    """The content of a reply to Prometheus. ``kind``: its content type."""

    kind: str
    content: bytes


class Exporter:
    """Exports the figures of the open runs whose records are in ``folder``. Any thread may call its methods."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._runs: dict[str, RunFigures] = {}
        self._over: dict[str, float] = {}  # run -> time (by ``clock``) at which its end was noticed
        self._lock = threading.Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self, accept: str = "") -> Text:
        """Read new data of the runs, and return their metrics.

        ``accept``: the HTTP header that chooses the format: Prometheus' own, or OpenMetrics.
        """
        encode, kind = choose_encoder(accept)
        with self._lock:
            self._look()
            return Text(kind, encode(self._registry))

    def collect(self) -> Iterable[Metric]:
        yield from _families([self._runs[name] for name in sorted(self._runs)])

    def _look(self) -> None:
        now = self._clock()
        living = [run for run in runs_in(self._folder) if not run.ended and run.owner == "alive"]
        for run in living[-MOST_RUNS:]:
            if run.id not in self._runs:
                self._runs[run.id] = RunFigures(run)
        for name, figures in list(self._runs.items()):
            if name not in self._over:
                figures.look()
            if figures.over and now - self._over.setdefault(name, now) >= ENDED_S:
                del self._runs[name], self._over[name]


class Family:
    """One metric for Prometheus with its samples, one for each combination of labels."""

    def __init__(self, kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, text: str, *labels: str) -> None:
        self.metric = kind(f"outrider_{name}", text, labels=("run", *labels))

    def add(self, value: float, run: RunFigures, *labels: object) -> None:
        self.metric.add_metric((run.run.id, *map(str, labels)), value)  # type: ignore[no-untyped-call,unused-ignore]


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(GaugeMetricFamily, name, text, *labels)


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(CounterMetricFamily, name, text, *labels)


def _families(runs: list[RunFigures]) -> Iterator[Metric]:
    for part in (_states, _work, _counts, _metrics, _nodes, _gpus):
        for family in part(runs):
            yield family.metric


def _states(runs: list[RunFigures]) -> list[Family]:
    info = _gauge("run_info", "A run, with its name, its pool and its provider. Always 1.", "name", "pool", "provider")
    state = _gauge("run_state", "Whether a run is in this state: 1 or 0.", "state")
    began = _gauge("run_start_time_seconds", "When the run began, in unix time.")
    nodes = _gauge("nodes", "Nodes in this state.", "state")
    wanted = _gauge("nodes_wanted", "Nodes that the pool is to have.")
    for run in runs:
        status = run.run.status
        info.add(1, run, run.run.name, status.get("pool", ""), status.get("provider", ""))
        for each in RUN_STATES:
            state.add(each == run.state, run, each)
        began.add(status.get("began", 0.0), run)
        for name, count in run.nodes().items():
            nodes.add(count, run, name)
        wanted.add(0 if run.over else status.get("wanted_nodes", 0), run)
    return [info, state, began, nodes, wanted]


def _work(runs: list[RunFigures]) -> list[Family]:
    generation = _gauge("generation", "The generation of the broadcast that began one last.")
    spent = _counter("cost_usd", "USD that the run's machines have cost.")
    hourly = _gauge("cost_usd_per_hour", "USD per hour that the run's machines cost at present.")
    submitted = _counter("calls_submitted", "Calls submitted: a broadcast is one, and so is each task of a map.")
    finished = _counter("calls_finished", "Calls that have ended, in whatever way.")
    failed = _counter("calls_failed", "Calls that have failed, and items of maps.")
    for run in runs:
        status = run.run.status
        generation.add(status.get("generation") or 0, run)
        spent.add(run.spent_usd, run)
        hourly.add(0.0 if run.over else status.get("hourly_usd", 0.0), run)
        submitted.add(status.get("calls", 0), run)
        finished.add(status.get("finished_calls", 0), run)
        failed.add(status.get("failed_calls", 0), run)
    return [generation, spent, hourly, submitted, finished, failed]


def _counts(runs: list[RunFigures]) -> list[Family]:
    families = []
    for name in dict.fromkeys(COUNTED.values()):
        family = _counter(name, COUNT_TEXTS[name])
        for run in runs:
            family.add(run.counts[name], run)
        families.append(family)
    return families


def _metrics(runs: list[RunFigures]) -> list[Family]:
    labels = ("function", "rank", "name")
    value = _gauge("metric", "The newest value that log_metrics has recorded under this name.", *labels)
    step = _gauge("metric_step", "The step of that value.", *labels)
    left_out = _gauge("metrics_left_out", "Metrics beyond the first 1,000 of the run, which are not told of.")
    for run in runs:
        for key, newest in run.metrics.items():
            label_values = (key.function, "" if key.rank is None else key.rank, key.name)
            value.add(newest.value, run, *label_values)
            if newest.step is not None:
                step.add(newest.step, run, *label_values)
        left_out.add(len(run.metrics_left_out), run)
    return [value, step, left_out]


def _nodes(runs: list[RunFigures]) -> list[Family]:
    gauges: list[tuple[Family, Callable[[ev.NodeSampled], float]]] = [
        (_gauge("node_cpu_ratio", "How much of a node's processors is busy, 0 to 1.", "node"), lambda use: use.cpu),
        (_gauge("node_cpus", "Processors that the node may run on.", "node"), lambda use: use.cpus),
        (_gauge("node_memory_used_bytes", "Memory in use.", "node"), lambda use: use.memory_bytes),
        (_gauge("node_memory_size_bytes", "Memory that there is.", "node"), lambda use: use.memory_total_bytes),
        (
            _gauge("node_disk_used_bytes", "Of the disk with the work folder, in use.", "node"),
            lambda use: use.disk_bytes,
        ),
        (_gauge("node_disk_size_bytes", "Size of that disk.", "node"), lambda use: use.disk_total_bytes),
    ]
    received = _counter("node_network_received_bytes", "Bytes that the node's machine has received.", "node")
    sent = _counter("node_network_sent_bytes", "Bytes that the node's machine has sent.", "node")
    for run in runs:
        for use in run.present_samples():
            for family, figure in gauges:
                family.add(figure(use), run, use.node)
            for counter, count in zip((received, sent), run.network[use.node], strict=True):
                counter.add(count, run, use.node)
    return [*(family for family, _ in gauges), received, sent]


def _gpus(runs: list[RunFigures]) -> list[Family]:
    labels = ("node", "gpu")
    busy = _gauge("gpu_utilization_ratio", "The part of the driver's last interval in which the GPU ran.", *labels)
    used = _gauge("gpu_memory_used_bytes", "Memory of the GPU in use.", *labels)
    size = _gauge("gpu_memory_size_bytes", "Memory of the GPU.", *labels)
    power = _gauge("gpu_power_watts", "Power that the GPU draws.", *labels)
    for run in runs:
        for use in run.present_samples():
            for gpu in use.gpus:
                label_values = (use.node, gpu.index)
                used.add(gpu.memory_bytes, run, *label_values)
                size.add(gpu.memory_total_bytes, run, *label_values)
                if gpu.utilisation is not None:
                    busy.add(gpu.utilisation, run, *label_values)
                if gpu.watts is not None:
                    power.add(gpu.watts, run, *label_values)
    return [busy, used, size, power]
