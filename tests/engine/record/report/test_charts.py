"""Which curves a metric has, and what is said of them."""

from __future__ import annotations

import math

from outrider.actors.events import GpuSample, NodeSampled
from outrider.engine.record.report.charts import MOST_CURVES, Chart, metric_charts, sample_charts
from outrider.engine.record.report.markup import data, figure, summary
from outrider.engine.record.runs.metrics import Logged, divided


def logged(
    at: float,
    step: int | None,
    *,
    rank: int | None = 0,
    generation: int = 1,
    job: int = 1,
    function: str = "train",
    **values: float,
) -> Logged:
    return Logged(100.0 + at, function, job, rank, 0, generation, step, values)


def charts(lines: list[Logged]) -> list[Chart]:
    return metric_charts(divided(lines), 100.0)


def test_each_step_is_once_in_its_curve_and_what_was_redone_is_faint() -> None:
    lines = [logged(step, step, loss=1.0) for step in range(10)]
    lines += [logged(5 + step, step, generation=2, loss=2.0) for step in range(6, 15)]
    lines += [logged(30 + step, step, generation=3, loss=3.0) for step in range(12, 18)]
    (chart,) = charts(lines)
    older, oldest, solid = sorted(chart.curves, key=lambda each: (not each.faint, -each.generation))
    assert list(solid.xs) == list(range(18))
    assert list(solid.ys) == [1.0] * 6 + [2.0] * 6 + [3.0] * 6
    assert (list(oldest.xs), list(older.xs)) == ([6, 7, 8, 9], [12, 13, 14])
    assert chart.redone == 7
    assert "7 points were done again" in summary(chart)


def test_a_curve_for_each_rank_and_a_chart_for_each_metric() -> None:
    lines = [logged(step, step, rank=rank, loss=rank, accuracy=0.5) for step in range(5) for rank in range(4)]
    found = charts(lines)
    assert [chart.name for chart in found] == ["loss", "accuracy"]
    assert [curve.label for curve in found[0].curves] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert "on 4 curves" in summary(found[0])


def test_points_without_a_step_are_over_time() -> None:
    (chart,) = charts([logged(3.0, None, lr=0.1), logged(1.0, 4, lr=0.2)])
    assert not chart.by_step
    assert list(chart.curves[0].xs) == [1.0, 3.0]


def test_many_ranks_are_a_band_and_the_odd_one_is_drawn() -> None:
    lines = [
        logged(step, step, rank=rank, loss=(9.0 if rank == 77 else 1.0) + step / 100)
        for step in range(50)
        for rank in range(100)
    ]
    (chart,) = charts(lines)
    assert chart.band is not None
    assert chart.count == 100
    assert "rank 77" in [curve.label for curve in chart.curves]
    assert len(chart.curves) < MOST_CURVES
    assert "100 curves, at the end 1.49 in the middle" in summary(chart)


def test_single_values_of_many_calls_are_dots_over_time() -> None:
    lines = [logged(job, None, rank=None, job=job, function="score", points=job) for job in range(1, 40)]
    (chart,) = charts(lines)
    assert [(curve.label, curve.dots, len(curve.ys)) for curve in chart.curves] == [("39 calls", True, 39)]


def test_values_that_are_no_numbers_are_told_and_drawn_as_gaps() -> None:
    lines = [logged(step, step, loss=math.nan if step == 7 else math.inf if step == 9 else 1.0) for step in range(12)]
    (chart,) = charts(lines)
    assert "2 values are no numbers, from step 7 on (rank 0)" in summary(chart)
    said = data([chart], [], 20.0)
    values = said["arrays"][said["charts"]["m0"]["curves"][0]["y"]]
    assert [place for place, value in enumerate(values) if value is None] == [7, 9]


def test_a_metric_that_is_never_a_number_has_a_chart() -> None:
    (chart,) = charts([logged(1, 1, loss=math.nan)])
    assert "1 values are no numbers" in summary(chart)
    assert "<figure" in figure(chart, "m0")


def test_ranks_share_the_arrays_of_their_steps() -> None:
    lines = [logged(step, step, rank=rank, loss=rank) for step in range(100) for rank in range(8)]
    said = data(charts(lines), [], 100.0)
    assert {curve["x"] for curve in said["charts"]["m0"]["curves"]} == {said["charts"]["m0"]["curves"][0]["x"]}
    assert said["arrays"][said["charts"]["m0"]["curves"][0]["x"]] == {"r": [0, 1, 100]}


def test_a_hundred_thousand_points_are_thinned_and_the_page_says_so() -> None:
    lines = [logged(step, step, rank=rank, loss=math.sin(step)) for step in range(25_000) for rank in range(4)]
    (chart,) = charts(lines)
    assert chart.thinned
    assert sum(len(curve.ys) for curve in chart.curves) < 8_000
    assert "the least and greatest value" in summary(chart)
    assert [each.points for each in chart.facts] == [25_000] * 4


def sample(at: float, node: int, gpus: tuple[GpuSample, ...] = ()) -> NodeSampled:
    return NodeSampled(node, 5.0, 0.5, 4, 1 << 30, 1 << 34, 5, 9, 1000, 10, gpus, at=100.0 + at)


def test_samples_have_a_curve_for_each_node_on_the_time_of_the_run() -> None:
    found = {
        chart.name: chart for chart in sample_charts([sample(at, node) for at in range(5) for node in (0, 3)], 100.0)
    }
    assert list(found) == ["Processors", "Memory", "Network received", "Network sent", "Disk used"]
    assert [curve.label for curve in found["Processors"].curves] == ["node 0", "node 3"]
    assert list(found["Processors"].curves[0].xs) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert found["Processors"].curves[0].ys[0] == 50.0
    assert found["Network received"].curves[0].ys[0] == 200.0


def test_gpus_of_a_node_are_one_curve() -> None:
    cards = (GpuSample(0, 0.4, 10, 80, 100.0), GpuSample(1, 0.6, 30, 80, None), GpuSample(2, None, 2, 80, None))
    found = {chart.name: chart.curves[0].ys[0] for chart in sample_charts([sample(0, 0, cards)], 100.0)}
    assert found["GPUs"] == 50.0
    assert found["GPU memory"] == 42.0
    assert found["GPU power"] == 100.0


def test_of_very_many_samples_some_count_and_the_page_says_so() -> None:
    found = sample_charts([sample(at, node) for at in range(60) for node in range(1000)], 100.0)
    assert found[0].band is not None
    assert "1,000 nodes, at the end 50 % in the middle, 50 % to 50 % in all" in summary(found[0])
    assert "of 2 samples of a node one is shown" in summary(found[0])
    assert found[0].curves == [], "none differs from the others"
