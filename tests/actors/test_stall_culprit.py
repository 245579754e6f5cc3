"""The rank that the others wait for is named where its stack or its silence tells it, and else nobody is."""

from __future__ import annotations

import pytest

from outrider.actors.stalls import Silent, culprit

PACKAGES = "/v/lib/python3.11/site-packages"
REDUCE = f"""  File "{PACKAGES}/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "{PACKAGES}/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/u/train.py", line 20 in step
  File "/home/u/train.py", line 31 in train"""
BACKWARD = f"""  File "{PACKAGES}/torch/autograd/graph.py", line 825 in _engine_run_backward
  File "{PACKAGES}/torch/_tensor.py", line 581 in backward
  File "/home/u/train.py", line 21 in step"""
JAX = f"""  File "{PACKAGES}/jax/experimental/multihost_utils.py", line 80 in sync_global_devices
  File "/home/u/train.py", line 22 in step"""
LOAD = f"""  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "{PACKAGES}/torch/utils/data/dataloader.py", line 1251 in _get_data
  File "/home/u/train.py", line 18 in step"""
SLEEP = '  File "/home/u/train.py", line 12 in load\n  File "/home/u/train.py", line 18 in step'
FORWARD = f"""  File "/home/u/model.py", line 5 in forward
  File "{PACKAGES}/torch/nn/modules/module.py", line 1750 in _call_impl
  File "{PACKAGES}/torch/nn/parallel/distributed.py", line 1637 in forward
  File "/home/u/train.py", line 19 in step"""
THREADS = f'{SLEEP}\nthread 32513:\n  File "{PACKAGES}/torch/distributed/store.py", line 1 in wait'
ITEM = '  File "/home/u/train.py", line 25 in step'


def of(*texts: str, quiet_s: float = 9.0) -> list[Silent]:
    return [Silent(rank, text, quiet_s) for rank, text in enumerate(texts)]


@pytest.mark.parametrize("waits", [REDUCE, BACKWARD, JAX])
@pytest.mark.parametrize("stuck", [LOAD, SLEEP, FORWARD, THREADS])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_one_outside_of_the_collective_is_named(waits: str, stuck: str, ranks: int) -> None:
    found = culprit(of(*[waits] * (ranks - 1), stuck))
    assert found is not None
    assert found.rank == ranks - 1
    assert "the others wait in a collective" in found.why


def test_the_reason_names_the_users_line() -> None:
    assert culprit(of(REDUCE, SLEEP)) == (1, "it is in load (train.py:12), and the others wait in a collective")


def test_where_no_collective_is_known_the_one_at_another_line_is_named() -> None:
    assert culprit(of(ITEM, ITEM, SLEEP)) == (
        2,
        "it is in load (train.py:12), and all others in step (train.py:25)",
    )
    other = REDUCE.replace("line 20 in step", "line 24 in evaluate")
    assert culprit(of(REDUCE, other, REDUCE)) == (
        1,
        "it is in evaluate (train.py:24), and all others in step (train.py:20)",
    )


@pytest.mark.parametrize(
    "texts",
    [
        (REDUCE, REDUCE),  # all wait, for a rank that nobody has
        (SLEEP, LOAD, REDUCE),  # two are elsewhere, and not at one line
        (ITEM, SLEEP),  # either may be the one
        (ITEM, ITEM, SLEEP, SLEEP),
        ("no stack: it blocks signals", SLEEP, REDUCE),
        ("", "", ""),
        ("\x1b[2Jnonsense", "  File x", REDUCE),
    ],
)
def test_nobody_is_named_where_the_stacks_do_not_tell(texts: tuple[str, ...]) -> None:
    assert culprit(of(*texts)) is None


def test_who_fell_silent_clearly_first_is_named_where_the_stacks_do_not_tell() -> None:
    silent = [Silent(0, "", 10.0), Silent(1, "", 14.0), Silent(2, "", 10.5)]
    assert culprit(silent) == (1, "it fell silent 3.5 s before the next one")
    assert culprit([Silent(0, "", 10.0), Silent(1, "", 11.0), Silent(2, "", 10.5)]) is None


def test_a_rank_alone_is_nobodys_culprit() -> None:
    assert culprit(of(SLEEP)) is None
    assert culprit([]) is None
