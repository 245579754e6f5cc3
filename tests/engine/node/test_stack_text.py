"""Dumps of `faulthandler` become what people read."""

from __future__ import annotations

from outrider.engine.node import stack_text
from outrider.engine.node.call import Caller
from outrider.engine.node.stack_text import bounded, of_one, of_process, of_thread, parsed, without_stack

OURS = stack_text._OURS
DUMP = f"""Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f02 (most recent call first):
  File "{OURS}engine/node/worker.py", line 190 in _read
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f03 (most recent call first):
  File "{OURS}engine/checkpoint/store.py", line 3 in save
  File "/home/u/train.py", line 20 in step
  File "/home/u/train.py", line 9 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "{OURS}engine/scripts/program.py", line 99 in run_script
  File "{stack_text._CALL}", line 77 in run
  File "{OURS}engine/node/worker.py", line 130 in _run
  ...
"""


def test_the_file_below_which_the_users_code_is_is_the_one_that_calls_it() -> None:
    assert Caller.run.__code__.co_filename == stack_text._CALL


def test_the_tasks_thread_comes_first_without_our_frames_and_our_threads_are_left_out() -> None:
    assert of_process(parsed(DUMP)) == (
        f'  File "{OURS}engine/checkpoint/store.py", line 3 in save\n'
        '  File "/home/u/train.py", line 20 in step\n'
        '  File "/home/u/train.py", line 9 in <module>\n'
        "thread 32513:\n"
        '  File "/usr/lib/python3.11/threading.py", line 982 in run\n'
        '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap'
    )


def test_a_thread_that_has_written_its_own_frames_and_one_that_has_not() -> None:
    (one,) = of_one(7, 'Stack (most recent call first):\n  File "a.py", line 3 in f\n  ...\n')
    assert one.frames == ('  File "a.py", line 3 in f', "  ...")
    assert of_one(8, "") == of_one(8, "Stack (most recent call first):\n") == []
    assert of_process([one, without_stack(9, "it blocks signals")]) == (
        '  File "a.py", line 3 in f\n  ...\nthread 9:\n  (no stack: it blocks signals)'
    )


def test_one_thread_of_several_tasks() -> None:
    assert of_thread(parsed(DUMP), 0x7F01).startswith('  File "/usr/lib/python3.11/threading.py", line 982')
    assert of_thread(parsed(DUMP), 0x9999) == ""


def test_what_is_no_dump_has_no_threads() -> None:
    assert parsed("") == []
    assert parsed('  File "x", line 3 in f\nFatal Python error\n\x00') == []
    assert of_process(parsed("Thread 0x1 (most recent call first):\n")) == "  (in Outrider's own code)"


def test_a_long_text_says_what_is_left_out() -> None:
    text = "\n".join(f"line {number}" for number in range(1000))
    cut = bounded(text, 500)
    assert len(cut) <= 500
    kept, _, told = cut.rpartition("\n")
    assert text.startswith(kept)
    assert told == f"... and {1000 - len(kept.splitlines())} more lines"
    assert bounded("short", 500) == "short"
    assert len(bounded("x" * 1000, 500)) <= 500
