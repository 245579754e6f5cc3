"""Names of methods and options in similar libraries, and their equivalents in Outrider, for error messages."""

from __future__ import annotations

from collections.abc import Collection

from ...providers.shared.option_names import closest

_CLOUDS = "machines come from Local, SSH, Containers, Slurm, AWS, GCP and other clouds, or from a provider of your own"
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
    "put": "put a large value into a pool by pool.put(value)",
    "Session": "a pool needs no session: open it by `with outrider.Pool(...) as pool`",
    "Options": "options of a function are @compute(timeout=...), those of a pool are Pool's own",
    "Container": "did you mean outrider.Containers? Nodes of outrider.Local are processes of this computer",
    "Storage": "did you mean outrider.Volume?",
    "PipIndex": "Image(pip_indexes=[...]) takes URLs and folders",
    "DockerImage": "nodes that are containers have the image of outrider.Image(container=...)",
    "HealthChecker": "silent nodes are replaced, and tasks report ill ones by a file: see the guide on lost nodes",
    "redirect_output": "did you mean outrider.stdout?",
    "main": _PROGRAM,
    "app": _PROGRAM,
    "is_head": "ask outrider.instance_info().is_head in a task",
    "rank": "ask outrider.instance_info().rank in a task",
    "world_size": "ask outrider.instance_info().world_size in a task",
    "VastAI": "did you mean outrider.Vast?",
    **dict.fromkeys(("Azure", "JarvisLabs", "Kubernetes", "Novita", "Salad", "Scaleway"), _CLOUDS),
    **dict.fromkeys(("TensorDock", "Thunder", "Verda", "Vultr"), _CLOUDS),
    **dict.fromkeys(("dict", "set", "counter", "queue", "lock", "barrier"), _COLLECTIONS),
    **dict.fromkeys(("Dict", "Set", "Counter", "Queue", "Lock", "Barrier"), _COLLECTIONS),
}

_EACH_ITEM = "pool.map(f, items) calls f for each item, and takes any iterable"
OF_POOLS = {  # names of methods of executors, and of pools in other libraries
    "starmap": "write pool.gather(*(f(*each) for each in items)), or pool.map(f, items) with an f of one tuple",
    "starmap_async": "write pool.as_completed(f(*each) for each in items)",
    "imap": _EACH_ITEM,
    "map_async": _EACH_ITEM,
    "imap_unordered": "write pool.map(f, items, ordered=False)",
    "apply": "write pool.run(f(...))",
    "apply_async": "write pool.submit(f(...))",
    "execute": "write pool.run(f(...))",
    "call": "write pool.run(f(...))",
    "scatter": "write pool.put(value)",
    **dict.fromkeys(("shutdown", "terminate", "join", "stop", "kill"), "it ends with its block, or by pool.close()"),
    **dict.fromkeys(("start", "connect", "up", "launch"), "it opens with its block, or by pool.open()"),
    **dict.fromkeys(("scale", "resize", "add_nodes"), "its size is Pool(nodes=(min, max)), by its load"),
}

_SUBMITTED = "hand a call of it to a pool: {0}(...) >> pool waits for the result, pool.submit({0}(...)) does not"
_CHANGED = "its options are changed by {0}.with_(timeout=...)"
_PLAIN = "did you mean {0}.function? {0}.local(...) calls it here"
OF_FUNCTIONS = {
    **dict.fromkeys(("remote", "delay", "spawn", "submit", "apply_async", "send", "enqueue", "start"), _SUBMITTED),
    **dict.fromkeys(("map", "starmap", "for_each", "map_async"), "write pool.map({0}, items)"),
    **dict.fromkeys(("with_options", "override", "configure", "set", "bind", "opts"), _CHANGED),
    **dict.fromkeys(("fn", "func", "raw", "original", "get_raw_f", "run"), _PLAIN),
}


def meant_of_function(function: str, name: str, options: Collection[str], known: Collection[str]) -> str:
    """Return a suggestion for the attribute ``name``, which a `@compute` function does not have.

    The suggestion is one of the ``options``, the equivalent of another library's name, or one of the ``known`` names.
    An empty text means no suggestion.
    """
    option = name.removeprefix("with_").removeprefix("set_")
    if option in options:
        return f"write {function}.with_({option}=...)."
    if name in OF_FUNCTIONS:
        return f"{OF_FUNCTIONS[name].format(function)}."
    close = closest(name, known) or (closest(option, options) if option != name else "")
    return (
        f"did you mean {close!r}?"
        if close in known
        else f"did you mean {function}.with_({close}=...)?"
        if close
        else ""
    )
