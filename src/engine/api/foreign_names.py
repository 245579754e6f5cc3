"""Names of similar libraries, and what stands for each of them here."""

from __future__ import annotations

_CLOUDS = "machines come from Local, SSH and AWS, or from a provider of your own"
_COLLECTIONS = "there are no shared collections: return values, and use checkpoints for what has to survive"
MEANING = {
    "function": "did you mean outrider.compute?",
    "remote": "did you mean outrider.compute?",
    "task": "did you mean outrider.compute?",
    "Client": "did you mean outrider.Pool?",
    "Cluster": "did you mean outrider.Pool?",
    "Executor": "did you mean outrider.Pool?",
    "init": "open a pool by `with outrider.Pool(...) as pool`",
    "get": "await the job that pool.submit gives, or ask for its result()",
    "Session": "a pool needs no session: open it by `with outrider.Pool(...) as pool`",
    "Options": "options of a function are @compute(timeout=...), those of a pool are Pool's own",
    "Container": "did you mean outrider.Local? Its nodes are processes of this computer",
    "Storage": "did you mean outrider.Volume?",
    "is_head": "ask outrider.instance_info().is_head in a task",
    "rank": "ask outrider.instance_info().rank in a task",
    "world_size": "ask outrider.instance_info().world_size in a task",
    **dict.fromkeys(("VastAI", "RunPod", "GCP", "Azure", "Lambda", "Kubernetes", "Slurm", "TensorDock"), _CLOUDS),
    **dict.fromkeys(("counter", "queue", "lock", "barrier", "Counter", "Queue", "Lock", "Barrier"), _COLLECTIONS),
}
