"""Whose a thing is, decided by itself: by the journal first, then by tags, and never by the pool's tag alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.providers.shared.journal import Intent
from outrider.providers.shared.resource_ownership import OURS, Claim, Others, Thing, Whose, whose

CLAIM = Claim.of(
    "p",
    [Intent("p", "fleet", "told", {}, ids=("i-1", "i-2")), Intent("p", "fleet", "untold", {})],
    hosts=("first", "second"),
)
MINE = Thing("i-1", pool="p", owner="me@first", launch="told")

names = st.sampled_from(["i-1", "i-2", "i-3", "sg-1"])
tokens = st.sampled_from(["told", "untold", "another", ""])
pools = st.sampled_from(["p", "q", ""])
owners = st.sampled_from(["me@first", "me@second", "you@second", "bob@elsewhere", "first", ""])
things = st.builds(
    lambda name, pool, owner, token: Thing(name, pool=pool, owner=owner, launch=token), names, pools, owners, tokens
)


def test_what_the_journal_has_is_the_pools_whatever_its_tags_say() -> None:
    """WHOSE-1"""
    assert whose(Thing("i-2"), CLAIM) == "journal"
    assert whose(replace(MINE, owner="bob@elsewhere"), CLAIM) == "journal"
    assert whose(Thing("i-9", pool="q", owner="bob@elsewhere", launch="untold"), CLAIM) == "journal"


def test_a_copy_of_all_tags_is_not_the_pools() -> None:
    """WHOSE-3"""
    assert whose(replace(MINE, id="i-copy"), CLAIM) == "stranger"


def test_every_owner_there_was_is_known() -> None:
    """WHOSE-4"""
    for host in ("first", "second"):
        assert whose(Thing("sg-1", pool="p", owner=f"anybody@{host}"), CLAIM) == "owner"
    assert whose(Thing("sg-1", pool="p", owner="me@third"), CLAIM) == "stranger"
    assert whose(Thing("sg-1", pool="p"), CLAIM) == "unknown"


def test_an_answer_counts_more_than_that_there_was_none() -> None:
    lost = Intent("p", "fleet", "t", {})
    for intents in ([lost, replace(lost, ids=("i-1",))], [replace(lost, ids=("i-1",)), lost]):
        claim = Claim.of("p", intents)
        assert (claim.answered, claim.unanswered) == (frozenset({"t"}), frozenset())


def test_what_a_refused_call_has_made_all_the_same_is_the_pools() -> None:
    """A try of it was done, its answer lost, and the next one refused: there is such a thing already."""
    claim = Claim.of("p", [Intent("p", "security-group", "t", {}, ids=())])
    assert whose(Thing("sg-1", pool="p", launch="t"), claim) == "journal"


@settings(derandomize=True, database=None)  # that it falls without its guard is to be seen each time
@given(
    things,
    st.lists(st.tuples(tokens, st.none() | st.frozensets(names)), max_size=3),
    st.sets(st.sampled_from(["first", "second"])),
)
def test_whose_a_thing_is_holds_in_every_case(
    thing: Thing, calls: list[tuple[str, frozenset[str] | None]], hosts: set[str]
) -> None:
    intents = [
        Intent("p", "fleet", token, {}, ids=None if ids is None else tuple(ids)) for token, ids in calls if token
    ]
    claim = Claim.of("p", intents, hosts)
    said = whose(thing, claim)
    known = {name for each in intents for name in each.ids or ()}
    answered = {each.token for each in intents if each.ids}
    lost = {each.token for each in intents} - answered
    assert (said == "journal") == (thing.id in known or thing.launch in lost)  # WHOSE-1
    if said == "owner":
        assert thing.owner.rpartition("@")[2] in hosts  # WHOSE-2, WHOSE-4
        assert thing.launch not in answered  # WHOSE-3
    if said != "journal":
        bare = replace(thing, owner="", launch="")
        assert whose(bare, claim) not in OURS  # WHOSE-2: the pool's tag alone
    assert claim.has(thing) == (said in OURS)
    assert Others(claim).has(thing) == (said not in OURS and thing.pool == "p")


whose_itself = whose


def believes_tags_alone(thing: Thing, claim: Claim) -> Whose:
    return whose_itself(thing, replace(claim, ids=frozenset(), unanswered=frozenset()))


def believes_the_pools_tag(thing: Thing, claim: Claim) -> Whose:
    said = whose_itself(thing, claim)
    return "owner" if said == "unknown" else said


def believes_every_token(thing: Thing, claim: Claim) -> Whose:
    return whose_itself(thing, replace(claim, answered=frozenset()))


def knows_one_owner(thing: Thing, claim: Claim) -> Whose:
    return whose_itself(thing, replace(claim, hosts=frozenset({"first"})))


@pytest.mark.parametrize(
    ("invariant", "broken", "held_by"),
    [
        ("WHOSE-1", believes_tags_alone, test_what_the_journal_has_is_the_pools_whatever_its_tags_say),
        ("WHOSE-2", believes_the_pools_tag, test_whose_a_thing_is_holds_in_every_case),
        ("WHOSE-3", believes_every_token, test_a_copy_of_all_tags_is_not_the_pools),
        ("WHOSE-4", knows_one_owner, test_every_owner_there_was_is_known),
    ],
)
def test_the_invariant_falls_without_its_guard(
    invariant: str, broken: object, held_by: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "whose", broken)
    with pytest.raises((AssertionError, ExceptionGroup)):  # several in different places are a group
        held_by()
