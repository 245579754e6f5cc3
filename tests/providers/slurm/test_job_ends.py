"""When jobs that are being ended are over: against answers made at random, and the rule broken once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.slurm import jobs
from outrider.providers.slurm.jobs import APART_S, JobEnds
from outrider.providers.slurm.squeue import JobView

ANSWERS = st.lists(st.tuples(st.sampled_from(["RUNNING", "COMPLETING", "COMPLETED", None]), st.floats(0.0, 1.0)))


def holds(answers: list[tuple[str | None, float]], *, watched: bool) -> None:
    """Play the answers of one job, each so long after the one before."""
    ends, now, lacked_since, living, said = JobEnds(["7"] if watched else []), 0.0, None, watched, watched
    for state, pause_s in answers:
        now += pause_s
        left = ends.answer([] if state is None else [JobView("7", state)], now)
        if state is None:
            lacked_since = now if lacked_since is None else lacked_since
            said = living and now - lacked_since < APART_S
        else:
            lacked_since, living = None, state != "COMPLETED"
            said = living
        living = said
        assert left == (["7"] if said else []), "ENDS-1"


@given(ANSWERS, st.booleans())
def test_a_job_is_over_by_rule(answers: list[tuple[str | None, float]], watched: bool) -> None:
    """ENDS-1."""
    holds(answers, watched=watched)


def test_the_rule_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    glitch: list[tuple[str | None, float]] = [("RUNNING", 1.0), (None, 1.0), ("RUNNING", 1.0)]
    holds(glitch, watched=False)
    monkeypatch.setattr(jobs, "MISSING", 1)
    with pytest.raises(AssertionError, match="ENDS-1"):
        holds(glitch, watched=False)


ENDING = [
    ("RUNNING", True, False),
    ("PENDING", True, False),
    ("COMPLETING", False, False),
    ("COMPLETING", True, True),
    ("CANCELLED", False, True),
]


def holds_ends_2() -> None:
    for state, quiet, over in ENDING:
        left = JobEnds(["7"]).answer([JobView("7", state, ("c0",))], 1.0, {"7"} if quiet else ())
        assert (not left) == over, "ENDS-2"


def test_a_quiet_job_is_over_when_slurm_ends_it() -> None:
    """ENDS-2."""
    holds_ends_2()


@pytest.mark.parametrize("ends", [set(), {"RUNNING", "COMPLETING"}])
def test_a_quiet_jobs_end_falls_without_its_guard(ends: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """ENDS-2."""
    monkeypatch.setattr(jobs, "ENDS", ends)
    with pytest.raises(AssertionError, match="ENDS-2"):
        holds_ends_2()
