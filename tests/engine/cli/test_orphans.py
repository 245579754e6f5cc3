"""What nobody owns is found, by the journal and by tags; what somebody may still use is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.cli.pool_search import known_pools, verdict
from outrider.providers.shared.journal import Intent, PoolRecord, Standing
from outrider.providers.shared.pool_lock import Owner
from outrider.providers.shared.resource_ownership import OURS, Thing, whose
from outrider.providers.survey import FoundMachine, PlaceAnswer

NOW = 1_000_000.0
EAST, WEST = {"region": "us-east-1"}, {"region": "us-west-2"}
ME = Owner("me", "here", 12, "", "", 0.0)
OTHER = Owner("you", "there", 34, "", "", 0.0)
MACHINE = FoundMachine(
    "i-1", "g5.xlarge", "spot", "us-east-1a", "running", 0.0, hourly_usd=0.5, pool="p", owner="me@here"
)
THEIRS = replace(MACHINE, id="i-2", owner="you@there")
GROUP = Thing("sg-1", pool="p", owner="me@here")


def record(pool: str = "p", standing: Standing = "dead", owner: Owner = ME) -> PoolRecord:
    intents = (Intent(pool, "fleet", "t", EAST), Intent(pool, "fleet", "u", EAST, ids=("i-known",)))
    return PoolRecord(pool, "aws", (EAST,), owner, standing, intents, (owner.host,))


def asked(*machines: FoundMachine, others: tuple[Thing, ...] = ()) -> PlaceAnswer:
    return PlaceAnswer("aws", EAST, machines, others)


def test_a_dead_owners_pool_is_removed() -> None:
    (found,) = known_pools([record()], [asked(MACHINE, others=(GROUP,))])
    assert (found.standing, found.machines, found.others, found.unsettled) == ("dead", (MACHINE,), ("sg-1",), 2)
    assert found.hourly_usd == 0.5
    assert verdict(found, foreign=False, now=NOW).remove
    assert "process 12 of me on here" in verdict(found, foreign=False, now=NOW).why


def test_resources_without_tags_are_removed_too() -> None:
    """The answer may be an old one: sweeping waits until it cannot be."""
    (found,) = known_pools([record()], [asked()])
    assert (found.machines, found.hourly_usd) == ((), 0)
    assert verdict(found, foreign=False, now=NOW).remove


def test_a_machine_whose_tags_somebody_has_removed_is_found_by_its_id() -> None:
    (found,) = known_pools([record()], [asked(replace(MACHINE, id="i-known", pool="", owner=""))])
    assert [each.id for each in found.machines] == ["i-known"]


def test_pool_known_only_by_tags_is_kept() -> None:
    (found,) = known_pools([], [asked(replace(THEIRS, pool="theirs"))])
    assert (found.standing, found.owner) == ("unknown", "you@there")
    assert not found.ours
    assert not verdict(found, foreign=False, now=NOW).remove
    assert verdict(found, foreign=True, now=NOW).remove


def test_a_copy_of_a_machine_is_another_matter_than_the_pool() -> None:
    """GC-2"""
    for answer in (asked(MACHINE, THEIRS), asked(THEIRS, MACHINE), asked(THEIRS)):
        found = {each.standing: each for each in known_pools([record()], [answer])}
        mine, theirs = found["dead"], found["unknown"]
        assert (set(mine.machines), theirs.machines) == ({*answer.machines} - {THEIRS}, (THEIRS,))
        assert verdict(mine, foreign=False, now=NOW).remove
        assert not verdict(theirs, foreign=False, now=NOW).remove
        assert "its own say: you@there" in verdict(theirs, foreign=False, now=NOW).why
        assert not theirs.ours


def test_resource_with_a_pools_tag_and_no_owner_is_kept() -> None:
    mine, perhaps = known_pools([record()], [asked(replace(MACHINE, owner=""))])
    assert (mine.machines, len(perhaps.machines)) == ((), 1)
    assert perhaps.ours
    assert not verdict(perhaps, foreign=False, now=NOW).remove


def test_each_place_of_a_pool_is_its_own_matter() -> None:
    both = replace(record(), places=(EAST, WEST))
    east, west = known_pools([both], [asked(MACHINE), PlaceAnswer("aws", WEST, error="no credentials")])
    assert (east.place, len(east.machines), west.place, west.error) == (EAST, 1, WEST, "no credentials")
    assert verdict(east, foreign=False, now=NOW).remove
    assert not verdict(west, foreign=True, now=NOW).remove
    assert "no credentials" in verdict(west, foreign=True, now=NOW).why


def test_a_pool_without_a_place_is_only_forgotten() -> None:
    (found,) = known_pools([replace(record(), places=())], [])
    assert (found.place, found.error) == ({}, "")
    assert verdict(found, foreign=False, now=NOW).remove


def test_a_pool_of_another_computer_is_removed_when_its_time_is_over() -> None:
    elsewhere = record(standing="elsewhere", owner=OTHER)
    mine = replace(MACHINE, id="i-known", until=NOW - 1)
    (found,) = known_pools([elsewhere], [asked(mine)])
    assert verdict(found, foreign=False, now=NOW).remove
    assert "max_lifetime is over" in verdict(found, foreign=False, now=NOW).why
    (younger,) = known_pools([elsewhere], [asked(mine, replace(MACHINE, id="i-1", launch="t", until=NOW + 1))])
    assert not verdict(younger, foreign=False, now=NOW).remove


def test_unknown_price_makes_the_sum_unknown() -> None:
    (found,) = known_pools([record()], [asked(MACHINE, replace(MACHINE, id="i-3", hourly_usd=None))])
    assert found.hourly_usd is None


def machines() -> st.SearchStrategy[FoundMachine]:
    return st.builds(
        lambda name, pool, owner, launch, until: replace(
            MACHINE, id=name, pool=pool, owner=owner, launch=launch, until=until
        ),
        st.sampled_from(["i-1", "i-2", "i-known"]),
        st.sampled_from(["p", "q", ""]),
        st.sampled_from(["me@here", "you@there", ""]),
        st.sampled_from(["t", "u", "v", ""]),
        st.sampled_from([None, NOW - 1, NOW + 1]),
    )


@given(
    st.sampled_from(["alive", "dead", "elsewhere"]),
    st.sampled_from([ME, OTHER]),
    st.lists(machines(), max_size=4, unique_by=lambda each: each.id),
    st.booleans(),
    st.booleans(),
)
def test_a_living_owners_pool_is_never_touched_and_each_thing_is_somebodys(
    standing: Standing, owner: Owner, seen: Sequence[FoundMachine], unanswered: bool, foreign: bool
) -> None:
    """GC-1, GC-2, and GC-3: of all that was seen with a pool's tag, each thing is in one row."""
    answer = replace(
        asked(*seen),
        error="no" if unanswered else "",
        machines=() if unanswered else tuple(seen),
    )
    mine = record(standing=standing, owner=owner)
    rows = known_pools([mine], [answer])
    for found in rows:
        removed = verdict(found, foreign=foreign, now=NOW).remove
        if found.standing == "alive" or found.error:
            assert not removed
        if found.standing in ("elsewhere", "unknown"):
            over = {each.until == NOW - 1 for each in found.machines} == {True}
            assert removed == (not found.error and (foreign or over))
        if found.standing == "dead" and not found.error:
            assert removed
        for machine in found.machines:
            ours = whose(machine, mine.claim(EAST)) in OURS
            assert ours == (found.standing != "unknown")
    shown = sorted(machine.id for found in rows for machine in found.machines)
    expected = [each.id for each in answer.machines if each.pool or mine.claim(EAST).has(each)]
    assert shown == sorted(expected)
