"""`TaskStack`: the stacks of a task's processes at the time of a request."""

from __future__ import annotations

import re

from ...lazy_dataclass import dataclass

_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")


@dataclass(frozen=True, slots=True, repr=False)
class TaskStack:
    """The stacks of a task, or of a rank of a broadcast, as text. The printed form begins with the name of the task.

    Attributes:
        rank: The rank; 0 outside of broadcasts.
        ranks: The number of ranks; 1 outside of broadcasts.
        node: The number of the node.
        function: The name of the function.
        job: The number of the job.
        generation: The generation; 0 outside of broadcasts.
        text: The frames of the task's thread, innermost first, in the format of `faulthandler`; then other threads and
            forked processes, each below a heading. If the stack is missing, a line with the reason.
    """

    rank: int
    ranks: int
    node: int
    function: str
    job: int
    generation: int
    text: str

    @property
    def where(self) -> str:
        """The innermost line of the user's own code, such as ``step (train.py:20)``; empty if there is no such line."""
        return where(self.text)

    def __str__(self) -> str:
        return f"{self._whose()}:\n{self.text}"

    def __repr__(self) -> str:
        return f"<{self._whose()}: {self.where or self.text.strip().partition(chr(10))[0] or 'no stack'}>"

    def _whose(self) -> str:
        if self.generation:
            return (
                f"rank {self.rank} of {self.ranks} of {self.function} on node {self.node}, generation {self.generation}"
            )
        return f"{self.function} #{self.job} on node {self.node}"


def where(text: str) -> str:
    """Return the innermost line of a stack that is not in a library; if all lines are, the innermost one."""
    frames = [match for line in text.split("\n") if (match := _FRAME.fullmatch(line))]
    users = [frame for frame in frames if not any(each in frame[1] for each in _LIBRARIES)]
    for frame in users or frames:
        return f"{frame[3]} ({frame[1].rpartition('/')[2]}:{frame[2]})"
    return ""
