"""Checks of launches, keys and ends, for clouds whose calls create one machine each and whose users have an API key.

`outrider.testing.cloud_checks` is this module. Each of `CHECKS` takes a `Subject` (the cloud under test), and
raises `AssertionError` with its observations if it fails. `CHECKS` has, for each check, the `Times` with which the
caller must open the test cloud. The checks leave the test cloud empty. They shorten the waits that a real cloud
requires.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import anyio

from ....providers.base import LaunchRequest, LaunchSettled, LaunchUnsure, MachineGone, MachineReachable
from ....providers.cloud import fleet as poller
from ....providers.cloud import inventory, recorder, single_launch
from ....providers.cloud.account import ANY
from ....providers.cloud.calls import is_lost
from ....providers.cloud.surveyor import CloudSurveyor
from ....providers.errors import BadRequest, NoCapacity, NotAuthorized, NotGone, ProviderError
from ....providers.shared.journal import Journal, PoolRecord
from .faults import Fault, HalfAnswer, LostAnswer, LostRequest
from .faults import NoCapacity as Full
from .kills import Client, Kill, kill_all
from .machines import Times
from .subject import GRACE_S, WITHIN_S, Subject, check, event, launched, near, raises, short

QUICK = Times(boot_s=0.01, stop_s=0.01)
# lists stay outdated until the check calls `CloudFront.catch_up`
OLD_LISTS = Times(boot_s=0.01, stop_s=0.01, stale_s=1000.0)
CALL = "outrider.providers.cloud.http:HttpApi.call"  # clients are killed before or after this call

Check = Callable[[Subject], Awaitable[None]]


# --- launches without an answer (promise ONCE-1 in module `lost_launch`) ----------------------------------------------


async def a_lost_answer_never_makes_two_machines(it: Subject) -> None:
    half, cut = HalfAnswer(it.launch), HalfAnswer(it.launch, valid_http=False)
    faults: Sequence[Fault] = (LostAnswer(it.launch), half, cut)
    for number, fault in enumerate(faults):
        there, calls = len(it.front.machines()), it.front.calls[it.launch]
        it.front.faults.add(fault)
        async with it.open(f"pool-{number}") as fleet:
            with raises(ProviderError, f"did not answer {it.call}") as errors:
                await fleet.launch(it.request, 1)
            check(is_lost(errors[0]), f"{errors[0]!r} does not leave open whether there is a machine")
            (machine,) = await launched(fleet, it.request, 1)
            machine_ids = [each.id for each in it.front.machines()][there:]
            check(machine_ids == [machine.id], f"{machine_ids} were made, and {machine.id} was given")
            check(it.front.calls[it.launch] == calls + 1, "the launch was sent again")
            await event(fleet, LaunchUnsure)
            await event(fleet, LaunchSettled)
    _nothing_is_left(it)


async def machines_before_a_lost_answer_are_returned(it: Subject) -> None:
    it.front.faults.add(LostAnswer(it.launch, after=1))
    async with it.open() as fleet:
        first = await fleet.launch(it.request, 2)
        check(len(first) == 1, f"of two machines, the answer for one of which was lost, {len(first)} were given")
        returned = {each.id for each in [*first, *await launched(fleet, it.request, 1)]}
        existing = {each.id for each in it.front.machines()}
        check(returned == existing, f"{existing} were made, and {returned} were given")
    _nothing_is_left(it)


async def the_machine_of_a_lost_answer_is_waited_for_where_lists_are_old(it: Subject) -> None:
    it.front.faults.add(HalfAnswer(it.launch))
    async with it.open() as fleet:
        with raises(ProviderError, f"did not answer {it.call}"):
            await fleet.launch(it.request, 1)
        with raises(ProviderError, "looked for again"):
            await fleet.launch(it.request, 1)
        it.front.catch_up()
        (machine,) = await launched(fleet, it.request, 1)
        check([each.id for each in it.front.machines()] == [machine.id], "it is not the one that was made")
        ids = [each.ids for each in _record("pool").intents if each.kind == recorder.FLEET]
        check(ids == [(machine.id,)], f"the journal has {ids}, and not {machine.id}")
    _nothing_is_left(it)


async def a_launch_that_did_not_arrive_is_looked_for_and_then_begun_anew(it: Subject) -> None:
    it.front.faults.add(LostRequest(it.launch))
    async with it.open() as fleet:
        began = anyio.current_time()
        with raises(ProviderError, f"did not answer {it.call}"):
            await fleet.launch(it.request, 1)
        with raises(ProviderError, "looked for again"):  # a launch without a response is searched for during a minute
            await fleet.launch(it.request, 1)
        with short(single_launch, inventory):
            (machine,) = await launched(fleet, it.request, 1)
            check(anyio.current_time() - began >= GRACE_S, "lists might have shown it later")
            check([each.id for each in it.front.machines()] == [machine.id], "there is another machine")
            check(it.front.calls[it.launch] == 2, f"{it.front.calls[it.launch]} launches were sent, not 2")
            await fleet.close()
    _nothing_is_left(it)


async def a_pool_that_leaves_after_a_lost_answer_leaves_nothing(it: Subject) -> None:
    it.front.faults.add(LostAnswer(it.launch))
    async with it.open() as fleet:
        with raises(ProviderError):
            await fleet.launch(it.request, 1)
    check(len(it.front.machines()) == 1, "the launch was not carried out")
    _nothing_is_left(it)


async def resources_of_a_lost_answer_are_removed(it: Subject) -> None:
    if not it.makes:
        return
    path = "did not answer POST"
    it.front.faults.add(LostAnswer(it.makes))
    async with it.open() as fleet:
        with raises(ProviderError, path):
            await fleet.launch(it.request, 1)
        await launched(fleet, it.request, 1)
    _nothing_is_left(it)
    lost = LostAnswer(it.makes, times=None)
    it.front.faults.add(lost)
    for pool in ("mine", "x" * 63):
        async with it.open(pool) as fleet:
            with raises(ProviderError, path):
                await fleet.launch(it.request, 1)
            check(len(it.left()) == 1, f"one thing was made, and {it.left()} exist")
        _nothing_is_left(it)


# --- machines and errors ----------------------------------------------------------------------------------------------


async def no_room_is_reported_in_the_clouds_words(it: Subject) -> None:
    it.front.faults.add(Full())
    async with it.open() as fleet:
        with raises(NoCapacity, it.no_room) as errors:
            await fleet.launch(it.request, 1)
        check(errors[0].retry_after_s is not None, "it is not asked again")
    _nothing_is_left(it)


async def a_reclaimed_machine_is_reported_and_ended(it: Subject) -> None:
    with mock.patch.object(poller, "pause_s", return_value=0.1):
        async with it.open() as fleet:
            (machine,) = await fleet.launch(it.request, 1)
            await event(fleet, MachineReachable)
            it.take(machine.id)
            gone = await event(fleet, MachineGone)
            check((gone.id, it.cause in gone.cause) == (machine.id, True), f"told was {gone}")
            with anyio.fail_after(WITHIN_S):
                while it.front.machine(machine.id).state not in it.ended:  # noqa: ASYNC110 - the test cloud has no event for it
                    await anyio.sleep(0.02)
    _nothing_is_left(it)


async def an_unconfirmed_end_is_reported_and_gc_ends_it(it: Subject) -> None:
    """Check that the error says when the machine ends itself, according to its lease and to `vendor.Vendor`."""
    it.front.faults.add(it.end_refused)
    machine, error, began = None, None, time.time()
    try:
        async with it.open("mine") as fleet:
            (machine,) = await fleet.launch(it.request, 1)
    except* NotGone as group:
        (error,) = group.exceptions
    check(isinstance(error, NotGone) and machine is not None, "the pool's end was confirmed")
    assert isinstance(error, NotGone)
    assert machine is not None
    check(error.machines == (machine.id,), f"{machine.id} may still be running, and told was {error}")
    _says_when_it_ends(it, error, began)
    with raises(NotGone) as again:
        await it.surveyor.sweep(it.place, "mine", Journal.open(), lease_s=it.request.lease_s)
    _says_when_it_ends(it, again[0], began)
    it.front.faults.clear()
    await _swept(it)


def _says_when_it_ends(it: Subject, error: NotGone, began: float) -> None:
    if it.ends_itself_s is None:
        check(error.by is None, "its lease is a comfort, and it costs money all the same")
    else:
        # the time of the launch, or the time at which the lease began
        launched_at = None if error.by is None else error.by - it.ends_itself_s
        holds = launched_at is not None and began - 1.0 <= launched_at <= time.time() + 1.0
        check(holds, f"{error.by} is not when it has ended at the latest")


# --- API keys, and places (accounts and addresses of a cloud) ---------------------------------------------------------


async def a_refused_key_is_reported_and_not_shown(it: Subject) -> None:
    wrong = "wrong_0123456789"
    reason = f"does not accept the API key: make one at {it.keys.page}"
    with mock.patch.dict(os.environ, {it.keys.variable: wrong}), raises(NotAuthorized, reason) as errors:
        await it.provider(**it.options).offers(it.request)
    check(wrong not in str(errors[0]), "the error shows the key")


async def a_key_is_in_the_variable_or_in_a_file(it: Subject) -> None:
    key = os.environ[it.keys.variable]
    with mock.patch.dict(os.environ), TemporaryDirectory() as folder:
        del os.environ[it.keys.variable]
        with raises(NotAuthorized, f"there is no API key for {it.keys.provider}: make one at {it.keys.page}"):
            async with it.open():
                pass
        file = Path(folder) / "key"
        provider = it.provider(**{**it.options, "key_file": file})
        with raises(NotAuthorized, "cannot be read"):
            await provider.offers(it.request)
        file.write_text("two words")
        with raises(NotAuthorized, "has no API key"):
            await provider.offers(it.request)
        file.write_text(f"# mine\napi_key = {key}\n")
        check(bool(await provider.offers(it.request)), "there are no offers")


async def an_address_that_is_none_says_so(it: Subject) -> None:
    with raises(BadRequest, "is no URL"):
        await it.provider(endpoint_url="cloud.example").offers(it.request)


async def the_place_of_another_account_is_refused(it: Subject) -> None:
    with raises(NotAuthorized, it.account):
        await it.surveyor.survey({**it.place, "account": "1"}, ())
    if it.hashes_keys:  # the cloud's account name is a hash of the key
        check((await it.surveyor.survey({**it.place, "account": ANY}, ())).machines == (), "there is a machine")
        it.front.calls.clear()
        with raises(NotAuthorized, f"made with another key of {it.keys.provider}'s"):
            await it.surveyor.survey({**it.place, "account": "1"}, ())
        check(not it.front.calls, "the cloud was asked all the same")


# --- outrider ps and gc -----------------------------------------------------------------------------------------------


async def machines_are_listed_with_their_prices_and_ended(it: Subject) -> None:
    request, surveyor = replace(it.request, nodes=2, max_lifetime_s=3600.0), it.surveyor
    # shortens the time for which lists may lack a machine that another client has ended
    with short(inventory, inventory):
        await _list_and_end(it, request, surveyor)


async def _list_and_end(it: Subject, request: LaunchRequest, surveyor: CloudSurveyor[Any]) -> None:
    async with it.open("mine", **it.survey_options) as fleet:
        machines = await fleet.launch(request, 2)
        for _ in machines:
            await event(fleet, MachineReachable)
        record = _record("mine")
        (place,) = record.places
        check(place == it.place, f"the journal has the place {place}, not {it.place}")
        check(surveyor.has(place) and not surveyor.has({"region": "us-east-1"}), "it does not know its places")
        answer, claim = await surveyor.survey(place, record.intents), record.claim(place)
        check({each.id for each in answer.machines} == {each.id for each in machines}, f"found was {answer}")
        for each in answer.machines:
            (machine,) = [one for one in machines if one.id == each.id]
            shown = each.kind, each.market, each.pool, each.zone
            wanted = it.kind, it.market, "mine", it.front.machine(each.id).zone
            check(shown == wanted, f"found was {shown}, not {wanted}")
            check(near(each.hourly_usd, it.hourly_usd, 1e-3), f"it costs {it.hourly_usd}, not {each.hourly_usd}")
            check(near(machine.hourly_cost, it.hourly_usd, 1e-3), f"the pool counts {machine.hourly_cost} USD")
            check(near(each.launched_at, time.time(), 60), f"it was launched at {each.launched_at}")
            check(near(each.until, each.launched_at + 3600, 5), f"its max_lifetime is over at {each.until}")
            check(claim.has(each), f"{each} is not the pool's")
        check([each.pool for each in answer.others] == ["mine"] * bool(it.makes), f"besides there is {answer.others}")
        check(all(map(claim.has, answer.others)), f"{answer.others} are not the pool's")
        if it.hashes_keys:
            survey = (await surveyor.survey({**place, "account": ANY}, ())).machines
            check(len(survey) == 2, f"with account={ANY}, {len(survey)} machines are found")
        await _swept(it, forgotten=False)
    _nothing_is_left(it)


async def what_is_another_pools_is_left_alone(it: Subject) -> None:
    """Check that a pool's tag on another owner's machine has no effect: "launch more like this" also copies tags."""
    with short(inventory, inventory):
        await _left_alone(it)
    _nothing_is_left(it)


async def _left_alone(it: Subject) -> None:
    async with it.open("mine") as fleet, it.open("other") as other:
        (ended,) = await fleet.launch(it.request, 1)
        (kept,) = await other.launch(it.request, 1)
        check(it.whose(it.front.machine(kept.id)).pool == "other", "it is not marked as its pool's")
        it.mark(kept.id, "mine", "bob@elsewhere")
        check(it.whose(it.front.machine(kept.id)).pool == "mine", "it was not marked")
        await it.surveyor.sweep(it.place, "mine", Journal.open(), lease_s=120.0)
        check(it.front.machine(ended.id).state in it.ended, "a machine of the pool was not ended")
        check(it.front.machine(kept.id).lives, "the machine of another pool was ended")
        others = {each.pool for each in (await it.surveyor.survey(it.place, ())).others}
        check(others == ({"other"} if it.makes else set()), f"besides machines there is something of {others}")


async def killed_clients_leave_nothing_that_gc_does_not_end(it: Subject, kills: Sequence[Kill]) -> str:
    """Kill clients at these moments, while some responses get lost, and check that `gc` ends everything.

    Return a text with the observations. This check is not one of `CHECKS`.
    """
    it.front.faults.add(LostAnswer(it.launch, times=len(kills) // 4, after=2))
    options = {"endpoint_url": it.front.endpoint_url, **it.options}
    client = Client(provider=it.surveyor.provider, options=options, call=CALL, before=it.before)
    killed = await kill_all(client, kills)
    check(killed >= len(kills) / 2, f"of {len(kills)} clients only {killed} were killed")
    old_s = 5 * it.front.times.stale_s
    graces = short(inventory, inventory, recorder, to_s=max(0.2, old_s))
    with graces, mock.patch.object(recorder, "FLEET_S", old_s):
        for record in Journal.open().records():
            for place in record.places:
                await it.surveyor.sweep(place, record.pool, Journal.open())
    _nothing_is_left(it, forgotten=False)
    launches = [it.whose(each).launch for each in it.front.machines()]
    check(len({*launches}) == len(launches), "two machines were made for one intent")
    unknown = it.front.calls[""], [*it.front.failures]
    check(unknown == (0, []), f"requests were outside of the schema: {unknown}")
    seen = f"{killed} of {len(kills)} clients killed, {len(launches)} machines, {len(it.left())} left"
    return f"{seen}, {dict(it.front.calls)}"


CHECKS: Mapping[Check, Times] = {
    a_lost_answer_never_makes_two_machines: QUICK,
    machines_before_a_lost_answer_are_returned: QUICK,
    the_machine_of_a_lost_answer_is_waited_for_where_lists_are_old: OLD_LISTS,
    a_launch_that_did_not_arrive_is_looked_for_and_then_begun_anew: QUICK,
    a_pool_that_leaves_after_a_lost_answer_leaves_nothing: QUICK,
    resources_of_a_lost_answer_are_removed: QUICK,
    no_room_is_reported_in_the_clouds_words: QUICK,
    a_reclaimed_machine_is_reported_and_ended: QUICK,
    an_unconfirmed_end_is_reported_and_gc_ends_it: QUICK,
    a_refused_key_is_reported_and_not_shown: QUICK,
    a_key_is_in_the_variable_or_in_a_file: QUICK,
    an_address_that_is_none_says_so: QUICK,
    the_place_of_another_account_is_refused: QUICK,
    machines_are_listed_with_their_prices_and_ended: QUICK,
    what_is_another_pools_is_left_alone: QUICK,
}


# --- helpers ----------------------------------------------------------------------------------------------------------


async def _swept(it: Subject, *, forgotten: bool = True) -> None:
    with short(inventory, inventory, recorder), mock.patch.object(recorder, "FLEET_S", 0.0):
        await it.surveyor.sweep(it.place, "mine", Journal.open(), lease_s=120.0)
    _nothing_is_left(it, forgotten=forgotten)


def _nothing_is_left(it: Subject, *, forgotten: bool = True) -> None:
    """Check that the test cloud is empty.

    ``forgotten``: every pool was closed, so that the journal (the list of pools that this computer keeps) must be
    empty, too.
    """
    check(it.left() == [], f"{it.left()} are left")
    known = [each for each in Journal.open().records() if forgotten or each.intents]
    check(known == [], f"the journal is not settled: {known}")


def _record(pool: str) -> PoolRecord:
    record = Journal.open().record(pool)
    assert record is not None
    return record
