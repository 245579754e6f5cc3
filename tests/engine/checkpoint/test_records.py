"""What may be done with a run, over all the storages that there can be."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.engine.checkpoint.records import (
    TERMS_KEPT,
    ByteRange,
    CheckpointId,
    Entry,
    Part,
    Term,
    World,
    admission,
    complete,
    lacking,
    old_terms,
    places,
    shares,
    term_key,
    to_delete,
    verdict,
)

QUICK = settings(max_examples=150, deadline=None)


def world(pool: str = "p", job: int = 1, generation: int = 1, attempt: int = 0) -> World:
    return World(pool, job, generation, attempt, 4)


WORLDS = st.builds(world, st.sampled_from(["p", "q"]), st.integers(1, 2), st.integers(1, 3), st.integers(0, 2))


# --- who has the term -------------------------------------------------------------------------------------------------


def test_rank_0_begins_and_the_others_wait_for_it() -> None:
    begun = Term.begin(1, world())
    assert admission(world(), 0, []) == begun
    assert admission(world(), 3, []) is None
    assert admission(world(), 0, [begun]) is begun
    assert admission(world(), 3, [begun]) is begun


def test_another_pool_takes_the_run_over() -> None:
    old = Term.begin(7, world("p", generation=5))
    new = world("q", generation=1)
    assert admission(new, 0, [old]) == Term.begin(8, new)


def test_a_generation_does_not_take_over_from_a_later_one() -> None:
    later = Term.begin(7, world(generation=2))
    assert admission(world(generation=1), 0, [later]) is later
    assert admission(world(generation=3), 0, [later]) == Term.begin(8, world(generation=3))


def test_an_attempt_does_not_take_over_from_a_later_one() -> None:
    later = Term.begin(7, world(generation=0, attempt=2))
    assert admission(world(generation=0, attempt=1), 0, [later]) is later


def test_fenced_world_does_not_begin_again() -> None:
    terms = [Term.begin(1, world("p")), Term.begin(2, world("q"))]
    assert admission(world("p"), 0, terms) is terms[1]
    assert admission(world("p"), 2, terms) is terms[1]


@QUICK
@given(st.lists(st.tuples(WORLDS, st.integers(0, 3)), max_size=30))
def test_numbers_grow_and_a_fenced_world_never_comes_back(comers: list[tuple[World, int]]) -> None:
    terms: list[Term] = []
    for who, rank in comers:
        match admission(who, rank, terms):
            case Term() as term if term not in terms:
                assert rank == 0
                assert who not in [term.world for term in terms]
                assert term == Term.begin(max((term.number for term in terms), default=0) + 1, who)
                terms.append(term)
            case Term() as term if term.world == who:
                assert term is terms[-1]
            case Term() as fence:
                assert fence in terms
            case None:
                assert rank
    generations = [(t.generation, t.attempt) for t in terms if (t.pool, t.job) == ("p", 1)]
    assert generations == sorted(generations)


# --- who writes what --------------------------------------------------------------------------------------------------

ENTRIES = st.lists(st.builds(Entry, st.sampled_from("abcdefgh"), st.just("buffer"), st.integers(0, 100)), max_size=12)


def state(content: list[Entry], rank: int) -> list[Entry]:
    return [Entry(f"pickle-{rank}", "pickle", 10), *content]


def part(rank: int, number: int, entries: list[Entry], written: set[str]) -> Part:
    where = {name: ByteRange(f"{rank}-{number}", 0, 1) for name in written}
    return Part(rank, number, 1, 1, entries if number == 0 else [], where, {})


def own(entries: list[Entry], rank: int, ranks: int) -> set[str]:
    return {each.digest for each, writer in zip(entries, shares(entries, ranks), strict=True) if writer in (-1, rank)}


@QUICK
@given(ENTRIES, st.integers(1, 5))
def test_ranks_that_are_alike_write_each_thing_once_and_all_together_everything(
    content: list[Entry], ranks: int
) -> None:
    parts = [part(rank, 0, state(content, rank), own(state(content, rank), rank, ranks)) for rank in range(ranks)]
    assert lacking(parts, ranks) is None
    writers = shares(state(content, 0), ranks)
    loads = [
        sum(e.size for e, writer in zip(state(content, 0), writers, strict=True) if writer == r) for r in range(ranks)
    ]
    assert max(loads) - min(loads) <= max((e.size for e in content), default=0)


@QUICK
@given(st.lists(ENTRIES, min_size=1, max_size=4))
@example([[Entry("a", "buffer", 1), Entry("b", "buffer", 1)]] * 2 + [[Entry("c", "buffer", 1)]])
def test_what_ranks_have_for_themselves_is_found_lacking_until_it_is_written(contents: list[list[Entry]]) -> None:
    """CKPT-1, for ranks that are as different as can be."""
    ranks = len(contents)
    states = [state(content, rank) for rank, content in enumerate(contents)]
    parts = [part(rank, 0, each, own(each, rank, ranks)) for rank, each in enumerate(states)]
    for count in range(ranks):
        assert lacking(parts[:count], ranks) is not None
    for rank in range(ranks):
        if missing := parts[rank].needs() - places(parts).keys():
            assert lacking(parts, ranks) is not None
            parts.append(part(rank, 1, [], missing))
    assert lacking(parts, ranks) is None
    assert all({e.digest for e in each} <= places(parts).keys() for each in states)


# --- what may be deleted ----------------------------------------------------------------------------------------------

ATS = st.builds(CheckpointId, st.integers(1, 4), st.integers(0, 6), st.integers(0, 2))


@QUICK
@given(ATS)
def test_a_checkpoint_is_known_by_its_files(at: CheckpointId) -> None:
    assert CheckpointId.of(at.manifest) == CheckpointId.of(at.part(2, 1)) == at


def test_a_step_that_was_saved_once_has_a_name_that_says_no_more() -> None:
    """As it was before a step could be saved again: those checkpoints are read."""
    assert CheckpointId.of("step-000000001200.term-00000007/manifest.json") == CheckpointId(7, 1200)
    assert CheckpointId(7, 1200).folder == "step-000000001200.term-00000007"


def keys_of(finished: set[CheckpointId], remains: set[CheckpointId], terms: int) -> list[str]:
    return [
        *(key for at in finished for key in (at.manifest, at.part(0, 0))),
        *(at.part(0, 0) for at in remains - finished),
        *(term_key(number) for number in range(1, terms + 1)),
    ]


@QUICK
@given(st.sets(ATS), st.sets(ATS), st.integers(1, 4), st.integers(1, 5), st.integers(0, 4))
def test_cleaning_keeps_the_newest_and_unfinished_checkpoints(
    finished: set[CheckpointId], remains: set[CheckpointId], term: int, terms: int, keep: int
) -> None:
    keys = keys_of(finished, remains, terms)
    done, rest = to_delete(keys, term=term, keep=keep)
    if term < terms:
        assert (done, rest) == ([], [])  # fenced
    assert set(complete(keys)[: max(keep, 1)]) & set(done) == set()  # CKPT-2
    assert set(done) <= finished
    assert set(rest) <= remains - finished
    newest = max((at for at in finished if at.term == term), default=None)
    assert all(newest is not None and at < newest for at in rest)


@QUICK
@given(st.sets(ATS, min_size=1), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=6))
def test_concurrent_cleaning_keeps_the_newest_checkpoint(
    finished: set[CheckpointId], cleaners: list[tuple[int, int]]
) -> None:
    """Each has looked before any of them deletes (CKPT-2)."""
    keys = keys_of(finished, set(), 0)
    deleted = {at for term, keep in cleaners for at in to_delete(keys, term=term, keep=keep)[0]}
    assert max(finished) not in deleted


@QUICK
@given(st.sets(ATS), st.integers(0, 6))
def test_what_a_fenced_world_completes_late_does_not_come_first(finished: set[CheckpointId], step: int) -> None:
    """CKPT-3"""
    late = CheckpointId(1, step)
    order = complete(at.manifest for at in {*finished, late})
    assert all(order.index(at) < order.index(late) for at in finished if at.term > 1)


def test_old_terms_go_and_the_latest_stay() -> None:
    keys = [term_key(number) for number in range(1, 21)]
    gone = old_terms(keys, 20)
    assert gone == list(range(1, 21 - TERMS_KEPT))


# --- what is agreed ---------------------------------------------------------------------------------------------------


@QUICK
@given(st.dictionaries(st.integers(0, 3), st.sampled_from(["", "", "torn"])))
def test_a_world_agrees_when_every_rank_has_read_it(votes: dict[int, str]) -> None:
    """CKPT-4"""
    result = verdict(votes, 4)
    assert (result == "") == (set(votes) == {0, 1, 2, 3} and not any(votes.values()))
    assert bool(result) == any(votes.values())


BREAKS = {
    "CKPT-1": ("lacking", lambda parts, ranks: None if len({each.rank for each in parts}) == ranks else "some"),
    "CKPT-2": ("to_delete", lambda keys, folders=(), *, term, keep: (complete(keys), [])),
    "CKPT-3": ("complete", lambda keys: sorted(complete_itself(keys), key=lambda at: at.step, reverse=True)),
    "CKPT-4": ("verdict", lambda votes, ranks: "torn" if any(votes.values()) else ""),
}
HELD_BY = {
    "CKPT-1": test_what_ranks_have_for_themselves_is_found_lacking_until_it_is_written,
    "CKPT-2": test_concurrent_cleaning_keeps_the_newest_checkpoint,
    "CKPT-3": test_what_a_fenced_world_completes_late_does_not_come_first,
    "CKPT-4": test_a_world_agrees_when_every_rank_has_read_it,
}
complete_itself = complete


@pytest.mark.parametrize("invariant", BREAKS)
def test_the_invariant_falls_without_its_guard(invariant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = BREAKS[invariant]
    monkeypatch.setitem(globals(), name, broken)
    with pytest.raises(AssertionError):
        HELD_BY[invariant]()
