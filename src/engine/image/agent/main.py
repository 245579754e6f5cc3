"""The bootstrap's half on the node: it reads a plan, carries it out, and reports progress. Idempotent.

    python3 -I <runtime> agent

The agent runs on Python 3.8 and newer.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from . import apt, environment, executor, files, frames, volumes
from .inbox import Inbox
from .work import Failed, Work


def main() -> NoReturn:
    """Exit with 0 when the executor runs. By `os._exit`, as a normal exit waits a second for the thread on stdin."""
    os._exit(0 if _bootstrapped() else 1)


def _bootstrapped() -> bool:
    out = os.dup(1)
    os.dup2(2, 1)  # anything else that is printed must not look like a frame
    work = Work(out)
    signal.signal(signal.SIGTERM, lambda *_: work.end("it was ended by signal"))
    work.send("hello", version=frames.VERSION)
    inbox = Inbox(sys.stdin.buffer, lambda: work.end("the client has gone"))
    try:
        plan = inbox.next()
        work.hide(plan["secrets"])
        limit_s: float = plan["timeout_s"]
        limit = threading.Timer(limit_s, work.end, ["it takes too long"], {"timed_out": True})
        limit.daemon = True
        limit.start()
        work.send("result", **_carry_out(work, inbox, plan))
    except Failed as failure:
        work.fail(failure)
    except OSError as error:
        work.fail(_os_failure(error))
    except Exception as error:  # noqa: BLE001 - the edge: a defect of ours is reported like any failure
        log = traceback.format_exc().splitlines()
        work.fail(Failed(f"the agent failed: {type(error).__name__}: {error}", log=log))
    else:
        return True
    work.clear()
    return False


def _carry_out(work: Work, inbox: Inbox, plan: Mapping[str, Any]) -> dict[str, str]:
    cache, runtime = Path(plan["cache"]), Path(plan["runtime"])
    directory = cache / "pools" / plan["pool"]
    executor.sweep(directory.parent, socket.gethostname())
    executor.end_others(directory.parent, plan["machine"], directory)
    with executor.only_agent(directory):
        if not executor.is_running(directory):  # a running executor keeps its directory, even if we fail
            work.scratch.append(directory)
        (directory / "host").write_text(socket.gethostname())
        python = Path(plan["python"])
        if plan["apt"] and (missing := apt.missing(plan["apt"])):
            with work.during("apt", " ".join(missing)):
                apt.install(work, missing)
        if plan["environment"] is not None:
            python = environment.prepare(work, inbox, cache, plan["environment"])
        if not executor.is_running(directory):
            _start(work, inbox, plan, python, directory)
    return {"socket": str(executor.socket_path_of(directory)), "python": str(python), "runtime": str(runtime)}


def _start(work: Work, inbox: Inbox, plan: Mapping[str, Any], python: Path, directory: Path) -> None:
    tree, store = directory / "includes", Path(plan["cache"]) / "files"
    files.forget(store)
    if plan["files"]:
        with work.during("files", f"{len(plan['files'])} files"):
            files.receive(work, inbox, store, {digest: size for _, digest, size, _ in plan["files"]})
            files.lay_out(tree, store, plan["files"])
    tree.mkdir(mode=0o700, exist_ok=True)
    env = _environment(plan, python, tree)
    mounted = volumes.mount(work, plan)
    if plan["run"]:
        with work.during("run"):
            asked = {**env, **plan["env"]}
            asked["PYTHONPATH"] = os.pathsep.join(filter(None, [asked.get("PYTHONPATH"), env["OUTRIDER_PATH"]]))
            for command in plan["run"]:
                words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
                shown = command if isinstance(command, str) else ""
                work.run(words, env=asked, cwd=tree, shown=shown)
    with work.during("executor"):
        runtime = Path(plan["runtime"])
        lease_s, lease_file = plan["lease_s"], plan["lease_file"]
        executor.start(
            work, python, runtime, directory,
            address=plan["address"], lease_s=lease_s, lease_file=lease_file, env=env, mounted=mounted,
        )  # fmt: skip


def _environment(plan: Mapping[str, Any], python: Path, tree: Path) -> dict[str, str]:
    """The environment of the commands that the image runs, and of the executor with its tasks."""
    folders = [*(str(tree / folder) for folder in plan["paths"]), plan["runtime"]]
    env = {**os.environ, "OUTRIDER_INCLUDES": str(tree), "OUTRIDER_PATH": os.pathsep.join(folders)}
    if plan["environment"] is not None or (python.parent.parent / "pyvenv.cfg").exists():
        env["VIRTUAL_ENV"] = str(python.parent.parent)
        env["PATH"] = os.pathsep.join([str(python.parent), env.get("PATH", os.defpath)])
    return env


def _os_failure(error: OSError) -> Failed:
    where = f" ({error.filename})" if error.filename else ""
    return Failed(f"{error.strerror or error}{where}")
