"""The parts that all verbs share: exit codes, common options, and the handling of errors and interrupts.

A command that ends by an error prints a line on stderr instead of a traceback. The exit codes of `outrider run` are in
`engine/scripts/failures.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from cyclopts import CycloptsError
    from rich.text import Text


DONE = 0
# exit codes of verbs that end machines: no machine is left, some are left, it is unknown whether some are left
NOTHING, SOMETHING, UNKNOWN = 0, 1, 2
# an invalid option or file, an unusable state folder, or a requested run, node or machine that does not exist
WRONG = 2
INTERRUPTED = 130  # after Ctrl-C: 128 + SIGINT
CLOSED = 141  # the reader of stdout has closed it: 128 + SIGPIPE, as for programs that do not handle SIGPIPE


Flag = Parameter(negative="")
AsJson = Annotated[bool, Parameter(name="--json", negative="")]


def guarded(command: Callable[[], object]) -> int:
    """Run a command, which may raise SystemExit, and return its exit code."""
    code = 0
    try:
        try:
            command()
        except SystemExit as end:
            # rich (the library that prints tables) has replaced a BrokenPipeError by a SystemExit
            if isinstance(end.__context__, BrokenPipeError):
                raise BrokenPipeError from None
            code = _code(end)
        sys.stdout.flush()  # flush here: at exit, Python would flush stdout where no error can be caught
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has ended, as in `outrider runs | head -1`
        _forget_stdout()
        return code or CLOSED
    except Exception as error:
        if (line := described(error)) is None:
            raise
        with suppress(OSError):
            print(f"outrider: {line}", file=sys.stderr)
        if isinstance(error, OSError):
            _forget_stdout()  # the error may be that stdout's disk is full: then a flush at exit would fail again
        return code or WRONG
    return code


def described(error: Exception) -> str | None:
    """Return an error as a line that says what the user can do; None: the error is a bug of Outrider."""
    from ...providers.errors import ProviderError
    from ..api.errors import OutriderError
    from ..api.language import is_own, worded
    from ..api.printable import plain

    if isinstance(error, ProviderError | OutriderError):
        text = plain(str(error))
        return worded(text) if is_own(error) or isinstance(error, ProviderError) else text
    if not isinstance(error, OSError):
        return None
    if error.filename is None and not _has_working_folder():
        return "the folder that it runs in is gone: go to one that is there"
    what = plain(str(error.filename)) if error.filename is not None else "its output, or a file,"
    reason = f"{what} cannot be used ({error.strerror or type(error).__name__})"
    if isinstance(error, PermissionError):
        return f"{reason}: `ls -ld` says whose it is; $OUTRIDER_STATE names another folder for records and pools"
    return reason


def _has_working_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return False
    return True


def defect(error: Exception) -> str:
    """Return a message about a bug of Outrider, for a command that continues without the part that failed."""
    return f"this is a defect of Outrider: report it ({type(error).__name__}: {error})"


def usage_error(error: CycloptsError) -> Text:
    """Return the message about a wrong command line, with a pointer to the verb's `--help`."""
    from cyclopts.exceptions import UnknownCommandError, UnknownOptionError, UnusedCliTokensError
    from rich.text import Text

    message = " ".join(str(error).split()).removesuffix(".")
    if isinstance(error, UnusedCliTokensError):
        message = f"nothing is known here by the name of {' '.join(error.unused_tokens or ())}"
    if isinstance(error, UnknownOptionError) and error.token is not None and error.command_chain:
        message = _other_spelling(str(error.token.keyword or error.token.value), error.command_chain[0]) or message
    if isinstance(error, UnknownCommandError) and (script := next(iter(error.unused_tokens or ()), "")).endswith(".py"):
        message = f"{script} is no command. To run a script: outrider run {script}"
    verb = " ".join(("outrider", *(error.command_chain or ())))
    return Text(f"outrider: {message}\nSee `{verb} --help`.", no_wrap=True, overflow="ignore")


_OF_TORCHRUN = {
    "--nnodes": "--nodes",
    "--nproc-per-node": "--ranks-per-node",
    "--nproc": "--ranks-per-node",
    "--gpus-per-node": "--accelerator",
    "--master-addr": "",
    "--master-port": "",
    "--rdzv-backend": "",
    "--rdzv-endpoint": "",
    "--node-rank": "",
    "--standalone": "",
}


def _other_spelling(typed: str, verb: str) -> str:
    """Return a message with the right spelling of an option that `outrider run` does not have; empty: no suggestion.

    Covers torchrun's options, and options that are written with `--set` or `--image`.
    """
    if verb not in ("run", "offers"):
        return ""
    from ...providers.shared.option_names import OF_IMAGE, SAME
    from ..config.tables import POOL_KEYS

    option = typed.partition("=")[0].replace("_", "-")
    name = option.lstrip("-").replace("-", "_")
    known = [each for each in (name, *SAME.get(name, ())) if each in POOL_KEYS]
    if option in _OF_TORCHRUN:
        ours = _OF_TORCHRUN[option]
        meant = f"Outrider has {ours}" if ours else "it is not needed, as the ranks find each other by themselves"
        meant = f"that is torchrun's option, and {meant}"
    elif known[:1] == ["accelerator"]:
        meant = "write --accelerator L4, or --accelerator L4:8 for eight of them"
    elif known:
        meant = f"write --set {known[0]}={known[0].upper()}"
    elif name in OF_IMAGE:
        meant = f"write --image {name}={name.upper()}"
    elif name in _OF_PROVIDERS:
        meant = f"write --set provider.{name}={name.upper()}"
    else:
        return ""
    return f"Unknown option: {typed}: {meant}"


_OF_PROVIDERS = frozenset({
    "region", "regions", "zones", "instance_types", "user", "key", "jump", "known_hosts", "config", "partition", "time",
    "account", "qos", "constraint", "profile", "project",
})  # fmt: skip


def refused(reason: str) -> SystemExit:
    """Print the reason why a command is refused. Return a SystemExit for the caller to raise."""
    print(f"outrider: {reason}", file=sys.stderr)
    return SystemExit(WRONG)


def _code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _forget_stdout() -> None:
    """Redirect stdout so that Python's flush at exit cannot fail."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
