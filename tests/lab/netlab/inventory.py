"""What of a lab is there: links, processes, mounts, control groups, folders. After its end: nothing."""

from __future__ import annotations

from .state import State


def leftovers(number: int) -> list[str]:
    """One line for each thing that bears this lab's number."""
    state = State(number)
    found = [f"link {link}" for link in state.links()]
    found += [f"mount {point}" for point in state.mounts()]
    found += [f"control group {group}" for group in state.groups()]
    found += [f"process {process.pid}" for process in state.noted() if process.alive]
    if state.folder.exists():
        found.append(f"folder {state.folder}")
    return found
