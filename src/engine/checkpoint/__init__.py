"""Checkpoints: what tasks save, and the state from which they resume.

Ranks agree on a step through the storage (`participant`, `resume_vote`). States go to a disk, to object storage or into
the memory of other nodes (`store`, `object_store`, `memory_saves`), in the background (`background_saves`).

Public names: `checkpoint.checkpoint`, `checkpoint.Checkpoint`, `store.checked_root`.
Open first: `checkpoint.py`, then `records.py` for the decisions.
"""
