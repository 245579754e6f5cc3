"""Names of similar libraries, and what stands for each of them here."""

from __future__ import annotations

_CLOUDS = "machines come from Local, SSH and AWS, or from a provider of your own"
_PROGRAM = "a pool lives in your program, which you start with Python"
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
    "PipIndex": "Image(pip_indexes=[...]) takes URLs and folders",
    "DockerImage": "hosts get what outrider.Image says, and no container is made",
    "HealthChecker": "silent nodes are replaced, and tasks report ill ones by a file: see the guide on lost nodes",
    "redirect_output": "did you mean outrider.stdout?",
    "main": _PROGRAM,
    "app": _PROGRAM,
    "is_head": "ask outrider.instance_info().is_head in a task",
    "rank": "ask outrider.instance_info().rank in a task",
    "world_size": "ask outrider.instance_info().world_size in a task",
    **dict.fromkeys(("VastAI", "RunPod", "GCP", "Azure", "Lambda", "Kubernetes", "Slurm", "TensorDock"), _CLOUDS),
    **dict.fromkeys(("Hyperstack", "JarvisLabs", "Novita", "Salad", "Scaleway", "Thunder", "Verda", "Vultr"), _CLOUDS),
    **dict.fromkeys(("dict", "set", "counter", "queue", "lock", "barrier"), _COLLECTIONS),
    **dict.fromkeys(("Dict", "Set", "Counter", "Queue", "Lock", "Barrier"), _COLLECTIONS),
}
