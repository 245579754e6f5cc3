"""What nobody owns is found, by the journal and by tags; what somebody may still use is kept."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.cli.leftovers import Asked, MachineLeft, Seen, left, verdict
from outrider.providers.journal import Intent, PoolRecord, Standing
from outrider.providers.owners import Owner

EAST, WEST = {"region": "us-east-1"}, {"region": "us-west-2"}
ME = Owner("me", "here", 12, "", "", 0.0)
OTHER = Owner("you", "there", 34, "", "", 0.0)
MACHINE = MachineLeft("i-1", "g5.xlarge", "spot", "us-east-1a", "running", 0.0, hourly_usd=0.5)


def record(pool: str = "p", standing: Standing = "dead", owner: Owner = ME) -> PoolRecord:
    return PoolRecord(pool, "aws", (EAST,), owner, standing, (Intent(pool, "fleet", "t", EAST),))


def asked(*seen: Seen) -> Asked:
    return Asked("aws", EAST, seen)


def test_a_dead_owners_pool_is_removed() -> None:
    (found,) = left([record()], [asked(Seen("p", "me@here", (MACHINE,), ("sg-1",)))])
    assert (found.standing, found.machines, found.others, found.unsettled) == ("dead", (MACHINE,), ("sg-1",), 1)
    assert found.hourly_usd == 0.5
    assert verdict(found, foreign=False).remove
    assert "process 12 of me on here" in verdict(found, foreign=False).why


def test_what_the_tags_do_not_show_is_removed_too() -> None:
    """The answer may be an old one: sweeping waits until it cannot be."""
    (found,) = left([record()], [asked()])
    assert (found.machines, found.hourly_usd) == ((), 0)
    assert verdict(found, foreign=False).remove


def test_what_only_the_tags_know_may_be_somebodys() -> None:
    (found,) = left([], [asked(Seen("theirs", "you@there", (MACHINE,)))])
    assert (found.standing, found.owner) == ("unknown", "you@there")
    assert not verdict(found, foreign=False).remove
    assert verdict(found, foreign=True).remove


def test_a_namesake_of_another_computer_protects_itself() -> None:
    """A sweep by tag would end both."""
    found = {each.standing: each for each in left([record()], [asked(Seen("p", "you@there", (MACHINE,)))])}
    mine, theirs = found["dead"], found["unknown"]
    assert (mine.machines, theirs.machines) == ((), (MACHINE,))
    assert verdict(mine, foreign=True) == verdict(mine, foreign=False)
    assert not verdict(mine, foreign=True).remove
    assert "you@there has a pool of the same name" in verdict(mine, foreign=True).why
    assert not verdict(theirs, foreign=False).remove


def test_each_place_of_a_pool_is_its_own_matter() -> None:
    both = replace(record(), places=(EAST, WEST))
    answers = [asked(Seen("p", "me@here", (MACHINE,))), Asked("aws", WEST, error="no credentials")]
    east, west = left([both], answers)
    assert (east.place, len(east.machines), west.place, west.error) == (EAST, 1, WEST, "no credentials")
    assert verdict(east, foreign=False).remove
    assert not verdict(west, foreign=True).remove
    assert "no credentials" in verdict(west, foreign=True).why


def test_a_pool_without_a_place_is_only_forgotten() -> None:
    (found,) = left([replace(record(), places=())], [])
    assert (found.place, found.error) == ({}, "")
    assert verdict(found, foreign=False).remove


def test_a_price_that_nobody_knows_makes_no_sum() -> None:
    (found,) = left([record()], [asked(Seen("p", "me@here", (MACHINE, replace(MACHINE, hourly_usd=None))))])
    assert found.hourly_usd is None


@given(
    st.sampled_from(["alive", "dead", "elsewhere"]),
    st.sampled_from([ME, OTHER]),
    st.lists(st.builds(Seen, st.sampled_from("pq"), st.sampled_from(["me@here", "you@there", ""])), max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_a_living_owners_pool_is_never_touched(
    standing: Standing, owner: Owner, seen: list[Seen], silent: bool, foreign: bool
) -> None:
    """GC-1"""
    answer = replace(asked(*seen), error="no" if silent else "", seen=() if silent else tuple(seen))
    for found in left([record(standing=standing, owner=owner)], [answer]):
        removed = verdict(found, foreign=foreign).remove
        if found.standing == "alive" or found.error:
            assert not removed
        if found.standing in ("elsewhere", "unknown"):
            assert not removed or foreign
        if removed and found.standing == "dead":
            assert not any(each.pool == found.pool and each.owner == "you@there" and owner is ME for each in seen)
