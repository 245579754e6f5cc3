"""What is known of jobs from squeue's answers: against histories made at random, and each rule broken once."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from math import inf
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.base import MachineId
from outrider.providers.slurm import jobs
from outrider.providers.slurm.jobs import Gone, Job, JobBook, JobEvent, Never, Queued, Runs
from outrider.providers.slurm.squeue import JobView

JOB = "4711"
PENDING = ["Priority", "Resources", "SomethingNew", "PartitionTimeLimit", "QOSMaxGRESPerJob"]
ENDS = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY"]


class History:
    """A job as Slurm would tell of it, and all that the book says."""

    def __init__(self, seed: int, make: Callable[[str], JobBook]) -> None:
        self.chance = random.Random(seed)
        self.book = make("p")
        self.count = self.chance.randint(1, 4)
        self.machines = list(self.book.submitted(JOB, "/f", self.count, 0.0))
        self.now = 0.0
        self.ended: set[MachineId] = set()
        self.gone: set[MachineId] = set()
        self.ran: dict[MachineId, str] = {}
        self.nevers = 0
        self.missing = 0

    def play(self) -> None:
        chance = self.chance
        for _ in range(chance.randint(0, 4)):
            self.answer(
                JobView(JOB, "PENDING", starts_at=chance.choice([None, 100.0, 500.0]), reason=chance.choice(PENDING))
            )
            self.perhaps_end()
        names = chance.sample([f"c{number}" for number in range(9)], self.count)
        living = [machine for machine in self.machines if machine not in self.ended]
        for step in range(chance.randint(0, 5)):
            self.answer(
                JobView(JOB, "RUNNING", tuple(names), left_s=60.0), starting=dict(zip(living, names, strict=False))
            )
            if step and names and chance.random() < 0.4:
                names.remove(chance.choice(names))
            self.perhaps_end()
            if chance.random() < 0.3:
                self.answer(None)
        if chance.random() < 0.2:
            self.answer(JobView(JOB, "PENDING", reason="JobHeldAdmin"))
            self.answer(JobView(JOB, "RUNNING", tuple(names)), starting=dict(zip(living, names, strict=False)))
        for _ in range(chance.randint(0, 3)):
            self.answer(JobView(JOB, "COMPLETING", tuple(names), reason=chance.choice(["None", "TimeLimit"])))
        for _ in range(chance.randint(0, 2)):
            self.answer(JobView(JOB, chance.choice(ENDS)))
        for _ in range(chance.randint(0, 4)):
            self.answer(None)

    def perhaps_end(self) -> None:
        if self.chance.random() < 0.3:
            machine = self.chance.choice(self.machines)
            self.book.ending([machine, MachineId("another")])
            self.ended.add(machine)

    def answer(self, view: JobView | None, starting: dict[MachineId, str] | None = None) -> None:
        self.now += 1.0
        self.missing = 0 if view is not None else self.missing + 1
        for event in self.book.answer([] if view is None else [view], self.now):
            self.check(event, view, starting or {})
        for machine, node in self.ran.items():
            assert self.book.node_of(machine) == node, "JOBS-2: a machine has another node than before"

    def check(self, event: JobEvent, view: JobView | None, starting: dict[MachineId, str]) -> None:
        match event:
            case Runs(_, nodes, _):
                assert not self.ran, "JOBS-1: it starts twice"
                assert dict(nodes) == starting, "JOBS-2: not in the allocation's order"
                self.ran = dict(nodes)
                told = set(self.ran)
            case Gone(machine, _):
                told = {machine}
                assert machine not in self.gone, "JOBS-1: a machine is gone twice"
                assert view is not None or self.missing >= 2, "JOBS-3: one answer without it is no end"
                self.gone.add(machine)
                assert machine not in self.ended, "JOBS-1: told of a machine that is being ended"
                return
            case Never(_, machines, _):
                self.nevers += 1
                assert self.nevers == 1, "JOBS-4: told twice"
                told = set(machines)
            case Queued(_, machines, reason, _):
                assert not reason.never_ends, "JOBS-4: not told to be for ever"
                told = set(machines)
        assert not told & (self.gone | self.ended), "JOBS-1: told of a machine that is gone"


def holds(seed: int, make: Callable[[str], JobBook] = JobBook) -> None:
    History(seed, make).play()


@given(st.integers(0, 1 << 32))
def test_any_history_is_told_by_the_rules(seed: int) -> None:
    """JOBS-1, JOBS-2, JOBS-3 and JOBS-4."""
    holds(seed)


class TellsTwice(JobBook):
    def _lost(self, job: Job, cause: str) -> list[JobEvent]:
        return [Gone(machine, cause) for machine in job.machines]


class TellsOfTheEnded(JobBook):
    def ending(self, ids: object) -> list[Job]:
        return []


class SortsNodes(JobBook):
    def _starts(self, job: Job, view: JobView) -> list[JobEvent]:
        nodes = tuple(sorted(view.nodes))
        return super()._starts(job, JobView(view.id, view.state, nodes, left_s=view.left_s))


class MovesUp(JobBook):
    def _loses(self, job: Job, view: JobView) -> list[JobEvent]:
        found = super()._loses(job, view)
        job.node_of = dict(zip(job.machines, view.nodes, strict=False))
        return found


class Hasty(JobBook):
    def answer(self, views: object, asked_at: float) -> list[JobEvent]:
        for job in self.open_jobs:
            job.missing += 1
        return super().answer(views, asked_at)  # type: ignore[arg-type]


class Nags(JobBook):
    def _waits(self, job: Job, view: JobView, now: float) -> list[JobEvent]:
        job.never = False
        return super()._waits(job, view, now)


class Hopes(JobBook):
    def _waits(self, job: Job, view: JobView, now: float) -> list[JobEvent]:
        return [Queued(job.id, tuple(job.machines), jobs.reason_of(view.reason), view.starts_at)]


BROKEN: dict[type[JobBook], str] = {
    TellsTwice: "JOBS-1",
    TellsOfTheEnded: "JOBS-1",
    SortsNodes: "JOBS-2",
    MovesUp: "JOBS-2",
    Hasty: "JOBS-3",
    Nags: "JOBS-4",
    Hopes: "JOBS-4",
}


@pytest.mark.parametrize("book", BROKEN, ids=lambda book: book.__name__)
def test_the_book_falls_without_its_guard(book: type[JobBook]) -> None:
    """See `BROKEN`."""
    with pytest.raises(AssertionError, match=BROKEN[book]):
        for seed in range(400):
            holds(seed, book)


# --- words ------------------------------------------------------------------------------------------------------------


class Told:
    """A job of two machines that runs on c0 and c1."""

    NODES: ClassVar = ("c0", "c1")

    def __init__(self) -> None:
        self.book = JobBook("p")
        self.first, self.second = self.book.submitted(JOB, "/f", 2, 0.0)
        self.book.answer([JobView(JOB, "RUNNING", self.NODES)], 1.0)

    def then(self, *views: JobView, at: float = 2.0) -> list[JobEvent]:
        return self.book.answer(views, at)


def test_a_node_that_is_taken_away_is_its_machines_end() -> None:
    told = Told()
    (gone,) = told.then(JobView(JOB, "RUNNING", ("c1",)))
    assert gone == Gone(
        told.first, f"node c0: Slurm took it from job {JOB}, as nodes are that are down or do not answer"
    )
    assert told.book.living == [told.second]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("TIMEOUT", "its time limit"),
        ("PREEMPTED", "was preempted"),
        ("OUT_OF_MEMORY", "memory"),
        ("COMPLETED", "have ended"),
    ],
)
def test_the_cause_of_an_end_is_in_words(state: str, words: str) -> None:
    told = Told()
    found = told.then(JobView(JOB, state))
    assert [event.machine for event in found if isinstance(event, Gone)] == [told.first, told.second]
    assert all(isinstance(event, Gone) and words in event.cause for event in found)
    assert told.book.open_jobs == []


def test_a_job_that_is_put_back_into_the_queue_loses_its_machines_and_is_not_over() -> None:
    told = Told()
    found = told.then(JobView(JOB, "PENDING", reason="JobHeldAdmin"))
    assert [event.machine for event in found if isinstance(event, Gone)] == [told.first, told.second]
    [job] = told.book.open_jobs
    assert (job.requeued, job.running, job.confirmed) == (True, False, False)
    assert told.then(JobView(JOB, "RUNNING", Told.NODES), at=3.0) == []
    assert told.then(JobView(JOB, "CANCELLED"), at=4.0) == []
    assert (job.over, job.confirmed) == (True, True)


def test_a_job_that_answers_merely_lack_is_not_confirmed_to_be_over() -> None:
    told = Told()
    [job] = told.book.open_jobs
    told.then(at=2.0)
    assert len(told.then(at=3.0)) == 2
    assert (job.over, job.confirmed) == (True, False)


def test_a_job_that_ends_has_a_moment_to_say_why() -> None:
    told = Told()
    assert told.then(JobView(JOB, "COMPLETING", Told.NODES), at=2.0) == []
    assert len(told.then(JobView(JOB, "COMPLETING", Told.NODES), at=2.0 + jobs.CAUSE_S)) == 2


def test_what_a_job_has_too_much_is_known_when_it_starts() -> None:
    book = JobBook("p")
    first, second = book.submitted(JOB, "/f", 2, 0.0)
    (job,) = book.ending([first])
    book.answer([JobView(JOB, "RUNNING", ("c0", "c1"))], 1.0)
    assert (book.node_of(second), job.unused_nodes, job.batch_node) == ("c0", ["c1"], "c0")
    assert book.ending([first]) == [job], "its end is not confirmed yet"


def test_an_expected_start_that_moves_a_little_is_no_news() -> None:
    book = JobBook("p")
    book.submitted(JOB, "/f", 1, 0.0)

    def waits(starts_at: float | None) -> int:
        return len(book.answer([JobView(JOB, "PENDING", starts_at=starts_at, reason="Priority")], 1.0))

    assert [waits(at) for at in (None, 1000.0, 1010.0, 1029.0, 1031.0, None)] == [1, 1, 0, 0, 1, 1]


# --- silence ----------------------------------------------------------------------------------------------------------

LOOKS = st.lists(st.tuples(st.floats(0, 2), st.sets(st.sampled_from(Told.NODES))))


def holds_jobs_6(looks: list[tuple[float, set[str]]], given_back: float, make: type[Job] = Job) -> None:
    """c0 is given back at that time. Each look is so long after the one before, and sees these steps."""
    job, now, silent = make(JOB, "/f", 0.0, []), 0.0, False
    for pause_s, steps in looks:
        now += pause_s
        if now >= given_back:
            job.give_back(["c0"], given_back)
        quiet = job.steps_seen(steps, now)
        silent = silent or ("c0" in steps and now - given_back >= jobs.SILENT_S)
        assert quiet == (silent and "c1" not in steps), "JOBS-6"


@given(LOOKS, st.floats(0, 4))
def test_a_node_is_silent_whose_step_does_not_end_in_time(looks: list[tuple[float, set[str]]], at: float) -> None:
    """JOBS-6."""
    holds_jobs_6(looks, at)


class TakesTheSlowForDead(Job):
    def steps_seen(self, steps: Collection[str], now: float) -> bool:
        return super().steps_seen(steps, now + jobs.SILENT_S)


class ForgetsTheOthers(Job):
    def steps_seen(self, steps: Collection[str], now: float) -> bool:
        return super().steps_seen({*steps} - {"c1"}, now)


@pytest.mark.parametrize("job", [TakesTheSlowForDead, ForgetsTheOthers])
def test_silence_falls_without_its_guard(job: type[Job]) -> None:
    """JOBS-6."""
    looks = [(1.0, {"c0"}), (3.0, {"c0", "c1"}), (0.1, {"c0"})]
    holds_jobs_6(looks, 0.5)
    with pytest.raises(AssertionError, match="JOBS-6"):
        holds_jobs_6(looks, 0.5, job)


def test_a_step_that_has_ended_in_time_is_never_silent() -> None:
    job = Job(JOB, "/f", 0.0, [])
    job.give_back(Told.NODES, 1.0)
    assert not job.steps_seen([], 9.0)
    assert job.may_be_quiet(9.0)
    job.released |= dict.fromkeys(Told.NODES, inf)
    assert not job.may_be_quiet(9.0)


def holds_jobs_7() -> None:
    told = Told()
    [job] = told.book.open_jobs
    assert not job.is_left(99.0, 30.0), "JOBS-7: Slurm does not end it"
    told.then(JobView(JOB, "COMPLETING", Told.NODES), at=2.0)
    assert not job.is_left(99.0, 30.0), "JOBS-7: its machines are not told to be gone yet"
    told.then(JobView(JOB, "COMPLETING", Told.NODES), at=3.0)
    assert [job.is_left(at, 30.0) for at in (31.9, 32.0, 33.0)] == [False, True, False], "JOBS-7"


def test_the_steps_of_a_job_that_ends_are_left_the_time_that_their_tasks_were_told_of() -> None:
    """JOBS-7."""
    holds_jobs_7()


@pytest.mark.parametrize("left", [lambda *_: True, lambda job, now, grace_s: now - (job.ending_since or now) > grace_s])
def test_the_time_that_is_left_falls_without_its_guard(
    left: Callable[[Job, float, float], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JOBS-7."""
    monkeypatch.setattr(Job, "is_left", left)
    with pytest.raises(AssertionError, match="JOBS-7"):
        holds_jobs_7()


def holds_jobs_8() -> None:
    told = Told()
    [job] = told.book.open_jobs
    assert not job.has_ended([]), "JOBS-8: its steps may be about to begin"
    job.began.add("c0")
    assert not job.has_ended([]), "JOBS-8: one of its steps may be"
    job.began.add("c1")
    assert [job.has_ended(steps) for steps in (["c1"], [])] == [False, True], "JOBS-8"
    waits = Job(JOB, "/f", 0.0, [])
    assert not waits.has_ended([]), "JOBS-8: it may be about to start"


def test_a_job_has_ended_by_its_own_word_when_all_its_steps_had_begun() -> None:
    """JOBS-8."""
    holds_jobs_8()


@pytest.mark.parametrize(
    "has_ended", [lambda _, steps: not steps, lambda job, _: bool(job.nodes) and job.began >= {*job.nodes}]
)
def test_a_jobs_own_word_falls_without_its_guard(
    has_ended: Callable[[Job, Collection[str]], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JOBS-8."""
    monkeypatch.setattr(Job, "has_ended", has_ended)
    with pytest.raises(AssertionError, match="JOBS-8"):
        holds_jobs_8()


def test_news_is_expected_of_a_job_that_has_just_been_submitted_and_of_one_that_ends() -> None:
    book = JobBook("p")
    book.submitted(JOB, "/f", 2, 1.0)
    assert [book.expects_news(at) for at in (1.0, 3.9, 4.1)] == [True, True, False]
    told = Told()
    assert not told.book.expects_news(2.0)
    told.then(JobView(JOB, "COMPLETING", Told.NODES), at=2.0)
    assert told.book.expects_news(9.0)
    told.then(JobView(JOB, "COMPLETING", Told.NODES), at=3.0)
    assert not told.book.expects_news(9.0)


PERSISTING = st.lists(
    st.tuples(st.sampled_from(["PartitionNodeLimit", "PartitionConfig", "Priority"]), st.floats(0, 200))
)


def holds_jobs_5(reasons: list[tuple[str, float]], make: Callable[[str], JobBook] = JobBook) -> None:
    book, now, since, told = make("p"), 0.0, None, False
    book.submitted(JOB, "/f", 1, 0.0)
    for reason, pause_s in reasons:
        now += pause_s
        since = None if reason == "Priority" else now if since is None else since
        never = any(isinstance(each, Never) for each in book.answer([JobView(JOB, "PENDING", reason=reason)], now))
        assert never == (not told and since is not None and now - since >= jobs.PERSISTS_S), "JOBS-5"
        told = told or never


@given(PERSISTING)
def test_a_reason_that_stands_for_minutes_is_one_for_ever(reasons: list[tuple[str, float]]) -> None:
    """JOBS-5."""
    holds_jobs_5(reasons)


class GivesUpAtOnce(JobBook):
    def _waits(self, job: Job, view: JobView, now: float) -> list[JobEvent]:
        return super()._waits(job, view, now + jobs.PERSISTS_S if job.persists_since == now else now)


class WaitsForEver(JobBook):
    def _waits(self, job: Job, view: JobView, now: float) -> list[JobEvent]:
        job.persists_since = None
        return super()._waits(job, view, now)


def test_waiting_for_minutes_falls_without_its_guard() -> None:
    """JOBS-5."""
    for reasons in ([("PartitionNodeLimit", 0.0)] * 2, [("PartitionConfig", 0.0), ("PartitionConfig", 400.0)]):
        holds_jobs_5(reasons)
    with pytest.raises(AssertionError, match="JOBS-5"):
        holds_jobs_5([("PartitionNodeLimit", 0.0)] * 2, GivesUpAtOnce)
    with pytest.raises(AssertionError, match="JOBS-5"):
        holds_jobs_5([("PartitionConfig", 0.0), ("PartitionConfig", 400.0)], WaitsForEver)
