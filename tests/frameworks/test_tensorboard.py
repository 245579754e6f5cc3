"""TensorBoard's own reader finds every number of a run's record."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import Local, Pool, compute, instance_info, log_metrics
from outrider.engine.record.runs.metrics import newest, read_metrics

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
STEPS, NODES = 50, 2


@compute
def train() -> None:
    for step in range(STEPS):
        log_metrics({"loss": 1 / (step + 1), "rank": instance_info().rank}, step=step)


def test_every_number_of_a_run_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path))
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    with Pool(provider=Local(), nodes=NODES, run="curves", console="silent") as pool:
        train() @ pool
    (directory,) = (tmp_path / "runs").glob("*-curves-*")
    curves = newest(read_metrics(directory))
    assert len(curves) == 2 * NODES
    for series, points in curves.items():
        (folder,) = (directory / "tb").glob(f"train-*/rank-{series.rank:03}")
        read = accumulators.EventAccumulator(str(folder))
        read.Reload()
        found = [(each.step, each.value) for each in read.Scalars(series.name)]
        assert found == [(point.step, pytest.approx(point.value)) for point in points]
        assert len(found) == STEPS
