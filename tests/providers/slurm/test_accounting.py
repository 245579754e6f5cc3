"""What sacct's answers say of the use of nodes. The long ones are of Slurm 22.05."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.slurm import accounting
from outrider.providers.slurm.accounting import FIELDS, JobUse, NodeUse, command, cpu_seconds, read, size_bytes

MB = 1024**2
ONE_NODE = """\
2|COMPLETED|100|3|c0|1|billing=1,cpu=1,mem=1000M,node=1|1000M|00:00.112||
2.batch|COMPLETED|100|3|c0|1|cpu=1,mem=1000M,node=1||00:00.013|10940416|cpu=00:00:00,energy=0,mem=10940416,vmem=22
2.extern|COMPLETED|100|3|c0|1|billing=1,cpu=1,mem=1000M,node=1||00:00.001|1576960|cpu=00:00:00,mem=1576960,vmem=7
2.0|COMPLETED|101|2|c0|1|cpu=1,mem=1000M,node=1||00:00.097|3162112|cpu=00:00:00,energy=0,mem=3162112,vmem=1464
"""
SHRUNK = """\
1|RESIZING|100|10|c[0-2]|3|billing=3,cpu=3,mem=3000M,node=3|3000M|00:00:00||
1.batch|RESIZING|100|10|c0|1|cpu=1,mem=1000M,node=1||00:00:00||
1.extern|RESIZING|100|10|c[0-2]|3|billing=3,cpu=3,mem=3000M,node=3||00:00:00||
1.0|RESIZING|101|9|c1|1|cpu=1,mem=1000M,node=1||00:00:00||
1.1|RESIZING|101|9|c2|1|cpu=1,mem=1000M,node=1||00:00:00||
1|COMPLETED|110|56|c[0,2]|2|billing=2,cpu=2,mem=2000M,node=2|3000M|00:00:00||
"""


def line(step: str = "", **values: str) -> str:
    usual = {
        "JobIDRaw": f"7{step}",
        "State": "COMPLETED",
        "Start": "100",
        "ElapsedRaw": "50",
        "NodeList": "c[0-1]",
        "AllocCPUS": "8",
        "AllocTRES": "billing=8,cpu=8,mem=4000M,node=2" if not step else "",
        "ReqMem": "4000M",
        "TotalCPU": "00:00:00",
    }
    return "|".join({**usual, **values}.get(name, "") for name in FIELDS)


def step(number: str, node: str, cpu: str, mem: str = "", **values: str) -> str:
    used = {"TRESUsageInTot": f"cpu=00:00:01,mem={mem}"} if mem else {}
    return line(f".{number}", NodeList=node, AllocCPUS="4", TotalCPU=cpu, **used, **values)


def test_a_job_of_one_node_has_seffs_figures():
    """seff: 0.111 s of 3 core-seconds; 10940416 bytes, of the batch step, which used most, of 1000 MB."""
    found = read(ONE_NODE)["2"]
    assert found == JobUse("2", {"c0": NodeUse("c0", 3.0, 1.0, 0.013 + 0.001 + 0.097, 10940416, 1000 * MB)}, True)


def test_steps_count_for_their_node():
    """Of those on several nodes nobody knows what they used on which."""
    rows = [
        line(),
        step("batch", "c0", "00:00.500", "5000000"),
        step("extern", "c[0-1]", "00:09.000", "9000000"),
        step("0", "c0", "00:10.000", "400000000"),
        step("1", "c1", "01:40.000", "800M"),
        step("2", "c0", "00:02.250", "7M"),
    ]
    assert read("\n".join(rows))["7"].nodes == {
        "c0": NodeUse("c0", 50.0, 4.0, 12.75, 400000000, 2000 * MB),
        "c1": NodeUse("c1", 50.0, 4.0, 100.0, 800 * MB, 2000 * MB),
    }


def test_a_node_without_a_counted_step_is_left_out():
    """As one that lost its power: that it used nothing is not known."""
    assert list(
        read("\n".join([line(), step("batch", "c0", "00:01.000"), step("0", "c1", "00:01.000")]))["7"].nodes
    ) == ["c1"]


def test_memory_that_is_not_counted_or_limited_is_unknown():
    rows = [line(AllocTRES="cpu=8,node=2", ReqMem="0"), step("0", "c0", "00:01.000")]
    assert read("\n".join(rows))["7"].nodes["c0"] == NodeUse("c0", 50.0, 4.0, 1.0, None, None)


@pytest.mark.parametrize(
    ("said", "megabytes"),
    [("4000M", 2000), ("4G", 2048), ("4000Mn", 4000), ("500Mc", 2000), ("4000", 2000), ("", None), ("?", None)],
)
def test_the_memory_asked_for_comes_from_reqmem_where_nothing_says_what_was_given(said, megabytes):
    rows = [line(AllocTRES="", ReqMem=said), step("0", "c0", "00:01.000")]
    assert read("\n".join(rows))["7"].nodes["c0"].memory_total_bytes == (megabytes and megabytes * MB)


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "PENDING"])
def test_a_job_is_complete_when_nothing_of_it_is_counted_as_running(state):
    ends = [line(), step("0", "c0", "00:01.000")]
    assert read("\n".join(ends))["7"].complete
    assert not read("\n".join([line(State=state), ends[1]]))["7"].complete
    assert not read("\n".join([ends[0], step("0", "c0", "00:00:00", State=state)]))["7"].complete
    assert read("\n".join([line(State="CANCELLED by 1000"), ends[1]]))["7"].complete


def test_steps_that_ran_when_their_job_was_shrunk_have_no_figures():
    """SACCT-1"""
    assert read(SHRUNK) == {"1": JobUse("1", {}, True, shrunk=True)}
    assert not read("\n".join(SHRUNK.splitlines()[:-1]))["1"].complete


def test_a_node_that_came_through_a_change_of_size_has_the_time_of_both():
    """SACCT-1: the step began after it."""
    later = f"{SHRUNK}1.3|COMPLETED|111|5|c2|1|cpu=1,mem=1000M,node=1||00:33.000|4096|cpu=0,mem=4096\n"
    rows = [each for each in later.splitlines() if not each.startswith("1.1")]
    assert read("\n".join(rows))["1"].nodes == {"c2": NodeUse("c2", 66.0, 1.0, 33.0, 4096, 1000 * MB)}


def test_several_jobs_of_one_pool_are_told_apart():
    other = "8" + line()[1:] + "\n8" + step("0", "c1", "00:03.000")[1:]
    found = read(f"{ONE_NODE}\n{line()}\n{step('0', 'c0', '00:01.000')}\n{other}")
    assert {job: list(use.nodes) for job, use in found.items()} == {"2": ["c0"], "7": ["c0"], "8": ["c1"]}


def test_an_older_job_with_the_same_number_is_not_this_one():
    """SACCT-2"""
    old = [line(Start="10", ElapsedRaw="900"), step("0", "c0", "10:00.000", Start="11")]
    new = [line(), step("0", "c0", "00:01.000", Start="101")]
    assert read("\n".join(old + new)) == read("\n".join(new))


def test_a_job_of_an_array_is_known_by_its_own_number():
    assert "JobIDRaw" in FIELDS  # "2_1" would be its JobID
    assert read(line().replace("7|", "7_1|", 1)) == {}


def test_the_command_asks_for_raw_figures_of_all_jobs_at_once():
    asked = command(["7", "9"])
    assert asked[:5] == ["env", "SLURM_TIME_FORMAT=%s", "sacct", "--jobs", "7,9"]
    assert {"--noheader", "--parsable2", "--noconvert", "--duplicates"} <= set(asked)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("00:01.250", 1.25),
        ("01:02:03", 3723.0),
        ("1-02:03:04", 93784.0),
        ("10:00.5", 600.5),
        ("00:00:00", 0.0),
        ("", None),
        ("INVALID", None),
    ],
)
def test_processor_times_are_read(said, seconds):
    assert cpu_seconds(said) == seconds


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("12345K", 12345 * 1024),
        ("1.5G", 1536 * MB),
        ("3T", 3 * 1024**4),
        ("77", 77),
        ("0", None),
        ("", None),
        ("x", None),
    ],
)
def test_sizes_are_read(said, expected):
    assert size_bytes(said, "") == expected


WORDS = ["", "7", "7.0", "c[0-", "c0", "RESIZING", "1-", "9" * 30, "\u00b2", "mem=1M,=,", "\x00"]


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=len(FIELDS), max_size=len(FIELDS))))
def test_no_answer_raises(rows):
    """SACCT-3"""
    read("\n".join("|".join(each) for each in rows))


GUARDS = {
    "SACCT-1": ("RESIZED", "never", test_steps_that_ran_when_their_job_was_shrunk_have_no_figures),
    "SACCT-2": ("_newest", lambda rows: rows, test_an_older_job_with_the_same_number_is_not_this_one),
    "SACCT-3": ("_number", float, lambda: read("|".join(["7", *[""] * (len(FIELDS) - 1)]))),
}


@pytest.mark.parametrize("rule", GUARDS)
def test_reading_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    name, broken, holds = GUARDS[rule]
    holds()
    monkeypatch.setattr(accounting, name, broken)
    with pytest.raises((AssertionError, ValueError)):
        holds()
