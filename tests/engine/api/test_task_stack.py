"""A stack reads well: whose it is, and the innermost line of the user's own."""

from __future__ import annotations

from outrider import TaskStack

TEXT = """  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/home/u/train.py", line 20 in step
  File "/home/u/train.py", line 31 in train"""


def test_a_rank_is_named_with_its_line() -> None:
    stack = TaskStack(2, 4, 1, "train", 3, 1, TEXT)
    assert stack.where == "step (train.py:20)"
    assert repr(stack) == "<rank 2 of 4 of train on node 1, generation 1: step (train.py:20)>"
    assert str(stack) == f"rank 2 of 4 of train on node 1, generation 1:\n{TEXT}"


def test_a_task_is_named_by_its_job_and_without_a_stack_by_the_reason() -> None:
    assert (
        repr(TaskStack(0, 1, 5, "f", 7, 0, "no stack: it blocks signals"))
        == "<f #7 on node 5: no stack: it blocks signals>"
    )
    assert repr(TaskStack(0, 1, 5, "f", 7, 0, "")) == "<f #7 on node 5: no stack>"


def test_where_all_is_a_librarys_the_innermost_counts() -> None:
    text = '  File "/usr/lib/python3.11/queue.py", line 5 in get\n  File "<frozen runpy>", line 1 in run'
    assert TaskStack(0, 1, 0, "f", 1, 0, text).where == "get (queue.py:5)"
