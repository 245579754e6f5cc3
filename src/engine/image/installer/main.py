"""The installer's main program on the node: read a plan, carry it out, and report progress. It may be repeated.

    python3 -I <runtime> install

This module and all its imports must run on Python 3.8 or newer, because the host may not have the right Python yet.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from . import environment, executor, system
from .installation import Failed, Installation
from .protocol import Inbox


def main() -> NoReturn:
    """Run the installer. Exit with status 0 if the executor is running.

    Uses `os._exit`, because a normal exit would wait one second for the thread that reads stdin.
    """
    os._exit(0 if _bootstrapped() else 1)


def _bootstrapped() -> bool:
    out = os.dup(1)
    os.dup2(2, 1)  # redirect stdout to stderr, so that other output cannot be mistaken for a frame
    installation = Installation(out)
    signal.signal(signal.SIGTERM, lambda *_: installation.end("it was ended by signal"))
    os.write(out, b"\n")  # end an unfinished line that the login shell may have printed
    installation.send("hello")
    inbox = Inbox(sys.stdin.buffer, lambda: installation.end("the client has gone"))
    try:
        plan = inbox.next()
        installation.hide(plan["secrets"])
        limit = threading.Timer(plan["timeout_s"], installation.end, ["it takes too long"], {"timed_out": True})
        limit.daemon = True
        limit.start()
        installation.send("result", **_carry_out(installation, inbox, plan))
    except Failed as failure:
        installation.fail(failure)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        installation.fail(Failed(f"{error.strerror or error}{where}"))
    except Exception as error:  # noqa: BLE001 - an internal error is reported like any failure
        log = traceback.format_exc().splitlines()
        hint = "this is a defect of Outrider: report it with the lines below"
        installation.fail(Failed(f"the installer failed: {type(error).__name__}: {error}", log=log, hint=hint))
    else:
        return True
    installation.clear()
    return False


def _carry_out(installation: Installation, inbox: Inbox, plan: Mapping[str, Any]) -> dict[str, str]:
    cache = Path(plan["cache"])
    directory = cache / "pools" / plan["node"]
    host = executor.this_host()
    executor.sweep(directory.parent, host)
    executor.end_others(directory.parent, plan["machine"], directory)
    with executor.only_installer(directory):
        if not executor.is_running(directory):  # the folder of a running executor is kept, even if this bootstrap fails
            installation.scratch.append(directory)
        (directory / "host").write_text(host)
        python = Path(plan["python"])
        if plan["apt"] and (missing := system.missing_packages(plan["apt"])):
            with installation.during("apt", " ".join(missing)):
                system.install_packages(installation, missing)
        if plan["environment"] is not None:
            python = environment.prepare_environment(installation, inbox, cache, plan["environment"])
        if not executor.is_running(directory):
            _start(installation, inbox, plan, python, directory)
    return {"socket": str(executor.socket_path_of(directory)), "python": str(python), "runtime": plan["runtime"]}


def _start(installation: Installation, inbox: Inbox, plan: Mapping[str, Any], python: Path, directory: Path) -> None:
    tree, store = directory / "includes", Path(plan["cache"]) / "files"
    environment.forget_files(store)
    if plan["files"]:
        with installation.during("files", f"{len(plan['files'])} files"):
            environment.receive_files(
                installation, inbox, store, {digest: size for _, digest, size, _ in plan["files"]}
            )
            environment.lay_out_files(tree, store, plan["files"])
    tree.mkdir(mode=0o700, exist_ok=True)
    env = _environment(plan, python, tree)
    mounted = system.mount_volumes(installation, plan)
    if plan["run"]:
        with installation.during("run"):
            command_env = {**env, **plan["env"]}
            command_env["PYTHONPATH"] = os.pathsep.join(
                filter(None, [command_env.get("PYTHONPATH"), env["OUTRIDER_PATH"]])
            )
            for command in plan["run"]:
                is_line = isinstance(command, str)
                words = ["/bin/sh", "-c", command] if is_line else command
                installation.run(words, env=command_env, cwd=tree, shown=command if is_line else "")
    with installation.during("executor"):
        executor.start(installation, plan, python, directory, env=env, mounted=mounted)


def _environment(plan: Mapping[str, Any], python: Path, tree: Path) -> dict[str, str]:
    """Return the environment variables for the image's commands, and for the executor and its tasks."""
    folders = [*(str(tree / folder) for folder in plan["paths"]), plan["runtime"]]
    env = {**os.environ, "OUTRIDER_INCLUDES": str(tree), "OUTRIDER_PATH": os.pathsep.join(folders)}
    if plan["environment"] is not None or (python.parent.parent / "pyvenv.cfg").exists():
        env["VIRTUAL_ENV"] = str(python.parent.parent)
        env["PATH"] = os.pathsep.join([str(python.parent), env.get("PATH", os.defpath)])
    return env
