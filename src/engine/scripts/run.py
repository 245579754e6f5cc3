"""The run of a script or a command on every node of a new pool: its settings, its files, and its end.

Before anything starts, `header_of` reads the script's header: the block ``# /// script`` of PEP 723, with its
``[tool.outrider]``. `needs_place` finds calls of ``checkpoint(...)`` that need the option `checkpoints` of
the pool. Only calls that are certain to run are found: in the script's own statements, or in functions of the script
that these statements call, outside of any branch, loop or ``try``, and with no earlier statement that may end the
script.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ...lazy_dataclass import dataclass
from ..api.checks import check_known, refuse
from ..api.compute import compute
from ..api.errors import SpecError
from ..api.image import Image
from ..api.language import options_are_in_file
from ..api.task_options import TaskOptions
from ..checkpoint.store import VARIABLE
from ..config import files
from ..config.tables import (
    POOL_KEYS,
    RUN_KEYS,
    Table,
    at,
    grace_of,
    merged,
    pool_options,
    ranks_of,
    restarts_of,
    telling,
    with_tables,
)
from ..record.runs.files import WholeProgram
from ..record.runs.names import name_of
from .endings import GentleEnd
from .failures import exit_code
from .program import Place, ScriptRanks, run_command, run_script

if TYPE_CHECKING:
    from ..pool import Pool
    from ..pool_options import PoolOptions
    from ..record.runs.files import RecordFiles


_HELP = frozenset({"-h", "--help", "--version", "-V"})
_ENDS = frozenset({"exit", "quit", "_exit", "abort", "execv", "execve", "execvp", "execl", "execlp", "kill"})
_DECLARATIONS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)
# a script with these words may set the variable that names the storage
_ELSEWHERE = re.compile("OUTRIDER_CHECKPOINTS|dotenv|environ")
_DEEPEST = 20  # follow calls of the script's own functions at most this deep


def needs_place(source: str, arguments: Sequence[str]) -> int:
    """Return the line of a call of `checkpoint` that is certain to run and passes no ``root``; 0: no such call
    was found.
    """
    if "checkpoint" not in source or _ELSEWHERE.search(source) or _HELP & {*arguments}:
        return 0
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    search = _Search(_names(tree), functions)
    if not search.names or any(isinstance(each, ast.Global | ast.Nonlocal) for each in ast.walk(tree)):
        return 0
    try:
        search.run(tree.body)
    except _Stop as stop:
        return stop.line
    return 0


class _Stop(Exception):
    """The exception that ends the search for a script's call of `outrider.checkpoint`.

    ``line``: the line of the call. 0: none; the search ends at a statement after which the script may not go on.
    """

    def __init__(self, line: int = 0) -> None:
        super().__init__()
        self.line = line


def _names(tree: ast.Module) -> frozenset[str]:
    """Return the names by which the script calls `outrider.checkpoint`.

    If the script also gives one of these names to another object, return no names.
    """
    names: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and each.module == "outrider" and not each.level:
            names |= {alias.asname or alias.name for alias in each.names if alias.name == "checkpoint"}
        elif isinstance(each, ast.Import):
            names |= {f"{alias.asname or 'outrider'}.checkpoint" for alias in each.names if alias.name == "outrider"}
    roots = {name.partition(".")[0] for name in names}
    bound = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    bound |= {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    bound |= {each.arg for each in ast.walk(tree) if isinstance(each, ast.arg)}
    return frozenset() if roots & bound else frozenset(names)


@dataclass(slots=True)
class _Search:
    names: frozenset[str]
    functions: Mapping[str, ast.FunctionDef]
    depth: int = field(default=0)

    def run(self, statements: Sequence[ast.stmt]) -> None:
        """Search statements that run one after the other.

        Raises:
            _Stop: The call was found, or the statements that follow may not run.
        """
        for each in statements:
            if isinstance(each, ast.If) and _is_main(each.test):
                self.run(each.body)
            elif isinstance(each, ast.Expr | ast.Assign | ast.AnnAssign) and each.value is not None:
                self._evaluate(each.value)
            elif isinstance(each, ast.Return):
                if each.value is not None:
                    self._evaluate(each.value)
                return
            elif isinstance(each, ast.With):
                for item in each.items:
                    self._evaluate(item.context_expr)
                # a context manager may suppress an error of its block, as pytest.raises does: what follows is not
                # certain to run
                raise _Stop
            elif not isinstance(each, _DECLARATIONS) and self._may_end(each):
                raise _Stop

    def _evaluate(self, value: ast.expr) -> None:
        if isinstance(value, ast.Call) and ast.unparse(value.func) in self.names:
            if not any(each.arg in (None, "root") for each in value.keywords):
                raise _Stop(value.lineno)
            return
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in self.functions:
            function = self.functions[value.func.id]
            if function.decorator_list or self.depth >= _DEEPEST or _yields(function):
                raise _Stop
            for argument in (*value.args, *(each.value for each in value.keywords)):
                self._evaluate(argument)
            self.depth += 1
            self.run(function.body)
            self.depth -= 1
        elif self._may_end(value):
            raise _Stop

    def _may_end(self, node: ast.AST) -> bool:
        """Return whether a statement or an expression may end the script or the function that contains it."""
        for each in ast.walk(node):
            if isinstance(each, ast.Return | ast.Raise | ast.Assert | ast.Try | ast.Yield | ast.YieldFrom | ast.Await):
                return True
            if isinstance(each, ast.Call):
                name = ast.unparse(each.func).rpartition(".")[2]
                if name in _ENDS or name in self.functions:
                    return True
        return False


def _yields(function: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(function))


def _is_main(test: ast.expr) -> bool:
    return ast.unparse(test) == "__name__ == '__main__'"


# the regular expression in "Reference implementation" of PEP 723
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


@dataclass(frozen=True, slots=True)
class ScriptHeader:
    dependencies: tuple[str, ...] = ()
    requires_python: str = ""
    options: Table = field(default_factory=dict)  # the keys of the header's table [tool.outrider]

    def check_python(self, name: str) -> None:
        """Raise an error if the script does not support the version of this Python, with which its ranks run too.

        Raises:
            SpecError
        """
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            allowed = SpecifierSet(self.requires_python)
        except InvalidSpecifier:
            refuse(f"{name}: requires-python = {self.requires_python!r} is no version specifier, such as '>=3.11'.")
        ours = platform.python_version()
        if not allowed.contains(ours, prereleases=True):
            refuse(
                f"{name} asks for Python {self.requires_python}, and this is {ours}, which its ranks run with too: "
                "run outrider with another Python."
            )


def header_of(text: str, name: str) -> ScriptHeader:
    """Parse the header of a script. Without a header, all fields of the result are empty.

    ``name``: the script's name, for errors.

    Raises:
        SpecError: The header is not valid, or there are two headers.
    """
    blocks = [match for match in _BLOCK.finditer(text) if match["type"] == "script"]
    if not blocks:
        return ScriptHeader()
    if len(blocks) > 1:
        refuse(f"{name} has {len(blocks)} blocks `# /// script`: PEP 723 allows one.")
    lines = blocks[0]["content"].splitlines(keepends=True)
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    try:
        table = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{name}: its `# /// script` block is not valid TOML: {error}.") from None
    dependencies, python = table.get("dependencies", []), table.get("requires-python", "")
    if not isinstance(dependencies, list) or not all(isinstance(each, str) for each in dependencies):
        refuse(f"{name}: dependencies is a list of requirements, not {dependencies!r:.60}.")
    tool = table.get("tool", {})
    own = tool.get("outrider", {}) if isinstance(tool, Mapping) else {}
    if not isinstance(own, Mapping) or not isinstance(python, str):
        refuse(f"{name}: requires-python is a text, and [tool.outrider] a table.")
    return ScriptHeader(tuple(dependencies), python, own)


@dataclass(frozen=True, slots=True)
class Program:
    """The program to run.

    ``words``: the script with its arguments, or a command. ``folder``: the folder in which its relative paths begin.
    """

    words: tuple[str, ...]
    is_script: bool
    folder: Path

    @property
    def script(self) -> Path:
        return self.folder / self.words[0]

    @property
    def name(self) -> str:
        return Path(self.words[0]).name

    def check(self) -> None:
        """Raise an error if the script is missing or cannot be read.

        Raises:
            SpecError
        """
        if self.is_script and not self.script.is_file():
            kind = "is a folder" if self.script.is_dir() else "does not exist"
            refuse(
                f"the script {self.script} {kind}. To run a command on each node: "
                f"outrider run [OPTIONS] -- {' '.join(self.words)}"
            )
        if self.is_script:
            try:
                self.script.open("rb").close()
            except OSError as error:
                refuse(f"the script {self.script} cannot be read: {error.strerror}.")


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that is ready to start: the pool and the program of each rank, with settings from all sources."""

    pool: Pool
    place: Place
    program: Program
    max_restarts: int
    grace_s: float

    async def __call__(self, opened: Callable[[], object] = lambda: None) -> None:
        """Run the program. A cancellation ends the ranks and the pool.

        ``opened``: called when the pool is open.

        Raises:
            BroadcastFailed: Ranks failed; `exit_code` returns the exit code.
            OutriderError: As for `Pool` and `Pool.broadcast`.
        """
        options: TaskOptions = {"name": self.program.name}
        if self.max_restarts:
            options["max_restarts"] = self.max_restarts
        async with self.pool as pool:
            opened()
            first, *others = self.program.words
            if self.program.is_script:
                script = first if self.place.root is None else self._inside(first)
                call = compute(**options)(run_script)(self.place, script, *others)
            else:
                call = compute(**options)(run_command)(self.place, first, *others)
            core = pool._opened()
            gentle = GentleEnd(core, self.grace_s)
            core.let_save, pool._hold.hurry = gentle.request, gentle.hurry
            await gentle.run(pool.broadcast(call))

    @property
    def local(self) -> bool:
        """Return whether the ranks run on this computer, with the same Python as this program."""
        return self.pool._settings.provider.local

    @property
    def record(self) -> Path | None:
        """The folder of the run's record; None: it does not exist yet."""
        return None if self.pool._core is None else self.pool._core.observer.record_folder

    def owned(self, files: RecordFiles | None = None) -> Self:
        """Let the run's record contain the exit code of `outrider run`.

        ``files``: the record; None: the pool creates it.
        """
        self.pool._program = WholeProgram(exit_code, files)
        return self

    def _inside(self, script: str) -> str:
        folder = Path(self.place.folder)
        return (self.program.folder / script).resolve().relative_to(folder).as_posix()


def planned(program: Program, command_options: Table, *, pool: str | None = None) -> Planned:
    """Return the planned run of a program.

    Settings come from three sources: ``command_options`` override the script's header, which overrides a pool's table
    in the configuration file.

    Args:
        program: The program.
        command_options: The options of the command line.
        pool: The name of the table; None: the script's header names the table, or the table "default" is used.

    Raises:
        SpecError: One of these sources is not valid, or the script does not exist.
    """
    from ..pool import Pool

    program.check()
    header = _header(program)
    named = header.pop("pool", None)
    config_file = files.find(program.script.resolve().parent if program.is_script else program.folder)
    configured, source = _configured(program, named if pool is None else pool, config_file)
    table = merged(configured, header, at(command_options, program.folder))
    if config_file is not None and "trackers" in table:
        table["trackers"] = with_tables(table["trackers"], config_file.trackers)
    options_are_in_file(frozenset({*configured, *header}) - frozenset(command_options))
    where = f"{program.name}, with {source}" if source else program.name
    with telling(program.name):
        check_known("outrider run", table, POOL_KEYS | RUN_KEYS)
        ranks = ScriptRanks(ranks_of(table), restarts_of(table))
        grace_s = grace_of(table)
    specs, options = pool_options({key: table[key] for key in table.keys() - RUN_KEYS}, where)
    provider = specs[0].provider if specs else options.get("provider")
    _check_checkpoints(program, options, is_local=provider is None or provider.local)
    place = Place(str(program.folder))
    if provider is not None and not provider.local:
        place, options["image"] = _brought(program, options.get("image", Image()))
    options["plugins"] = [*options.get("plugins", ()), ranks]
    if "name" not in options:
        options.setdefault("run", name_of(Path(program.name).stem))
    with telling(where):
        return Planned(Pool(*specs, **options), place, program, ranks.max_restarts, grace_s)


def _check_checkpoints(program: Program, options: PoolOptions, *, is_local: bool) -> None:
    """Raise an error if a script is certain to call `checkpoint` but no storage is set: it would fail only later.

    Raises:
        SpecError
    """
    image = options.get("image") or Image()
    if not program.is_script or options.get("checkpoints") is not None or VARIABLE in {*os.environ, *image.env}:
        return
    if not is_local:  # other computers may set the variable for the storage in their own environment
        return
    if line := needs_place(program.script.read_text(errors="replace"), program.words[1:]):
        refuse(
            f"{program.name}, line {line}: checkpoint() has no place to keep checkpoints. Name one: --set "
            "checkpoints=ck, which is a folder that all nodes share, or s3://bucket/folder; or give the call root=..."
        )


def _header(program: Program) -> dict[str, Any]:
    if not program.is_script:
        return {}
    header = header_of(program.script.read_text(errors="replace"), program.name)
    header.check_python(program.name)
    with telling(f"{program.name} [tool.outrider]"):
        check_known("a script's header", header.options, POOL_KEYS | RUN_KEYS | {"pool"})
    own = at(header.options, program.script.parent)
    if not header.dependencies:
        return own
    image = own.get("image", {})
    more = image.get("pip", []) if isinstance(image, Mapping) else []
    needed = [*header.dependencies, *(more if isinstance(more, list) else [more])]
    return merged({"image": {"pip": needed}}, own, {"image": {"pip": needed}} if isinstance(image, Mapping) else {})


def _configured(program: Program, name: object, config_file: files.ConfigFile | None) -> tuple[Table, str]:
    """Return a pool's table in the configuration file, and the table's name for errors.

    ``name``: the pool; None: the pool "default", if the file has one.
    """
    if name is not None and not isinstance(name, str):
        refuse(f"{program.name}: pool is the name of one in {files.OWN}, not {name!r:.60}.")
    if name is None and (config_file is None or files.DEFAULT not in config_file.pools):
        return {}, ""
    if config_file is None:
        refuse(
            f"pool {name!r}: there is no {files.OWN}, and no {files.SHARED} with [tool.outrider], for {program.name}."
        )
    name = files.DEFAULT if name is None else name
    table, where = config_file.pool(name), config_file.where(name)
    with telling(where):
        check_known("a pool", table, POOL_KEYS | RUN_KEYS)
    return table, where


# --- files for other computers ----------------------------------------------------------------------------------------


def _brought(program: Program, image: Image) -> tuple[Place, Image]:
    """Return the program's place on other computers, and the image with the program's files added.

    The image describes the software of the nodes. It includes the working directory. If the script is elsewhere, the
    image includes the script's folder instead, or only the script if that folder is too general (such as the home
    folder).
    """
    folder = program.folder.resolve()
    if program.is_script and not program.script.resolve().is_relative_to(folder):
        folder = program.script.resolve().parent
    if folder in _no_projects():
        if not program.is_script:
            return Place(""), image  # the command is not in a project, so it must be installed on the hosts
        return Place(str(program.script.resolve().parent), ""), _with(image, program.script.resolve())
    return Place(str(folder), folder.name), _with(image, folder)


def _with(image: Image, path: Path) -> Image:
    here = {str(each) for each in image.includes}
    return image if str(path) in here else replace(image, includes=[*image.includes, path])


def _no_projects() -> set[Path]:
    return {Path("/"), Path.home().resolve(), Path(tempfile.gettempdir()).resolve()}
