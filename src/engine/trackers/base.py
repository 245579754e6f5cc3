"""The definition of a tracker: settings of a pool, and a sender of the contents of a run's record.

A `Tracker` is created in the user's program, checked there, and pickled for the process that sends. In that process
`open` creates its `Sender`, whose methods are called one after another, in one thread for this sender. The methods may
take as long as they need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from ...lazy_dataclass import dataclass
from ..api.checks import one_of, refuse, shown
from .machines import Machine, placement_of

Ranks = Literal["head", "all", "mean"]
State = Literal["finished", "failed", "killed"]
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class Away(Exception):
    """The tracker could not take the data now. The sender sends the same data again.

    Args:
        why: The reason.
        retry_after_s: Seconds until the next attempt, if the tracker specified them.
    """

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class Refused(Away):
    """The tracker takes no data from this sender: the token or the address is wrong.

    The sender tries again, but rarely.
    """


class Rejected(Exception):
    """The tracker will never take this data. The data is left out, the record notes that, and sending continues."""


class Point(NamedTuple):
    """One value to be sent.

    Attributes:
        name: The name; with ``ranks="all"`` including the rank.
        value: The value; may be nan or infinite.
        step: The step, or None.
        at: The unix time, by the clock of the node.
        rank: The rank. None outside of broadcasts, and for a mean.
        node: The number of the node, or None.
        function: The name of the function.
        job: The number of the job.
        generation: The generation; 0 outside of broadcasts.
        number: For a point without a step: its number among the points of this name, from 0.
    """

    name: str
    value: float  # may also be nan or infinite
    step: int | None
    at: float
    rank: int | None
    node: int | None
    function: str
    job: int
    generation: int
    number: int = 0


class Artifact(NamedTuple):
    """A file that was logged.

    Attributes:
        name: The name.
        path: The present path of the file in the record. Its file name is unique in a run.
        size_bytes: The size.
        sha256: The digest of the content.
        at: The unix time.
        rank: The rank, or None.
        step: The step, or None.
    """

    name: str
    path: Path
    size_bytes: int
    sha256: str
    at: float
    rank: int | None
    step: int | None = None


class Text(NamedTuple):
    """A text that was logged.

    Attributes:
        name: The name.
        text: The text.
        step: The step, or None.
        at: The unix time.
        rank: The rank, or None.
    """

    name: str
    text: str
    step: int | None
    at: float
    rank: int | None


class End(NamedTuple):
    """The end of a run.

    Attributes:
        state: ``"finished"``, ``"failed"``, or ``"killed"``: by Ctrl-C, a signal, `outrider stop`, or the death of its
            program.
        at: The unix time.
        exit_code: The exit code, or None.
        error: The error, or empty.
        spent_usd: The cost in USD, or None.
    """

    state: State
    at: float
    exit_code: int | None = None
    error: str = ""
    spent_usd: float | None = None


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run whose record is sent.

    Attributes:
        id: The id of the run.
        name: The name of the run.
        directory: The folder of the record.
        began: The unix time of the beginning.
        about: The content of `run.json`: what was started, by whom and from which commit.
        ids: Texts that earlier processes have stored by ``keep``, such as the tracker's own id of this run.
        keep: A function that stores a name and a text in the record, and returns when they are written.
        machines: The machines that were launched before this process began to send; the event `pool_ready` has all
            machines later.
    """

    id: str
    name: str
    directory: Path
    began: float  # unix time
    about: Mapping[str, Any]
    ids: Mapping[str, str]
    keep: Callable[[str, str], None]  # stores a name and a text in the record, and returns when they are written
    machines: Sequence[Machine] = ()

    @property
    def provider(self) -> str:
        named = self._provider
        return str(named.get("class", "") if isinstance(named, Mapping) else named or "")

    @property
    def placement(self) -> dict[str, Any]:
        """The options of the provider that decide where machines are launched, such as "region" or "partition"."""
        named = self._provider
        return placement_of(named) if isinstance(named, Mapping) else {}

    @property
    def _provider(self) -> Any:
        first = ((self.about.get("spec") or {}).get("specs") or [{}])[0]
        return first.get("provider") if isinstance(first, Mapping) else None

    @property
    def user(self) -> str:
        return str((self.about.get("owner") or {}).get("user", ""))

    @property
    def git(self) -> Mapping[str, Any]:
        git = self.about.get("git")
        return git if isinstance(git, Mapping) else {}


class Sender:
    """Sends one run to one tracker. Each method returns when the tracker has the data.

    A method raises `Away`, `Refused` or `Rejected`; any other exception counts as `Away`. After `Away`, and after the
    death of the process, the same data is sent again with the same ``key``, so a tracker must accept the same data
    twice without storing it twice. Methods that are not overridden are not called, and their data is not read.

    ``key``: identifies the data by run, kind and position in the record; set before each call.
    """

    key = ""

    events: ClassVar[frozenset[str]] = frozenset()  # names of the events that `event` is called with

    def begun(self) -> None:
        """Find or create the run. Called first, and again in each process that sends this run."""

    def params(self, values: Mapping[str, Any]) -> None:
        """Send settings of the run as JSON values: new ones, and changed ones."""

    def points(self, points: Sequence[Point]) -> None:
        """Send points, in the order in which they were recorded; at most some thousands."""

    def artifact(self, artifact: Artifact) -> None:
        """Send a file that was logged."""

    def text(self, text: Text) -> None:
        """Send a text that was logged."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Send an event of the record whose name is in ``events``. "pool_ready" also has the pool's ``machines``."""

    def ended(self, end: End) -> None:
        """Send the end of the run, after all other data was sent."""

    def close(self) -> None:
        """Release the resources of this process, which sends no more. Must not raise, and may take a second at most."""

    def takes(self, what: str) -> bool:
        """Return whether the method with this name is overridden."""
        return getattr(type(self), what) is not getattr(Sender, what)


class Tracker:
    """A destination of runs: frozen settings, without I/O. A dataclass with ``name`` and ``ranks`` is enough.

    A tracker must be picklable, including its `Secret` values.

    Attributes:
        name: The name in the record and for `outrider sync --to`, unique in a pool.
        ranks: The ranks of a broadcast whose points are sent: ``"head"``, ``"all"`` or ``"mean"``.
    """

    kind: ClassVar[str] = ""  # name of this kind of tracker in files and commands
    name: str = ""
    ranks: Ranks = "head"

    def open(self, run: TrackedRun) -> Sender:
        """Return the `Sender` of this run. Does not connect yet."""
        raise NotImplementedError


def check_ranks(owner: str, ranks: object) -> None:
    one_of(f"{owner}(ranks=...)", ranks, get_args(Ranks))


def check_name(owner: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(f"{owner}(name=...) takes up to 40 small letters, digits, '_' and '-', not {shown(name)}.")


def check_trackers(trackers: object) -> tuple[Tracker, ...]:
    """Check a pool's ``trackers=``.

    Raises:
        SpecError: an element is not a tracker, or its options are not valid.
    """
    if isinstance(trackers, Tracker | str) or not isinstance(trackers, Sequence):
        refuse(f'trackers takes a list, as in trackers=[trackers.MLflow("http://host:5000")], not {shown(trackers)}.')
    for each in trackers:
        if not isinstance(each, Tracker):
            call = f": write trackers.{each.__name__}(...)" if isinstance(each, type) else ""
            call = call or (": a name is for outrider.toml and `outrider run --track`" if isinstance(each, str) else "")
            refuse(f"trackers takes trackers, not {shown(each)}{call}.")
        check_name(type(each).__name__, each.name)
        check_ranks(type(each).__name__, each.ranks)
    names = [each.name for each in trackers]
    for name in names:
        if names.count(name) > 1:
            refuse(f"two trackers of this pool are called {name!r}: give one of them another name=.")
    return tuple(trackers)
