"""`outrider run`: runs a script without any Outrider code, or a command, on all nodes of a new pool."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token

from ...lazy_dataclass import dataclass
from ...providers.registry import ProviderName
from ..api.errors import BroadcastFailed, OutriderError, SpecError
from ..api.language import is_own, worded
from ..api.printable import plain
from ..api.secrets import Scrubber
from ..record.runs.names import runs_folder
from .common import AsJson

if TYPE_CHECKING:
    from ..record.runs.files import RecordFiles
    from ..scripts.driver import Starter
    from ..scripts.run import Planned

COMMAND = "--command"  # a hidden option that `with_program_apart` inserts if a command follows, and not a script
_LISTS = frozenset({"pip", "pip_indexes", "apt", "includes", "excludes", "plugins", "hosts"})
_NO_VALUE = frozenset({"--help", "-h", "--detach", "-d", "--json"})
Repeated = Annotated[list[str] | None, Parameter(negative="")]


def _word(_: object, tokens: Sequence[Token]) -> Any:
    """Return an argument unchanged: converting it to a path would drop a leading ``./``."""
    return tokens[0].value


Word = Annotated[Path, Parameter(converter=_word)]  # typed as a path, so that shells complete paths


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions:
    """The options of `outrider run`.

    Parameters
    ----------
    nodes:
        How many nodes: 4, or 2:8 to start with 2 ready nodes and grow to 8. Default: 1, or one for each host of
        --hosts.
    provider:
        Where machines come from. Default: local (this computer).
    hosts:
        A host to log in to by SSH. Can be repeated, or list several hosts with commas.
    accelerator:
        The accelerators that each node has at least: L4, or L4:2 for two.
    ranks_per_node:
        How many ranks (processes) run on each node. Default: one for each GPU, or one if there is none.
    max_restarts:
        How often all ranks are restarted when one fails. Restarts after the loss of a node do not count. Default: 0.
    grace:
        How many seconds ranks that handle SIGTERM have to save their state when the run is ended. Default: 30.
    image:
        An option of Image (the software of the nodes), such as pip=numpy or env.HF_HOME=/data. Can be repeated.
    pool:
        The pool in outrider.toml or pyproject.toml to use. Default: the pool that the script's header names, or the
        pool named default.
    name:
        The pool's name.
    track:
        Send the run to a tracker: mlflow, or one that outrider.toml describes. Can be repeated.
    detach:
        Return at once: the run goes on in the background, even after the terminal is closed.
    set:
        Any option of Pool, such as lease=60 or provider.region=eu-west-1. Can be repeated.
    """

    nodes: str | None = None
    provider: ProviderName | None = None
    hosts: Repeated = None
    accelerator: str | None = None
    ranks_per_node: int | None = None
    max_restarts: int | None = None
    grace: float | None = None
    image: Repeated = None
    pool: str | None = None
    name: str | None = None
    track: Repeated = None
    detach: Annotated[bool, Parameter(name=["--detach", "-d"], negative="")] = False
    set: Repeated = None
    command: Annotated[bool, Parameter(name=COMMAND, negative="", show=False)] = False


NO_OPTIONS = RunOptions()


def run(*program: Word, options: RunOptions = NO_OPTIONS, as_json: AsJson = False) -> int:
    """Run a script, or after -- a command, on every node of a new pool, as torchrun does.

    Example: `outrider run --nodes 4 train.py --lr 0.1`

    Each rank is a process with the environment variables that torchrun sets. The script itself initializes the process
    group. When a node is lost, all ranks run again. The pool ends with the run.

    Options can also be in the script's header (a PEP 723 comment with [tool.outrider]) and in outrider.toml. Options of
    the command line override the header, and the header overrides the file.

    Exits with 0 if all ranks succeed, else with the exit code of the rank that failed first (128 + n for signal n).
    Exits with 2 if an option, the header or the file is wrong, with 125 if no rank failed and yet there is no result,
    because machines did not start or were lost for good, with 130 after Ctrl-C, and with 143 after `outrider stop`.

    With --detach, prints the run's id and the commands that follow it, wait for it and stop it, and exits with 0 if the
    run goes on.

    Parameters
    ----------
    program:
        The script and its arguments. Options of `outrider run` stand before the script.
    as_json:
        Print how the run ended as JSON, for programs. The ranks' output goes to stderr.
    """
    arguments = asdict(options)
    is_script, pool, detached = not arguments.pop("command"), arguments.pop("pool"), arguments.pop("detach")
    words = [str(word) for word in program]
    for warning in misplaced_options(words[0], words[1:]) if is_script and words else ():
        print(f"outrider: warning: {warning}", file=sys.stderr)
    try:
        planned = _planned(words, is_script=is_script, arguments=arguments, pool=pool)
        if detached:
            return _detached(planned, as_json=as_json)
        return _run_for_programs(planned) if as_json else _run(planned).code
    except SpecError as error:
        print(f"outrider: {worded(plain(str(error)))}", file=sys.stderr)
        return 2


def _planned(words: Sequence[str], *, is_script: bool, arguments: dict[str, Any], pool: str | None) -> Planned:
    from ..scripts.run import Program, planned

    if not words:
        raise SpecError("what is to be run is missing: outrider run [OPTIONS] train.py ARGS, or -- COMMAND ARGS.")
    return planned(Program(tuple(words), is_script, Path.cwd()), table_of(arguments), pool=pool)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a run: its exit code and, for a failed run, the message and the error."""

    code: int = 0
    message: str = ""
    error: BaseException | None = None


def _run(planned: Planned, files: RecordFiles | None = None, opened: Callable[[], object] = lambda: None) -> _End:
    """Run the program, and return how it ended.

    ``files``: the run's record, if a driver (the process of a detached run) has made it. ``opened``: called when the
    pool is open.
    """
    import anyio

    from ..scripts.failures import exit_code, missing_module_advice

    try:
        anyio.run(planned.owned(files), opened)
    except (OutriderError, KeyboardInterrupt) as error:
        end = _End(exit_code(error), _message(error), error)
        sys.stdout.flush()
        if end.message:
            print(f"outrider: {end.message}", file=sys.stderr, flush=True)
        if isinstance(error, BroadcastFailed) and (advice := missing_module_advice(error, local=planned.local)):
            print(f"outrider: {worded(plain(advice))}", file=sys.stderr, flush=True)
        return end
    return _End()


def _run_for_programs(planned: Planned) -> int:
    """Run the program with all its output on stderr. When it ends, even by a signal, print the result as JSON on
    stdout.
    """
    from asyncio import CancelledError

    from ..client.signals import ProgramHold
    from ..record.runs.description import error_texts, secrets_of

    began, hold = time.monotonic(), ProgramHold()
    try:
        with redirect_stdout(sys.stderr):
            try:
                end = _run(planned)
            except CancelledError:
                if not hold.came:
                    raise
                end = _End(128 + hold.came)
        clean = Scrubber(secrets_of(planned.pool._settings))
        first = None if end.error is None else error_texts(end.error, clean).get("first")
        # if a signal has come, the process dies by the signal, even if the run itself ended in another way
        code = 128 + hold.came if hold.came else end.code
        _tell(planned.record, code, clean(end.message), first, time.monotonic() - began)
    finally:
        hold.release()
    return end.code


def _tell(record: Path | None, code: int | None, message: str, first: object, took_s: float) -> None:
    """Print the state of a run as JSON. ``code``: the exit code; None: the run goes on."""
    where = {"id": None, "directory": None} if record is None else {"id": record.name, "directory": str(record)}
    facts = {"exit_code": code, "said": message, "first_failure": first, "took_s": took_s}
    print(json.dumps({**where, **facts}, indent=2), flush=True)


def _driven(planned: Planned, files: RecordFiles, starter: Starter) -> int:
    end = _run(planned, files, starter.opened)
    if end.error is not None:
        starter.failed(end.code, end.message)
    return end.code


def _detached(planned: Planned, *, as_json: bool) -> int:
    """Start a driver (a process that runs the program in the background), and print the commands to use next.

    In the driver's process, this function raises SystemExit when the run has ended.

    Raises:
        SpecError: the run would write no record.
    """
    from ..record.record_sink import record_name
    from ..record.runs.description import secrets_of
    from ..record.surroundings import VARIABLE, leaves_record
    from ..scripts.driver import DRIVER_LOG, detach

    settings = planned.pool._settings
    if not leaves_record(settings.run, tracked=bool(settings.trackers)):
        raise SpecError(
            "--detach: a detached run is found by its record, so it must leave one: leave out run=false, and "
            f"{VARIABLE}=0 of the environment."
        )
    began, clean = time.monotonic(), Scrubber(secrets_of(settings))
    start = detach(record_name(settings), partial(_driven, planned), clean)
    if as_json:
        record = runs_folder() / start.run if start.run else None
        _tell(record, start.code, clean(plain(start.message)), None, time.monotonic() - began)
    elif start.run:
        print(start.run, flush=True)
    if start.code:
        hint = f"; {runs_folder() / start.run / DRIVER_LOG} has all of it" if start.run else ""
        print(f"outrider: the run has ended at once: {clean(plain(start.message))}{hint}", file=sys.stderr)
        return start.code
    for words in ("logs -f", "wait", "stop") if not as_json else ():
        print(f"  outrider {words} {start.run}", file=sys.stderr)
    return 0


def _message(error: BaseException) -> str:
    """Return the message about an error that ended the run; empty for Ctrl-C."""
    if isinstance(error, BroadcastFailed):
        from ..scripts.failures import exit_code

        suffix = "" if re.search(r"exit (code|status) \d", error.message) else f" (exit code {exit_code(error)})"
        return f"{plain(error.message)}{suffix}"
    if isinstance(error, OutriderError):
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        text = f"{type(error).__name__}: {plain(str(error))}"
        return f"{worded(text) if is_own(error) else text}{plain(notes)}"
    return ""


def misplaced_options(script: str, arguments: Sequence[str]) -> list[str]:
    """Return a warning for each option of `outrider run` that stands after the script, so that the script gets it.

    If the script's text contains the option's name, there is no warning: the script may have such an option.
    """
    behind = {each.partition("=")[0]: place for place, each in enumerate(arguments) if each.startswith("--")}
    ours = {f"--{name.replace('_', '-')}": name for name in RunOptions.__annotations__ if name != "command"}
    if not behind.keys() & ours.keys():
        return []
    try:
        source = Path(script).read_text(errors="replace")
    except OSError:
        return []
    warnings = []
    for option, place in behind.items():
        if option not in ours or re.search(rf"\b({ours[option]}|{option[2:]})\b", source):
            continue
        takes_next = option not in _NO_VALUE and "=" not in arguments[place]
        value = [each for each in arguments[place + 1 : place + 2] if takes_next and not each.startswith("-")]
        typed = " ".join(map(shlex.quote, [arguments[place], *value]))
        warnings.append(
            f"{typed} stands behind {script}, so it goes to the script, and not to the run. Options of the run stand "
            f"before the script: outrider run {typed} {script}"
        )
    return warnings


# --- the command line -------------------------------------------------------------------------------------------------


def with_program_apart(tokens: Sequence[str]) -> list[str]:
    """Insert ``--`` before the script of `outrider run`, so that the script's options are not parsed as options of
    `run`.
    """
    if not tokens or tokens[0] != "run":
        return [*tokens]
    index = 1
    while index < len(tokens):
        token = tokens[index]
        if token == "--":  # noqa: S105
            return [*tokens[:index], COMMAND, *tokens[index:]]
        if not token.startswith("-"):
            return [*tokens[:index], "--", *tokens[index:]]
        index += 1 if "=" in token or token in _NO_VALUE else 2
    return [*tokens]


def table_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as a table of the form that a configuration file has.

    Raises:
        SpecError: an option cannot be parsed.
    """
    table = {key: value for key, value in options.items() if value is not None and key not in _TO_READ}
    hosts = [each for some in options.get("hosts") or () for each in re.split(r"[,\s]+", some) if each]
    if not hosts and options.get("hosts") is not None:
        raise SpecError(
            "--hosts names no host. If a command or a variable gives the names, see what it prints: --hosts gpu1,gpu2."
        )
    if files := [each for each in hosts if each.endswith((".txt", ".hosts")) and Path(each).is_file()]:
        raise SpecError(f'--hosts takes hosts, and {files[0]} is a file: --hosts "$(paste -sd, {files[0]})" reads it.')
    if hosts:
        table["provider"] = {"name": table.get("provider", "ssh"), "hosts": hosts}
    if (nodes := options.get("nodes")) is not None:
        table["nodes"] = _nodes(nodes)
    elif hosts:
        table["nodes"] = len(hosts)
    if track := options.get("track"):
        table["trackers"] = list(track)
    for each in options.get("image") or ():
        _put(table, f"image.{each}", "--image")
    for each in options.get("set") or ():
        _put(table, each, "--set")
    return table


_TO_READ = frozenset({"nodes", "hosts", "image", "set", "track"})


def _nodes(text: str) -> int | list[int]:
    try:
        least, *most = (int(each) for each in text.split(":"))
    except ValueError:
        least, most = 0, [0, 0]
    if len(most) > 1:
        raise SpecError(f"--nodes takes a number, or two as in 2:8, not {text!r}.")
    return [least, *most] if most else least


def _put(table: dict[str, Any], text: str, option: str) -> None:
    """Set ``a.b`` to the value in a nested table, from a text ``a.b=value``. A list option is extended by the value."""
    path, equals, value = text.partition("=")
    *parents, key = path.strip().split(".") if option == "--set" or "env." not in path else _variable(path)
    if not equals or not all((*parents, key)):
        raise SpecError(
            f"{option} takes a name and a value, as in {_EXAMPLES[option]}, not {text.removeprefix('image.')!r}."
        )
    for parent in parents:
        inner = table.get(parent, {})
        table[parent] = inner if isinstance(inner, dict) else {"name": inner}
        table = table[parent]
    read = _read(value)
    if (key in _LISTS or [*parents[-1:], key] == ["image", "run"]) and not isinstance(read, list):
        table[key] = [*table.get(key, ()), read if isinstance(read, dict) else value]
    else:
        table[key] = str(value) if parents[-1:] == ["env"] and not isinstance(read, dict) else read


_EXAMPLES = {"--image": "pip=numpy", "--set": "lease=60"}


def _variable(path: str) -> list[str]:
    """Split ``image.env.NAME`` into its three keys. The variable's name may contain dots."""
    return [*path.split(".", 2)]


def _read(text: str) -> Any:
    """Parse a text as a TOML value. If that fails, return the text itself."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, or a number or nested lists that are too large
        return text
    # dates and times stay texts, because no option takes them
    return value if isinstance(value, str | int | float | list | dict) else text
