"""The metrics of open runs for the monitoring system Prometheus, in its text format.

Only this module imports prometheus_client (extra `ui`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from ...actors import events as ev
from ..runs.reader import runs_in
from .run_figures import COUNTED, RunFigures

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
