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
from ..runs.names import runs_folder
from .flags import AsJson

if TYPE_CHECKING:
    from ..runs.files import RecordFiles
    from ..scripts.driver import Starter
    from ..scripts.run import Planned

COMMAND = "--command"  # inserted by `with_program_apart` if a command follows instead of a script
_LISTS = frozenset({"pip", "pip_indexes", "apt", "includes", "excludes", "plugins", "hosts"})
_NO_VALUE = frozenset({"--help", "-h", "--detach", "-d", "--json"})
Repeated = Annotated[list[str] | None, Parameter(negative="")]


def _word(_: object, tokens: Sequence[Token]) -> Any:
    """Return the word unchanged; a conversion to a path would drop a leading ``./``."""
    return tokens[0].value


Word = Annotated[Path, Parameter(converter=_word)]  # typed as a path, so that shells complete paths


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions:
    """The options of `outrider run`.

    Parameters
    ----------
    nodes:
        How many nodes: 4, or 2:8 for ready with 2 and growing to 8. Default: 1; one for each of --hosts.
    provider:
        Where machines come from. Default: this computer.
    hosts:
        A machine to log in to by SSH; may be given several times, or with commas.
    accelerator:
        What each node has at least: L4, or L4:2 for two.
    ranks_per_node:
        Default: one for each GPU, and one without any.
    max_restarts:
        How often all ranks run again when one fails. Lost nodes do not count. Default: 0.
    grace:
        How many seconds ranks that handle SIGTERM may save when the run is ended. Default: 30.
    image:
        An option of Image, as pip=numpy or env.HF_HOME=/data; may be given several times.
    pool:
        The pool of outrider.toml, or of pyproject.toml, to take. Default: the header's, or the one named default.
    name:
        The pool's name.
    track:
        Send the run to a tracker, as mlflow, or to one that outrider.toml describes; may be given several times.
    detach:
        Give the terminal back at once: the run goes on by itself, also when the terminal is closed.
    set:
        Any option of Pool, as lease=60 or provider.region=eu-west-1; may be given several times.
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

    Each rank is a process of its own, with the variables of torchrun and no process group. When a node is lost, all
    ranks run again. The pool ends with the run.

    The script's header (PEP 723, with [tool.outrider]) and outrider.toml say what options do not: options win over the
    header, and the header over the file.

    Exits with 0 when all ranks end well, else with the exit code of the rank that failed first (128 + n for signal n).
    With 2 when an option, the header or the file is wrong, with 125 when no rank failed and yet there is no result: no
    machines, or lost for good; with 130 after Ctrl-C, and 143 after `outrider stop`.

    With --detach it prints the run's id, and how to follow, wait for and stop it; then the code is 0 if it goes on.

    Parameters
    ----------
    program:
        The script and its arguments. Options of the run stand before it.
    as_json:
        Print how it has ended as JSON, for programs. What its ranks print goes to stderr then.
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
    """Run the program. ``files``: the record, if a driver has made it. ``opened``: called when the pool is open."""
    import anyio

    from ..scripts.exit_codes import exit_code
    from ..scripts.missing_module import missing_module_advice

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
    """Run the program with all its output on stderr, and print its end as JSON on stdout, whatever ends it."""
    from asyncio import CancelledError

    from ..client.signals import ProgramHold
    from ..runs.description import secrets_of
    from ..runs.error_texts import error_texts

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
        code = 128 + hold.came if hold.came else end.code  # the process dies by the signal, however the run has ended
        _tell(planned.record, code, clean(end.message), first, time.monotonic() - began)
    finally:
        hold.release()
    return end.code


def _tell(record: Path | None, code: int | None, message: str, first: object, took_s: float) -> None:
    """Print the state of a run as JSON. ``code``: the exit code; None: the run continues."""
    where = {"id": None, "directory": None} if record is None else {"id": record.name, "directory": str(record)}
    facts = {"exit_code": code, "said": message, "first_failure": first, "took_s": took_s}
    print(json.dumps({**where, **facts}, indent=2), flush=True)


def _driven(planned: Planned, files: RecordFiles, starter: Starter) -> int:
    end = _run(planned, files, starter.opened)
    if end.error is not None:
        starter.failed(end.code, end.message)
    return end.code


def _detached(planned: Planned, *, as_json: bool) -> int:
    """Start a driver for the program, and print the commands to use next.

    In the driver's process, this raises SystemExit at the run's end.

    Raises:
        SpecError: the run would write no record.
    """
    from ..observe.record import record_name
    from ..observe.surroundings import VARIABLE, leaves_record
    from ..runs.description import secrets_of
    from ..scripts.driver import detach
    from ..scripts.driver_log import DRIVER_LOG

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
        from ..scripts.exit_codes import exit_code

        suffix = "" if re.search(r"exit (code|status) \d", error.message) else f" (exit code {exit_code(error)})"
        return f"{plain(error.message)}{suffix}"
    if isinstance(error, OutriderError):
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        text = f"{type(error).__name__}: {plain(str(error))}"
        return f"{worded(text) if is_own(error) else text}{plain(notes)}"
    return ""


def misplaced_options(script: str, arguments: Sequence[str]) -> list[str]:
    """Return a warning for each option of `outrider run` that follows the script, unless the script contains
    its name.
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
    """Insert ``--`` before the program of `outrider run`, so that the program's own options are not parsed."""
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
    """Return the options as a table, as a configuration file would have them.

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
    """Put ``a.b=value`` into a table. If the option is a list, the value is appended."""
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
    """Return the keys of ``image.env.NAME``. The variable's name may contain dots."""
    return [*path.split(".", 2)]


def _read(text: str) -> Any:
    """Parse a text as a TOML value. If that fails, return the text itself."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, or a number or nested lists that are too large
        return text
    return value if isinstance(value, str | int | float | list | dict) else text  # no option takes a date or a time
