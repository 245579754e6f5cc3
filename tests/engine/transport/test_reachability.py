"""Who is asked while all nodes are silent, and what counts as an answer; over networks the lab has it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from outrider.engine.transport import reachability
from outrider.providers.base import Address, Login, Machine, MachineId

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _answers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy computer lets this process stand still for longer than an answer may take."""
    monkeypatch.setattr(reachability, "ANSWER_S", 60.0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Those that were; only ``up`` answers."""
    places: list[tuple[str, int]] = []

    async def answers(host: str, port: int, *, behind: bool) -> bool:
        del behind
        places.append((host, port))
        return host == "up"

    monkeypatch.setattr(reachability, "answers", answers)
    return places


def machine(name: str, *, witnesses: tuple[Address, ...] = (), **way: object) -> Machine:
    login = Login(**way) if way else None  # type: ignore[arg-type]
    return Machine(MachineId(name), Address(name, 2200), host_key="", login=login, witnesses=witnesses)


async def test_one_answer_of_many_is_enough(asked: list[tuple[str, int]]) -> None:
    assert await reachability.anybody([machine("down", witnesses=(Address("up"), Address("other")))])
    assert ("up", 22) in asked


async def test_the_machines_themselves_and_their_witnesses_are_asked_once_each(asked: list[tuple[str, int]]) -> None:
    beside = (Address("b"), Address("c"))
    assert not await reachability.anybody([machine("a", witnesses=beside), machine("d", witnesses=beside)])
    assert sorted(asked) == [("a", 2200), ("b", 22), ("c", 22), ("d", 2200)]


async def test_of_those_behind_others_the_first_on_the_way_is_asked(
    asked: list[tuple[str, int]], tmp_path: Path
) -> None:
    (config := tmp_path / "config").write_text("Host box\n  HostName 10.9.8.7\n  Port 77\n")
    assert not await reachability.anybody(
        [machine("far", jump="ops@gate:23,inner"), machine("box", config=(str(config),))]
    )
    assert sorted(asked) == [("10.9.8.7", 2200), ("gate", 23)]


async def test_a_configuration_that_cannot_be_read_asks_nobody(asked: list[tuple[str, int]]) -> None:
    assert not await reachability.anybody([machine("up", config=("/no/such/config",))])
    assert asked == []


async def test_of_a_large_pool_some_are_asked(asked: list[tuple[str, int]]) -> None:
    assert not await reachability.anybody([machine(f"n{number}") for number in range(1000)])
    assert len(asked) == reachability.AT_MOST


async def test_pools_on_this_computer_have_nobody_to_ask() -> None:
    assert not await reachability.anybody([Machine(MachineId("m"), Address(path="/run/s"), "")])
    assert not await reachability.anybody([Machine(MachineId("m"), None, "")])


async def test_this_computer_is_no_witness_of_its_network() -> None:
    """The near end of a tunnel answers whatever is beyond it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not await reachability.answers("127.0.0.1", server.getsockname()[1])
    assert not await reachability.answers("localhost", 1)


async def test_a_name_that_nobody_knows_is_no_answer() -> None:
    assert not await reachability.answers("no-such-host.invalid", 22)


async def test_a_host_on_the_way_answers_only_where_it_lets_connections_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "_is_here", lambda _family, _address: False)  # as if it were another computer
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # nobody listens there yet, and nobody else gets it
        port = server.getsockname()[1]
        beside = Machine(MachineId("m"), Address("127.0.0.1", port), "")
        behind = [
            Machine(MachineId("m"), Address("far"), "", login=Login(jump=f"127.0.0.1:{port}")),
            Machine(MachineId("m"), Address(command=("srun",)), "", login=Login(jump=f"127.0.0.1:{port}")),
        ]
        assert await reachability.anybody([beside])
        for each in behind:
            assert not await reachability.anybody([each])
        server.listen()
        for each in (beside, *behind):
            assert await reachability.anybody([each])
