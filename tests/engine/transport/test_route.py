"""Which errors of a connection are tried again, and which end a starting pool."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

import asyncssh
import pytest

from outrider.engine.api.errors import BootstrapError, OutriderError
from outrider.engine.image.hints import bootstrap_error
from outrider.engine.transport.route import ExecutorGone, refusal
from outrider.engine.wire.codec import ProtocolError
from outrider.providers.base import Address, Machine, MachineId

MACHINE = Machine(MachineId("pool/gpu"), Address("gpu"), "")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset"),
        TimeoutError(),
        OSError(28, "No space left on device"),
        ssl.SSLError("eof"),
        asyncio.IncompleteReadError(b"", 4),
        asyncssh.ConnectionLost("lost"),
        asyncssh.ChannelOpenError(2, "open failed"),
    ],
)
def test_failure_from_outside_is_tried_again(error: Exception) -> None:
    failed = refusal(MACHINE, error)
    assert (failed.fatal, failed.systematic, failed.futile) == (False, False, False)


@pytest.mark.parametrize(
    "error", [TypeError("an argument is missing"), KeyError("socket"), AssertionError("order"), AttributeError("x")]
)
def test_defect_of_ours_ends_the_start_with_its_cause(error: Exception) -> None:
    failed = refusal(MACHINE, error)
    assert failed.systematic
    assert isinstance(failed.__cause__, OutriderError)
    assert failed.__cause__.__cause__ is error
    assert f"by a defect of Outrider: report it ({type(error).__name__}" in str(failed)


@pytest.mark.parametrize(
    ("error", "systematic"),
    [
        (ExecutorGone("gone"), False),
        (ProtocolError("no frame"), True),
        (bootstrap_error("packages", "no solution found"), True),
        (bootstrap_error("probe", "there is no Python"), False),
    ],
)
def test_what_a_machine_lacks_is_not_tried_again(error: Exception, systematic: bool) -> None:
    failed = refusal(MACHINE, error)
    assert (failed.fatal, failed.systematic) == (True, systematic)


def kinds(errors: Sequence[BootstrapError]) -> set[str]:
    return {refusal(MACHINE, error.at(f"machine-{number}", number)).kind for number, error in enumerate(errors)}


def test_same_failure_on_two_machines_is_of_one_kind() -> None:
    """FLEET-14"""
    lacks = [bootstrap_error("probe", "there is no Python", exit_status=1, log=[str(number)]) for number in range(2)]
    assert len(kinds(lacks)) == 1
    assert len(kinds([*lacks, bootstrap_error("run", "it ended with exit status 1", exit_status=1)])) == 2
    assert kinds(lacks) != {""}
