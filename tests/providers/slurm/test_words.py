"""Durations, lists of nodes, devices and reasons: Slurm's words as they are read and written."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.base import AcceleratorRequest, LaunchRequest
from outrider.providers.errors import BadRequest, QuotaExceeded
from outrider.providers.slurm import notation, squeue
from outrider.providers.slurm.notation import expand, gres_of, resource_arguments, seconds_of, text_of
from outrider.providers.slurm.squeue import reason_of

# --- durations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("10:30", 630),
        ("1:00:00", 3600),
        ("2-0", 172800),
        ("1-2:03", 93780),
        ("1-02:03:04", 93784),
        ("UNLIMITED", math.inf),
    ],
)
def test_a_duration_is_read_as_sbatch_reads_it(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "1h", "1:2:3:4", "-1", "1-", "1.5", "INVALID", "\u0661"])
def test_what_is_no_duration_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(ValueError, match="days-hours:minutes:seconds"):
        seconds_of(text)
    assert notation.read_or_none(text) is None


def holds_duration_1(seconds: float) -> None:
    assert seconds_of(notation.text_of(seconds)) == math.ceil(seconds)


@given(st.floats(0, 1e8))
def test_a_duration_is_the_same_when_it_is_read_again(seconds: float) -> None:
    """DURATION-1."""
    holds_duration_1(seconds)


def test_reading_again_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """DURATION-1: a writer that rounds down is noticed."""
    monkeypatch.setattr(notation, "text_of", lambda seconds: text_of(int(seconds)))
    with pytest.raises(AssertionError):
        holds_duration_1(1.5)


# --- lists of nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("c[0-2,5],gpu07", ["c0", "c1", "c2", "c5", "gpu07"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("c0", ["c0"]),
        ("", []),
    ],
)
def test_a_list_is_expanded_in_its_order(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["c[0-2", "c]0[", "c[a-b]", "c[2-1]", "c[[0]]", "c[0-99999999]", "a[0-999]b[0-999]"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each in words of its own
        expand(text)


def holds_hostlist_1(numbers: list[int], width: int) -> None:
    written = ",".join(f"{number:0{width}}" for number in numbers)
    assert notation.expand(f"c[{written}]") == [f"c{number:0{width}}" for number in numbers]


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20), st.integers(1, 5))
def test_order_and_leading_zeros_are_kept(numbers: list[int], width: int) -> None:
    """HOSTLIST-1."""
    holds_hostlist_1(numbers, width)


@pytest.mark.parametrize(
    "broken", [lambda text: sorted(expand(text)), lambda text: [f"c{int(n[1:])}" for n in expand(text)]]
)
def test_order_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch, broken: object) -> None:
    """HOSTLIST-1: a list that is sorted, or loses its zeros, is noticed."""
    monkeypatch.setattr(notation, "expand", broken)
    with pytest.raises(AssertionError):
        holds_hostlist_1([5, 1], 3)


# --- what nodes must have ---------------------------------------------------------------------------------------------


def test_a_request_is_said_in_sbatchs_words() -> None:
    request = LaunchRequest("", 2, accelerator=AcceleratorRequest("A100", 4), vcpus=8, memory_gb=1.5, disk_gb=10)
    said = ["--gres=gpu:a100:4", "--cpus-per-task=8", "--mem=1500M", "--tmp=10G"]
    assert resource_arguments(request, None) == said
    assert resource_arguments(request, "gpu:2")[0] == "--gres=gpu:2"
    assert resource_arguments(LaunchRequest("", 1), None) == []


def test_what_slurm_cannot_be_asked_for_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadRequest, match=r"architecture: .*constraint="):
        resource_arguments(LaunchRequest("", 1, architecture="arm64"), None)
    with pytest.raises(BadRequest, match="no name of a type") as caught:
        gres_of(AcceleratorRequest("A100 --wrap=x"))
    assert "sinfo" in caught.value.advice


# --- reasons ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Priority",
        "Resources",
        "(Resources)",
        "AssocGrpCpuLimit",
        "QOSMaxJobsPerUserLimit",
        "AssocGrpCPURunMinutesLimit",
        "QOSGrpBilling",
        "QOSGrpBillingRunMinutes",
        "AssocGrpBilling",
        "QOSMaxBillingPerUser",
        "AssociationJobLimit",
        "PartitionNodeLimit",
        "PartitionConfig",
    ],
)
def test_a_reason_to_wait_is_none_to_give_up(text: str) -> None:
    assert not reason_of(text).never_ends


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("PartitionTimeLimit", BadRequest),
        ("BadConstraints", BadRequest),
        ("QOSMaxWallDurationPerJobLimit", QuotaExceeded),
        ("QOSMaxGRESPerJob", QuotaExceeded),
        ("QOSMaxBillingPerJob", QuotaExceeded),
        ("AssocGrpBillingMinutes", QuotaExceeded),
        ("AssocGrpCPUMinutesLimit", QuotaExceeded),
    ],
)
def test_a_reason_that_never_ends_is_an_error_with_slurms_word(text: str, kind: type[Exception]) -> None:
    error = reason_of(text).error("4711")
    assert type(error) is kind
    assert error.code == text
    assert f"job 4711 and will never start it ({text})" in str(error)
    assert error.retry_after_s is None
    assert error.advice


def holds_reason_1(text: str) -> None:
    assert not squeue.reason_of(text).never_ends


UNKNOWN = re.compile(r"New[A-Za-z]{0,20}")


@given(st.from_regex(UNKNOWN, fullmatch=True))
def test_an_unknown_reason_is_waited_with(text: str) -> None:
    """REASON-1."""
    holds_reason_1(text)


def test_waiting_with_the_unknown_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """REASON-1: whoever takes what is unknown to be for ever is noticed."""
    monkeypatch.setattr(squeue, "reason_of", lambda text: squeue.Reason(text, text, "impossible"))
    with pytest.raises(AssertionError):
        holds_reason_1("NewReason")


def test_a_partition_that_is_too_small_for_minutes_is_an_error_with_slurms_word() -> None:
    error = reason_of("PartitionNodeLimit").error("4711")
    assert type(error) is BadRequest
    assert "job 4711 and has not started it for minutes (PartitionNodeLimit)" in str(error)
    assert "fewer nodes" in error.advice
    assert error.retry_after_s is None
