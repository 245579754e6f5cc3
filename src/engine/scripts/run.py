"""The run of a script or a command on every node of a new pool: its settings, its files, and its end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ...lazy_dataclass import dataclass
from ..api.checks import check_known, refuse
from ..api.compute import compute
from ..api.image import Image
from ..api.language import options_are_in_file
from ..api.task_options import TaskOptions
from ..checkpoint.store import VARIABLE
from ..config import files, script_header
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
)
from ..config.tracker_tables import with_tables
from ..runs.names import name_of
from ..runs.whole_program import WholeProgram
from .checkpoint_calls import needs_place
from .endings import GentleEnd
from .exit_codes import exit_code
from .program import Place, run_command, run_script
from .ranks import ScriptRanks

if TYPE_CHECKING:
    from ..pool import Pool
    from ..pool_options import PoolOptions
    from ..runs.files import RecordFiles


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
        """Make the exit code in the run's record that of `outrider run`.

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
    header = script_header.header_of(program.script.read_text(errors="replace"), program.name)
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

    The image includes the working directory. If the script is elsewhere, the image includes the script's folder
    instead, or only the script if that folder is too general (such as the home folder).
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
