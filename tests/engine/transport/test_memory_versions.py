"""MEMORY-1 to 7: which versions nodes keep in memory, and from which a new generation resumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from outrider.actors.interfaces import JobId, NodeId
from outrider.engine.transport.memory_versions import (
    MOST,
    MOST_RUNS,
    CopyPart,
    DropCopy,
    Left,
    MemoryVersions,
    PartId,
    RunVersions,
    TellSafe,
    Version,
    VersionId,
)

JOB, RUN = JobId(1), "run"
NODES = tuple(map(NodeId, range(4)))


class Ranks:
    """The ranks of a generation, as far as the versions hear of them."""

    def __init__(
        self,
        nodes: tuple[NodeId, ...] = NODES,
        each: int = 1,
        copies: int = 2,
        kind: type[MemoryVersions] = MemoryVersions,
    ) -> None:
        self.versions = kind()
        self.nodes, self.each, self.copies = nodes, each, copies
        self.generation = 1
        self.held: set[tuple[NodeId, str]] = set()
        self.copying: list[CopyPart] = []
        self.made = 0
        self.told_safe: list[str] = []

    def blob(self) -> str:
        self.made += 1
        return f"b{self.made}"

    def id(self, rank: int, step: int) -> PartId:
        return PartId(JOB, RUN, VersionId(self.generation, 0, step), rank)

    def keeps(self, rank: int, step: int, *, sharded: bool = False) -> None:
        blob = self.blob()
        self.held.add((self.nodes[rank // self.each], blob))
        self.versions.kept(self.id(rank, step), Left(blob, 100, 7, sharded, self.copies), self.nodes, self.each)
        self.carry_out()

    def all_keep(self, step: int, *, sharded: bool = False) -> None:
        for rank in range(len(self.nodes) * self.each):
            self.keeps(rank, step, sharded=sharded)

    def copy(self, index: int = 0, *, works: bool = True) -> None:
        copy = self.copying.pop(index)
        blob = self.blob() if works else None
        if blob is not None:
            self.held.add((copy.to, blob))
        self.versions.copied(copy.of, copy.to, blob)
        self.carry_out()

    def copy_all(self) -> None:
        while self.copying:
            self.copy()

    def carry_out(self) -> None:
        decided, self.versions.decisions = self.versions.decisions, []
        for each in decided:
            if isinstance(each, DropCopy):
                assert (each.node, each.blob) in self.held, "MEMORY-6"
                self.held.remove((each.node, each.blob))
            elif isinstance(each, TellSafe):
                assert self.is_safe(each), "MEMORY-7"
                assert each.blob not in self.told_safe, "MEMORY-7"
                self.told_safe.append(each.blob)
            else:
                assert each.to != each.source, "MEMORY-4"
                self.copying.append(each)

    def is_safe(self, told: TellSafe) -> bool:
        versions = self.versions.jobs[JOB][RUN].versions.values()
        of_it = [each for each in versions if any(part.left == told for part in each.parts.values())]
        return len(of_it) == 1 and of_it[0].safe

    def lose(self, *nodes: NodeId) -> None:
        for node in nodes:
            self.versions.lost(node)
        self.held = {(node, blob) for node, blob in self.held if node not in nodes}
        self.copying = [each for each in self.copying if each.to not in nodes and each.source not in nodes]

    def chosen(self, ranks: int | None = None) -> int | None:
        version = self.versions.chosen(JOB, RUN, len(self.nodes) * self.each if ranks is None else ranks)
        return None if version is None else version.id.step


def test_a_version_that_all_ranks_have_is_safe_when_it_is_copied_and_then_the_one_before_goes() -> None:
    ranks = Ranks()
    ranks.all_keep(1)
    ranks.copy_all()
    assert len(ranks.held) == 8
    assert len(ranks.told_safe) == 4
    ranks.all_keep(2)
    assert len(ranks.told_safe) == 4
    assert len(ranks.held) == 12, "the first one is safe, and the second is not yet"
    ranks.copy_all()
    assert len(ranks.held) == 8
    assert ranks.chosen() == 2


def test_survivors_have_their_own_part_and_the_next_node_that_of_the_lost_one() -> None:
    ranks = Ranks()
    ranks.all_keep(1)
    ranks.copy_all()
    ranks.lose(NODES[2])
    assert ranks.chosen() == 1
    part = ranks.versions.jobs[JOB][RUN].versions[VersionId(1, 0, 1)].parts[2]
    assert [*part.at] == [NODES[3]]


def test_with_both_copies_of_a_part_gone_there_is_nothing_to_resume_from() -> None:
    ranks = Ranks()
    ranks.all_keep(1)
    ranks.copy_all()
    ranks.lose(NODES[2], NODES[3])
    assert ranks.chosen() is None


def test_a_version_without_copies_yet_is_chosen_if_each_part_is_there() -> None:
    ranks = Ranks()
    ranks.all_keep(1)
    ranks.copy_all()
    ranks.all_keep(2)  # a rank's process is killed, and no node is lost
    assert ranks.chosen() == 2
    ranks.lose(NODES[0])
    assert ranks.chosen() == 1


def test_what_is_complete_in_the_storage_and_newer_goes_before_it() -> None:
    ranks = Ranks()
    ranks.all_keep(1)
    ranks.versions.stored(JOB, RUN, VersionId(1, 0, 1))
    assert ranks.chosen() == 1
    ranks.versions.stored(JOB, RUN, VersionId(1, 0, 2))
    assert ranks.chosen() is None


def test_a_version_that_a_rank_has_passed_by_is_dropped() -> None:
    ranks = Ranks()
    ranks.keeps(0, 1)
    ranks.copy_all()
    ranks.keeps(1, 2)
    assert {node for node, _ in ranks.held} == {NODES[1]}


def test_another_number_of_ranks_resumes_from_a_state_that_is_not_sharded() -> None:
    whole, sharded = Ranks(), Ranks()
    whole.all_keep(1)
    sharded.all_keep(1, sharded=True)
    assert [whole.chosen(ranks) for ranks in (2, 4, 8)] == [1, 1, 1]
    assert [sharded.chosen(ranks) for ranks in (2, 4, 8)] == [None, 1, None]
    whole.lose(NODES[3])
    assert (whole.chosen(3), whole.chosen(4)) == (1, None)


def test_one_node_alone_keeps_one_copy() -> None:
    ranks = Ranks(NODES[:1], each=2)
    ranks.all_keep(1)
    ranks.all_keep(2)
    assert (len(ranks.held), ranks.copying, ranks.chosen()) == (2, [], 2)


def test_a_copy_that_does_not_come_is_done_without() -> None:
    ranks = Ranks()
    ranks.all_keep(1)
    while ranks.copying:
        ranks.copy(works=False)
    ranks.all_keep(2)
    while ranks.copying:
        ranks.copy(works=False)
    assert len(ranks.held) == 4


def test_a_damaged_copy_is_dropped_and_the_other_is_taken() -> None:
    ranks = Ranks()
    ranks.all_keep(1)
    ranks.copy_all()
    for node in (NODES[2], NODES[3]):
        assert ranks.chosen() == 1
        ranks.versions.damaged(ranks.id(2, 1), node)
        ranks.carry_out()
    assert ranks.chosen() is None


def test_a_copy_that_nobody_wants_any_more_is_dropped() -> None:
    ranks = Ranks()
    ranks.all_keep(1)
    late, twice = ranks.copying.pop(), ranks.copying[0]
    ranks.copy()
    ranks.copying += [twice]
    ranks.copy(-1)
    assert (twice.to, "b6") not in ranks.held
    ranks.versions.over(JOB)
    ranks.carry_out()
    ranks.copying = [late]
    ranks.copy()
    assert not ranks.held


def test_what_a_node_cannot_have_is_dropped() -> None:
    ranks = Ranks()
    for step in (5, 5, 4, 6, 7, 8, 9):
        ranks.keeps(0, step)
    assert len(ranks.held) == MOST
    for number in range(MOST_RUNS + 5):
        ranks.versions.kept(PartId(JOB, f"run-{number}", VersionId(1, 0, 1), 0), Left("x", 1, 1, False, 1), NODES, 1)
    assert len(ranks.versions.jobs[JOB]) == MOST_RUNS


class AnyOrder(RuleBasedStateMachine):
    """Ranks save, copies come or do not, nodes are lost and replaced, in any order."""

    kind = MemoryVersions

    def __init__(self) -> None:
        super().__init__()
        self.ranks = Ranks(kind=self.kind)
        self.next = 4
        self.at = [0] * 4  # the step that each rank has saved last
        self.safe = 0  # the newest step of this generation that all had, with each copy
        self.resumed: int | None = None

    @rule(rank=st.integers(0, 3), by=st.sampled_from([1, 1, 1, 2]))
    def save(self, rank: int, by: int) -> None:
        own = [v for v in self.ranks.versions.jobs.get(JOB, {}).values() for v in v.versions.values()]
        mine = [v for v in own if v.id.generation == self.ranks.generation and rank in v.parts]
        self.at[rank] += by
        if len(mine) < 2:  # it has two slots
            self.ranks.keeps(rank, self.at[rank])
        self.note_safe()

    @rule(data=st.data(), copies=st.booleans())
    def all_save(self, data: Any, copies: bool) -> None:
        self.at = [max(self.at)] * 4
        for rank in data.draw(st.permutations(range(4))):
            self.save(rank, 1)
        while copies and self.ranks.copying:
            self.copied(data, True)

    @rule(rank=st.integers(0, 3), count=st.integers(1, 5))
    def tells_what_cannot_be(self, rank: int, count: int) -> None:
        for _ in range(count):
            self.at[rank] += 1
            self.ranks.keeps(rank, self.at[rank])
        self.note_safe()

    @precondition(lambda self: self.ranks.copying)
    @rule(data=st.data(), works=st.sampled_from([True, True, True, False]))
    def copied(self, data: Any, works: bool) -> None:
        self.ranks.copy(data.draw(st.integers(0, len(self.ranks.copying) - 1)), works=works)
        self.note_safe()

    def note_safe(self) -> None:
        of = self.ranks.versions.jobs.get(JOB, {}).get(RUN)
        for version in of.versions.values() if of is not None else ():
            twice = len(version.parts) == 4 and all(len(part.at) == 2 for part in version.parts.values())
            if twice and version.id.generation == self.ranks.generation:
                self.safe = max(self.safe, version.id.step)

    @precondition(lambda self: JOB in self.ranks.versions.jobs)
    @rule(lost=st.sets(st.integers(0, 3), max_size=2))
    def generation(self, lost: set[int]) -> None:
        ranks = self.ranks
        ranks.lose(*(ranks.nodes[index] for index in lost))
        nodes = list(ranks.nodes)
        for index in lost:
            nodes[index], self.next = NodeId(self.next), self.next + 1
        ranks.nodes = tuple(nodes)
        version = ranks.versions.chosen(JOB, RUN, 4)
        if version is not None:
            for part in version.parts.values():
                assert part.at, "MEMORY-3"
                assert all(held in ranks.held for held in part.at.items()), "MEMORY-3"
        if len(lost) < 2 and self.safe:
            assert version is not None, "MEMORY-1"
            assert version.id >= (ranks.generation, 0, self.safe), "MEMORY-1"
        ranks.versions.resumed(JOB, RUN, None if version is None else version.id)
        ranks.generation += 1
        ranks.carry_out()
        ranks.copying.clear()
        self.safe = 0
        step = 0 if version is None else version.id.step
        self.at = [step] * 4

    @rule()
    def over(self) -> None:
        self.ranks.versions.over(JOB)
        self.ranks.carry_out()
        assert not self.ranks.held, "MEMORY-6"
        self.ranks.copying.clear()
        self.safe, self.at = 0, [0] * 4
        self.ranks.generation += 1

    @invariant()
    def bounded(self) -> None:
        for of in self.ranks.versions.jobs.get(JOB, {}).values():
            for rank in range(4):
                generations = [v.id.generation for v in of.versions.values() if rank in v.parts]
                assert all(generations.count(each) <= MOST for each in generations), "MEMORY-5"


QUICK = settings(max_examples=40, stateful_step_count=40, deadline=None)
AnyOrder.TestCase.settings = QUICK
TestAnyOrder = AnyOrder.TestCase


class DropsAtEachSave(MemoryVersions):
    def _settle(self, of: RunVersions) -> None:
        newest = max(of.versions, default=None)
        for version in [each for each in of.versions if each != newest]:
            self._drop(of.versions.pop(version))


class TakesAny(MemoryVersions):
    def chosen(self, job: JobId, run: str, ranks: int) -> Version | None:
        versions = self.jobs[job][run].versions
        return versions[max(versions)] if versions else None


class CopiesToItself(MemoryVersions):
    def kept(self, part_id: PartId, part: Left, nodes: Sequence[NodeId], each: int) -> None:
        super().kept(part_id, part, nodes, each)
        self.decisions = [
            decided._replace(to=decided.source) if isinstance(decided, CopyPart) else decided
            for decided in self.decisions
        ]


class TakesAnyNumber(MemoryVersions):
    most = 100


class ForgetsTheEnd(MemoryVersions):
    def over(self, job: JobId) -> None:
        self.jobs.pop(job, None)


class TellsAtOnce(MemoryVersions):
    def kept(self, part_id: PartId, part: Left, nodes: Sequence[NodeId], each: int) -> None:
        super().kept(part_id, part, nodes, each)
        self.decisions.append(TellSafe(nodes[part_id.rank // each], part.blob))


@pytest.mark.parametrize(
    ("broken", "invariant"),
    [
        (DropsAtEachSave, "MEMORY-1"),
        (TakesAny, "MEMORY-3"),
        (CopiesToItself, "MEMORY-4"),
        (TakesAnyNumber, "MEMORY-5"),
        (ForgetsTheEnd, "MEMORY-6"),
        (TellsAtOnce, "MEMORY-7"),
    ],
)
def test_the_invariant_falls_without_its_guard(broken: type[MemoryVersions], invariant: str) -> None:
    class Machine(AnyOrder):
        kind = broken

    once = settings(QUICK, max_examples=2000, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(Machine, settings=once)
