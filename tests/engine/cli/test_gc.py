"""`outrider gc` from the outside: what it removes, what it leaves alone, how it exits."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from outrider.providers.shared import pool_lock
from outrider.providers.shared.journal import Journal
from outrider.providers.shared.resource_ownership import Thing
from outrider.providers.survey import FoundMachine

if TYPE_CHECKING:
    from .conftest import Outrider, Sky

EAST = {"region": "us-east-1"}
MACHINE = FoundMachine("i-1", "g5.xlarge", "spot", "us-east-1a", "running", 0.0, hourly_usd=0.5)


@pytest.fixture
def dead(book: Journal, sky: Sky) -> str:
    """A pool whose client died."""
    with book.own("lost", "aws", EAST) as owned:
        owned.keep("client_key", "secret")
        book.intend("lost", "fleet", "t", EAST)
        sky.regions["us-east-1"] = [replace(MACHINE, pool="lost", owner=f"me@{socket.gethostname()}")]
    return "lost"


def test_gc_without_pools_exits_with_0(book: Journal, sky: Sky, outrider: Outrider) -> None:
    assert outrider("gc") == 0
    assert "No pools." in outrider.said()


def test_gc_removes_nothing_without_apply(dead: str, book: Journal, sky: Sky, outrider: Outrider) -> None:
    assert outrider("gc") == 1
    said = outrider.said()
    assert "1 g5.xlarge spot" in said
    assert "to remove: its owner is dead" in said
    assert "outrider gc --apply" in said
    assert sky.swept == []
    assert [each.pool for each in book.orphans()] == [dead]

    assert outrider("gc", "--apply") == 0
    assert "removed: its owner is dead" in outrider.said()
    assert sky.swept == [("us-east-1", dead)]
    assert book.records() == []
    assert list(book.pools.iterdir()) == []  # the keys too

    assert outrider("gc") == 0


def test_a_living_owner_is_left_alone(dead: str, book: Journal, sky: Sky, outrider: Outrider) -> None:
    """GC-1"""
    with book.own(dead, "aws", adopt=True):
        assert outrider("gc", "--apply", "--foreign") == 0
        assert "kept: its owner is alive" in outrider.said()
    assert sky.swept == []


def test_a_computer_that_is_called_otherwise_each_time_removes_its_pools(
    book: Journal, sky: Sky, outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container has a name of its own, and all of them may have one state directory."""

    def called(host: str) -> None:
        monkeypatch.setattr(socket, "gethostname", lambda: host)

    called("c1")
    book.own("job", "aws", EAST).close()
    sky.regions["us-east-1"] = [Thing("sg-1", pool="job", owner="me@c1")]
    called("c2")
    book.own("job", "aws", EAST, adopt=True).close()  # attached to, and died again
    sky.stubborn.add("job")
    for host in ("c3", "c1"):
        called(host)
        assert outrider("gc", "--apply") == 1
    sky.stubborn.clear()
    called("c4")
    assert outrider("gc", "--apply") == 0
    assert sky.regions["us-east-1"] == []
    assert book.records() == []


def test_old_journal_entries_are_removed_by_their_ids(book: Journal, sky: Sky, outrider: Outrider) -> None:
    with book.own("old", "aws", EAST):
        book.happened(book.intend("old", "fleet", "t", EAST), ["i-1"])
    file = book.pools / "old" / "pool"
    written = json.loads(file.read_text())
    del written["hosts"], written["owner"]["inode"]
    written["owner"]["host"] = "today's"  # as a try to remove it has left it, while the tags have the first name
    file.write_text(json.dumps(written))
    sky.regions["us-east-1"] = [replace(MACHINE, pool="old", owner="me@first")]
    assert outrider("gc", "--apply") == 0
    assert sky.regions["us-east-1"] == []


def test_a_strangers_copy_is_left_alone_and_holds_nothing_up(
    dead: str, book: Journal, sky: Sky, outrider: Outrider
) -> None:
    """GC-2"""
    copy = replace(MACHINE, id="i-copy", pool=dead, owner="bob@elsewhere")
    for order in (0, 1):
        sky.regions["us-east-1"].insert(order, replace(copy, id=f"i-copy-{order}"))
    assert outrider("gc", "--apply") == 0
    said = outrider.said()
    assert "removed: its owner is dead" in said
    assert "kept: it has the tags of a pool here and is not that pool's; its own say: bob@elsewhere" in said
    assert {each.id for each in sky.regions["us-east-1"]} == {"i-copy-0", "i-copy-1"}
    assert book.records() == []


def test_gc_exits_with_1_if_it_keeps_what_may_be_this_computers(
    book: Journal, sky: Sky, outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "another")
        elsewhere.setattr(pool_lock, "_boot", lambda: "another's")
        book.own("far", "aws", EAST).close()
    monkeypatch.setattr(pool_lock, "_file_system", lambda path: "nfs4")
    assert outrider("gc", "--apply") == 1
    said = " ".join(outrider.said().split())
    assert "kept: its owner may be alive on another computer" in said
    assert "if nobody uses it, --foreign removes it" in said
    assert outrider("gc", "--apply", "--foreign") == 0


def test_a_computer_is_the_same_one_after_a_boot_under_another_name(
    book: Journal, sky: Sky, outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(socket, "gethostname", lambda: "before")
        before.setattr(pool_lock, "_boot", lambda: "before")
        book.own("mine", "aws", EAST).close()
    monkeypatch.setattr(pool_lock, "_file_system", lambda path: "ext4")
    assert outrider("gc", "--apply") == 0
    assert book.records() == []


def test_failed_removal_is_shown(dead: str, book: Journal, sky: Sky, outrider: Outrider) -> None:
    sky.stubborn.add(dead)
    assert outrider("gc", "--apply") == 1
    said = outrider.said()
    assert "not removed: ec2:TerminateInstances is missing" in said
    assert "run `outrider gc --apply` again" in said
    assert [each.pool for each in book.orphans()] == [dead]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ('{"lease_s": 120.0, "pool": "lost"}', "; they end themselves by 00:02 at the latest, by their lease"),
        ('{"pool": "lost"}', ""),
        ('{"lease_s": 12', ""),
        ("[]", ""),
    ],
    ids=["as it is written", "by an earlier version", "cut off", "not ours"],
)
def test_failed_removal_shows_when_the_lease_ends_the_machines(
    dead: str, book: Journal, sky: Sky, outrider: Outrider, monkeypatch: pytest.MonkeyPatch, *, kept: str, said: str
) -> None:
    monkeypatch.setattr(time, "localtime", time.gmtime)
    with book.own(dead, "aws", adopt=True) as owned:
        owned.keep("takeover", kept)
    sky.stubborn.add(dead)
    failure = f"ec2:TerminateInstances is missing for lost; may still be running: i-1{said}"
    assert [each["failure"] for each in outrider.json("gc", "--apply")] == [failure]


def test_a_place_that_does_not_answer_is_unknown(dead: str, book: Journal, sky: Sky, outrider: Outrider) -> None:
    sky.refuses.add("us-east-1")
    assert outrider("gc", "--apply") == 2
    said = outrider.said()
    assert "kept: its cloud could not be asked: no credentials" in said
    assert "us-east-1 could not be asked" in outrider.errors
    assert [each.pool for each in book.orphans()] == [dead]


def test_pools_of_others_are_removed_only_when_asked_for(book: Journal, sky: Sky, outrider: Outrider) -> None:
    sky.regions["us-west-2"] = [replace(MACHINE, pool="theirs", owner="you@there")]
    assert outrider("gc", "--apply") == 0  # nobody looks there
    for where in (["--region", "us-west-2"], ["--all-regions"]):
        assert outrider("gc", "--apply", *where) == 0
        assert "kept: the journal here does not know it" in outrider.said()
    assert sky.swept_others == []
    assert outrider("gc", "--apply", "--all-regions", "--foreign") == 0
    assert (sky.swept, sky.swept_others) == ([], [("us-west-2", "theirs")])
    assert book.records() == []


def test_gc_prints_json(dead: str, book: Journal, sky: Sky, outrider: Outrider) -> None:
    (told,) = outrider.json("gc")
    assert outrider.status == 1
    assert (
        told["pool"],
        told["place"],
        told["standing"],
        told["unsettled"],
    ) == (dead, EAST, "dead", 1)
    assert (told["remove"], told["removed"], told["hourly_usd"]) == (True, False, 0.5)
    assert told["machines"][0]["id"] == "i-1"
    (told,) = outrider.json("gc", "--apply")
    assert (told["removed"], told["failure"], told["said"], outrider.status) == (True, "", "", 0)


def test_what_a_provider_still_shows_of_a_pool_that_is_gone_is_told(
    dead: str, book: Journal, sky: Sky, outrider: Outrider
) -> None:
    sky.remark = "Slurm shows job 7 as ending on c1"
    assert outrider("gc", "--apply") == 0
    said = " ".join(outrider.said().split())
    assert "removed: its owner is dead" in said
    assert said.endswith("; Slurm shows job 7 as ending on c1")


def test_a_pool_that_was_never_anywhere_is_forgotten(book: Journal, sky: Sky, outrider: Outrider) -> None:
    lock = book.own("early", "aws", EAST)
    lock.close()
    (book.pools / "early" / "pool").write_text("{")  # killed while it was written
    assert outrider("gc", "--apply") == 0
    assert book.records() == []


def test_an_unknown_cloud_is_kept(book: Journal, sky: Sky, outrider: Outrider) -> None:
    book.own("p", "elsewhere-cloud", EAST).close()
    assert outrider("gc", "--apply") == 2
    assert "this version of Outrider cannot ask elsewhere-cloud: use the one that has made" in outrider.said()
    assert [each.pool for each in book.orphans()] == ["p"]


def test_nonsense_is_refused(book: Journal, sky: Sky, outrider: Outrider) -> None:
    assert outrider("gc", "--aply") != 0
    assert outrider("gc", "lost") != 0


@pytest.mark.parametrize("command", [["gc"], ["gc", "--apply"], ["ps"]])
def test_invalid_endpoint_is_shown_as_an_error(command: list[str], book: Journal, outrider: Outrider) -> None:
    pytest.importorskip("aiobotocore")
    assert outrider(*command, "--region", "us-east-1", "--endpoint-url", "localhost:4566") == 2
    outrider.said()
    assert "endpoint_url='localhost:4566' is no URL" in " ".join(outrider.errors.split())
    assert outrider(*command, "--all-regions", "--endpoint-url", "localhost:4566") == 2


def test_gc_removes_everything_of_a_dead_pool_from_a_test_cloud(
    book: Journal, outrider: Outrider, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    pytest.importorskip("aiobotocore")
    import anyio

    from outrider import AWS
    from outrider.providers.base import EntryPoints, LaunchRequest
    from outrider.providers.cloud import fleet as fleets
    from outrider.testing import EC2, Behaviour

    for name, value in {
        "ACCESS_KEY_ID": "test",
        "SECRET_ACCESS_KEY": "test",
        "CONFIG_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))

    async def die(provider: AWS) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(fleets.CloudFleet, "close", lambda fleet: anyio.lowlevel.checkpoint())
            async with provider.open("lost", EntryPoints()) as fleet:
                await fleet.launch(LaunchRequest("ssh-ed25519 CLIENT", 2, allocation="on-demand"), 2)

    with EC2(Behaviour(boot_s=0.01, stop_s=0.01, types=("m7i.large",))) as cloud:
        anyio.run(die, AWS(region=cloud.region, endpoint_url=cloud.endpoint_url))
        assert len(cloud.instances("pending", "running")) == 2
        (told,) = outrider.json("ps", "--region", cloud.region, "--endpoint-url", cloud.endpoint_url)
        assert (told["pool"], told["standing"], len(told["machines"])) == (
            "lost",
            "dead",
            2,
        )
        assert told["machines"][0]["kind"] == "m7i.large"
        assert told["hourly_usd"] > 0
        assert outrider("gc") == 1
        assert outrider("gc", "--apply") == 0
        assert cloud.left() == []
        assert outrider("gc") == 0
    assert book.records() == []
