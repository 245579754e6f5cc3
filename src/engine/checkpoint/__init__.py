"""Checkpoints: the states that tasks save, and from which they resume.

Ranks agree on a step through the storage (`agreement`). States are written to a disk, to object storage or to the
memory of other nodes (`store`, `object_store`, `memory_saves`), in the background (`background_saves`).

Public names: `checkpoint.checkpoint`, `checkpoint.Checkpoint`, `store.checked_root`, `store.VARIABLE`.
Open first: `checkpoint.py`, then `records.py` for the decisions.
"""

__all__ = ["checkpoint", "store"]
