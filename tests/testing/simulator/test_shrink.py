"""What is left still breaks the promise, and nothing of it can be spared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.testing.simulator import faults as f
from outrider.testing.simulator.draw import draw
from outrider.testing.simulator.shrink import shrink, smallest


@given(st.lists(st.integers(), unique=True, max_size=30), st.data())
def test_the_culprits_are_found_in_their_order(items, data):
    culprits = data.draw(st.lists(st.sampled_from(items), unique=True, max_size=4)) if items else []
    kept = smallest(items, lambda some: set(culprits) <= set(some))
    assert kept == [item for item in items if item in culprits]


def test_one_of_several_reasons_is_enough():
    assert smallest(range(10), lambda some: 3 in some or {7, 8} <= set(some)) in ([3], [7, 8])


def test_faults_and_jobs_are_both_reduced_and_the_rest_stays():
    scenario = next(
        drawn
        for drawn in map(draw, range(100))
        if len(drawn.jobs) > 5 and any(isinstance(x, f.Death) for x in drawn.faults)
    )
    last = scenario.jobs[-1].id

    def breaks(some):
        return any(isinstance(x, f.Death) for x in some.faults) and last in {job.id for job in some.jobs}

    least = shrink(scenario, breaks)
    assert [type(fault) for fault in least.faults] == [f.Death]
    assert [job.id for job in least.jobs] == [last]
    assert (least.seed, least.cloud) == (scenario.seed, scenario.cloud)


def test_the_tries_are_bounded():
    tried = []
    shrink(draw(3), lambda some: tried.append(some) or True, tries=7)
    assert len(tried) <= 7
