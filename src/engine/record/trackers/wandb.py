"""A tracker that sends runs to Weights & Biases (W&B) by the package wandb: online, or into files for ``wandb sync``.

The package writes from a process of its own, and loses unwritten data if that process is killed. So all data is first
written to a journal file in the record, each row of which becomes one step of W&B. After a kill, another process sends
the rows that W&B lacks: online, W&B returns the number of its next step; offline, all its files are written again.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from ....lazy_dataclass import dataclass
from ...api.checks import checks_options, one_of, refuse, shown
from ...api.secrets import Secret, revealed
from .base import (
    MOST,
    READY,
    Artifact,
    Away,
    End,
    Machine,
    Point,
    Ranks,
    Refused,
    Sender,
    TrackedRun,
    Tracker,
    check_name,
    check_ranks,
    values_of,
)
from .json_lines import ExactFiles, check_folder
from .state_file import FOLDER

Mode = Literal["online", "offline"]
# Metric that holds the training's step. W&B's own steps can only increase, but a training may restart from a
# checkpoint.
STEP = "outrider/step"
CONNECT_S = 60.0
CLOSE_S = 1.0  # seconds for W&B to write its data, if this process ends before the run does
FINISHED = "finished"
# facts about machines that become tags, as people search for them
TAGGED = ("job", "partition", "type", "region", "zone", "market")
TAG_CHARS = 64  # longest tag that wandb accepts
# settings that disable W&B's own output and data collection; only those that the installed version has are used
QUIET: Mapping[str, Any] = {
    "console": "off",
    "disable_git": True,
    "disable_job_creation": True,
    "init_timeout": CONNECT_S,
    "save_code": False,
    "silent": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
}


@checks_options
@dataclass(frozen=True, slots=True)
class WandB(Tracker):
    """Weights & Biases, by its package ``wandb``, which must be installed on this computer.

    Args:
        project: The project. Default: ``WANDB_PROJECT`` of the environment.
        entity: The user or team. Default: ``WANDB_ENTITY`` of the environment.
        mode: ``"online"`` or ``"offline"``. Default: ``WANDB_MODE`` of the environment.
        ranks: The ranks whose points are sent: ``"head"``: rank 0; ``"all"``: all ranks, with the rank in the points'
            names; ``"mean"``: the mean of each step.
        api_key: The key. Default: ``WANDB_API_KEY`` of the environment, or the key that ``wandb login`` has stored.
        url: The address of your own W&B server. Default: the public server.
        folder: The folder for W&B's files. Default: in the run's record.
        artifacts: False: logged files are not sent.
        name: The name of the tracker, unique in its pool.

    Raises:
        SpecError: wandb is not installed, or an option is not valid.
    """

    kind: ClassVar[str] = "wandb"

    project: str | None = None
    entity: str | None = None
    mode: Mode | None = None
    ranks: Ranks = "head"
    api_key: Secret | str | None = field(default=None, repr=False)
    url: str | None = None
    folder: str | os.PathLike[str] | None = None
    artifacts: bool = True
    name: str = "wandb"

    def __post_init__(self) -> None:
        if find_spec("wandb") is None:
            refuse("WandB needs the package wandb, which is not installed: pip install wandb.")
        for option in ("project", "entity", "url"):
            if not isinstance(value := getattr(self, option), str | None):
                refuse(f"WandB({option}=...) takes a text, not {shown(value)}.")
        if self.mode is not None:
            one_of("WandB: mode", self.mode, get_args(Mode))
        if isinstance(self.api_key, str):
            object.__setattr__(self, "api_key", Secret(self.api_key))
        if self.folder is not None:
            object.__setattr__(self, "folder", check_folder("WandB(folder=...)", self.folder))
        check_ranks("WandB", self.ranks)
        check_name("WandB", self.name)

    @property
    def is_offline(self) -> bool:
        """Return whether W&B's files stay on this computer, for a later ``wandb sync``."""
        return (self.mode or os.environ.get("WANDB_MODE", "")) == "offline"

    def open(self, run: TrackedRun) -> Sender:
        return (WandBSender if self.artifacts else _WithoutArtifacts)(self, run)


class WandBSender(Sender):
    """Sends one run to W&B.

    ``_next``: the number of W&B's next step. ``_rows``: the number of journal rows that were sent or skipped.
    """

    events = frozenset({READY})

    def __init__(self, tracker: WandB, run: TrackedRun) -> None:
        self._tracker, self._run = tracker, run
        self._name = f"{tracker.name}.journal.jsonl"
        self._journal = ExactFiles(run.directory / FOLDER, run)
        self._folder = Path(tracker.folder or run.directory)
        self._waiting: list[dict[str, Any]] = []  # rows of the journal that W&B does not have yet
        self._wandb: Any = None
        self._next = self._rows = 0

    def begun(self) -> None:
        if self._run.ids.get(FINISHED):
            return
        path = self._journal.folder / self._name
        self._journal.recover([path] if path.exists() else [])
        self._wandb = self._started()
        self._describe(self._run.machines)
        self._waiting = list(_lines(path))
        self._give()

    def params(self, values: Mapping[str, Any]) -> None:
        self._take([{"params": dict(values)}])

    def points(self, points: Sequence[Point]) -> None:
        self._take(list(rows(points)))

    def artifact(self, artifact: Artifact) -> None:
        self._take([{"artifact": artifact.path.name, "name": artifact.name}])

    def event(self, event: Mapping[str, Any]) -> None:
        self._take([{"machines": event["machines"]}])

    def ended(self, end: End) -> None:
        if not self._run.ids.get(FINISHED):
            self._give()
            self._wandb.finish(exit_code=0 if end.state == "finished" else end.exit_code or 1)
            self._run.keep(FINISHED, "1")
        with suppress(OSError):
            (self._journal.folder / self._name).unlink()

    def close(self) -> None:
        if self._wandb is not None and not self._run.ids.get(FINISHED):
            last = threading.Thread(target=self._finish, args=(0,), name="outrider-wandb-end", daemon=True)
            last.start()
            last.join(CLOSE_S)

    def _finish(self, code: int) -> None:
        with suppress(Exception):
            self._wandb.finish(exit_code=code)

    def _take(self, lines: list[dict[str, Any]]) -> None:
        if self._run.ids.get(FINISHED):
            return
        if not self._journal.has(self.key):
            text = "".join(json.dumps(line, default=str) + "\n" for line in lines)
            self._journal.append(self.key, {self._name: text.encode()})
            self._waiting += lines
        self._give()

    def _give(self) -> None:
        """Pass the waiting rows to W&B. After an error, the next call passes the remaining rows."""
        while self._waiting:
            line = self._waiting[0]
            if "row" in line:
                if self._rows >= self._next:
                    row = {name: float(value) for name, value in line["row"].items()}
                    step = {} if line["step"] is None else {STEP: line["step"]}
                    self._wandb.log({**row, **step, "_timestamp": line["at"]}, step=self._rows, commit=True)
                self._rows += 1
            elif "params" in line:
                self._wandb.config.update(line["params"], allow_val_change=True)
            elif "machines" in line:
                self._describe(line["machines"])
            else:
                self._upload(line)
            del self._waiting[0]

    def _describe(self, machines: Sequence[Machine]) -> None:
        """Write the machines to the config of the W&B run, and their facts to its tags."""
        run = self._run
        about = {"id": run.id, "provider": run.provider, "user": run.user, "git": dict(run.git)}
        self._wandb.config.update(
            {"outrider": about | {"placement": run.placement, "machines": list(machines)}}, allow_val_change=True
        )
        self._wandb.tags = tuple(dict.fromkeys((*(self._wandb.tags or ()), *fact_tags(machines))))

    def _upload(self, line: Mapping[str, Any]) -> None:
        path = self._run.directory / "artifacts" / line["artifact"]
        if not path.exists():
            return
        artifact = import_module("wandb").Artifact(_artifact_name(f"{self._run.id}-{line['artifact']}"), type="file")
        artifact.add_file(str(path), name=line["name"].lstrip("/") or line["artifact"])
        self._wandb.log_artifact(artifact)

    def _started(self) -> Any:
        """Start a W&B run and return it.

        Online, W&B continues an existing run of the same id. Offline, the run is written anew, as old files may be
        incomplete.
        """
        tracker, run = self._tracker, self._run
        if tracker.is_offline:
            for left in (self._folder / "wandb").glob(f"offline-run-*-{run.id}"):
                shutil.rmtree(left, ignore_errors=True)
        if tracker.api_key is not None:
            os.environ["WANDB_API_KEY"] = revealed(tracker.api_key)
        wandb = import_module("wandb")
        known = getattr(wandb.Settings, "model_fields", None)
        settings = {name: value for name, value in QUIET.items() if known is None or name in known}
        if tracker.url is not None:
            settings["base_url"] = tracker.url
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            started = wandb.init(
                dir=str(self._folder),
                project=tracker.project,
                entity=tracker.entity,
                id=run.id,
                name=run.id,
                tags=[run.name] if run.name else None,
                mode="offline" if tracker.is_offline else "online",
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(**settings),
            )
        except wandb.errors.UsageError as error:  # for example: there is no API key
            raise Refused(f"wandb: {error}") from error
        except (wandb.errors.Error, OSError) as error:
            raise Away(f"wandb: {error}") from error
        started.define_metric(STEP)
        started.define_metric("*", step_metric=STEP)
        self._rows, self._next = 0, 0 if tracker.is_offline else int(started.step or 0)
        return started


class _WithoutArtifacts(WandBSender):
    artifact = Sender.artifact


def fact_tags(machines: Sequence[Machine]) -> list[str]:
    """Return tags such as "zone:us-east-1a" for the machines of a run. They do not contain the machines' ids."""
    facts = values_of(machines)
    tags = [f"{name}:{value}" for name in TAGGED for value in facts.get(name, [])[:MOST]]
    return [tag for tag in tags if len(tag) <= TAG_CHARS]


def rows(points: Sequence[Point]) -> Iterator[dict[str, Any]]:
    """Yield rows for W&B, each with all values of one log call."""
    row: dict[str, Any] = {}
    of: tuple[object, ...] = ()
    for point in points:
        now = (point.step, point.at, point.rank, point.function, point.job, point.generation)
        if row and (now != of or point.name in row["row"]):
            yield row
            row = {}
        if not row:
            row, of = {"row": {}, "step": point.step, "at": point.at}, now
        row["row"][point.name] = point.value if math.isfinite(point.value) else str(point.value)
    if row:
        yield row


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with suppress(FileNotFoundError), path.open() as file:
        for line in file:
            yield json.loads(line)


def _artifact_name(name: str) -> str:
    return "".join(each if each.isalnum() or each in "-_." else "-" for each in name)[:128]
