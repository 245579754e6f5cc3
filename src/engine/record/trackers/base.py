"""The definition of a tracker: settings of a pool, and a sender that sends the contents of a run's record.

A `Tracker` is created in the user's program, checked there, and pickled for the sending process. In that process `open`
creates a `Sender` for the tracker. The methods of a `Sender` are called one after another, in a thread of its own, and
may take as long as they need. The module also has what several trackers need: the machines of a run with their places
and names, and checks for the address of a server. It does not import HTTP.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args
from urllib.parse import unquote, urlsplit

from ....actors import events as ev
from ....lazy_dataclass import dataclass
from ...api.checks import one_of, refuse, shown
from ..runs.nodes import nodes_now

READY = ev.PoolReady.name
MOST = 20  # most values of one fact in a tag; a pool of 1,000 nodes has 1,000 instance ids, for example
MACHINES = "machines"  # name of the tag that has the machines' ids
_OF_PROCESSES = frozenset({"pid", "group", "directory"})  # facts of local nodes that mean nothing on another computer
_PLACES = frozenset(  # options of providers that decide where machines are launched
    {
        "account",
        "data_centers",
        "environments",
        "instance_types",
        "partition",
        "project",
        "qos",
        "region",
        "regions",
        "zones",
    }
)

Machine = Mapping[str, Any]


def machines_of(events: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """Return the machines that exist after ``events`` of a run, sorted by node, as JSON values."""
    return [
        {
            "node": number,
            "machine": node.machine,
            "hostname": node.hostname,
            "rank": node.rank,
            "ready": node.ready,
            "facts": {name: value for name, value in node.facts.items() if name not in _OF_PROCESSES},
        }
        for number, node in sorted(nodes_now(events).nodes.items())
    ]


def placement_of(provider: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a provider that decide where its machines are. ``provider``: as in `run.json`."""
    return {name: value for name, value in provider.items() if name in _PLACES and value not in (None, [], "")}


def values_of(machines: Sequence[Machine]) -> dict[str, list[str]]:
    """Return the machines' facts: name -> distinct values, in the order of the nodes.

    The key `MACHINES` has the machines' ids.
    """
    values: dict[str, dict[str, None]] = {MACHINES: {}}
    for machine in machines:
        if machine.get("machine"):
            values[MACHINES][machine["machine"]] = None
        for name, value in machine.get("facts", {}).items():
            values.setdefault(name, {})[value] = None
    return {name: list(distinct) for name, distinct in values.items() if distinct}


def joined(values: Sequence[str]) -> str:
    """Join values to the text of one tag."""
    more = len(values) - MOST
    return ", ".join(values[:MOST]) + (f" and {more} more" if more > 0 else "")


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # the syntax of header names by RFC 9110, 5.6.2


def check_address(owner: str, address: object, example: str) -> str:
    """Check the address of a server.

    Raises:
        SpecError: the address is not valid.
    """
    if not isinstance(address, str):
        refuse(f"{owner} takes the address of a server, as in {example!r}, not {shown(address)}.")
    if not address.isascii() or not address.isprintable() or " " in address:
        refuse(
            f"{owner} takes an address without spaces, line ends or letters beyond ASCII: they are quoted, as %20 is."
        )
    try:
        parts = urlsplit(address)
        named = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # urlsplit's error for a port or an IPv6 address contains the whole address, which may be secret
        named = False
    if not named:
        refuse(f"{owner} takes an address that begins with http:// or https:// and a host, as in {example!r}.")
    return address


def check_header(owner: str, name: str, value: str) -> None:
    """Check an HTTP header. Its value may be a secret, so no error shows the value.

    Raises:
        SpecError: The name or the value is not valid.
    """
    if not _HEADER_NAME.fullmatch(name):
        refuse(f"{owner} takes names of HTTP headers, not {shown(name)}.")
    if not all(" " <= letter <= "~" or letter == "\t" or "\xa0" <= letter <= "\xff" for letter in value):
        refuse(
            f"{owner} has a line's end, or another character that no HTTP header takes. Where it was read from a file, "
            "take .strip() of the text."
        )


def variable(name: str) -> str:
    return os.environ.get(name, "").strip()


def basic(username: str, password: str) -> str:
    """Return the HTTP Authorization header for a user and password; both may be percent-encoded as in a URL."""
    return f"Basic {base64.b64encode(f'{unquote(username)}:{unquote(password)}'.encode()).decode()}"


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
    """The tracker will never accept this data. The data is skipped, the record notes that, and sending continues."""


class Point(NamedTuple):
    """One value that is sent to a tracker.

    Attributes:
        name: The name; with ``ranks="all"`` including the rank.
        value: The value; may be nan or infinite.
        step: The step, or None.
        at: The unix time, by the clock of the node.
        rank: The rank. None outside of broadcasts, and for a mean.
        node: The number of the node, or None.
        function: The name of the function.
        job: The number of the job.
        generation: The number of the broadcast's generation (it restarts after a loss); 0 outside of broadcasts.
        number: For a point without a step: its number among the points of this name, from 0.
    """

    name: str
    value: float
    step: int | None
    at: float
    rank: int | None
    node: int | None
    function: str
    job: int
    generation: int
    number: int = 0


class Artifact(NamedTuple):
    """A file that the run logged.

    Attributes:
        name: The name.
        path: The file's present path in the record. The file name is unique in a run.
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
    """A text that the run logged.

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
        state: ``"finished"``, ``"failed"``, or ``"killed"``: the run was ended by Ctrl-C, a signal, `outrider stop`, or
            the death of its program.
        at: The unix time.
        exit_code: The exit code, or None.
        error: The error; "": none.
        spent_usd: The cost in USD, or None.
    """

    state: State
    at: float
    exit_code: int | None = None
    error: str = ""
    spent_usd: float | None = None


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that is sent to the tracker.

    Attributes:
        id: The id of the run.
        name: The name of the run.
        directory: The folder of the run's record.
        began: The unix time of the run's beginning.
        about: The content of `run.json`: what was started, by whom and from which commit.
        ids: Texts that earlier sending processes have stored by ``keep``, such as the tracker's own id of this run.
        keep: A function that stores a text under a name in the record, and returns when the text is on the disk.
        machines: The machines that were launched before this process began to send. The event `pool_ready` has all
            machines.
    """

    id: str
    name: str
    directory: Path
    began: float
    about: Mapping[str, Any]
    ids: Mapping[str, str]
    keep: Callable[[str, str], None]
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
    twice without storing it twice. Methods that a subclass does not override are not called, and their data is not
    read.

    ``key``: identifies the data by run, kind and position in the record. It is set before each call of a method.
    """

    key = ""

    events: ClassVar[frozenset[str]] = frozenset()  # names of the run's events that are passed to the method `event`

    def begun(self) -> None:
        """Find or create the run at the tracker. Each process that sends this run calls this method first."""

    def params(self, values: Mapping[str, Any]) -> None:
        """Send new and changed settings of the run, as JSON values."""

    def points(self, points: Sequence[Point]) -> None:
        """Send points, in the order in which the run logged them; some thousands at most."""

    def artifact(self, artifact: Artifact) -> None:
        """Send a file that the run logged."""

    def text(self, text: Text) -> None:
        """Send a text that the run logged."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Send an event whose name is in ``events``. The event "pool_ready" also has the pool's ``machines``."""

    def ended(self, end: End) -> None:
        """Send the end of the run. All other data has been sent before."""

    def close(self) -> None:
        """Release this sender's resources. No other method is called after this one.

        It must not raise, and may take 1 s at most.
        """

    def takes(self, what: str) -> bool:
        """Return whether this class overrides the method with the name ``what``."""
        return getattr(type(self), what) is not getattr(Sender, what)


class Tracker:
    """A destination of runs: frozen settings, without I/O.

    A dataclass with the fields ``name`` and ``ranks`` is enough. A tracker must be picklable, including its `Secret`
    values.

    Attributes:
        name: The tracker's name in the record and for `outrider sync --to`, unique in a pool.
        ranks: The ranks of a broadcast whose points are sent: ``"head"`` (rank 0), ``"all"`` or ``"mean"``.
    """

    kind: ClassVar[str] = ""  # name of this kind of tracker in files and commands
    name: str = ""
    ranks: Ranks = "head"

    def open(self, run: TrackedRun) -> Sender:
        """Return the `Sender` for a run. Do not connect to the tracker's server yet."""
        raise NotImplementedError


def check_ranks(owner: str, ranks: object) -> None:
    one_of(f"{owner}(ranks=...)", ranks, get_args(Ranks))


def check_name(owner: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(f"{owner}(name=...) takes up to 40 small letters, digits, '_' and '-', not {shown(name)}.")


def check_trackers(trackers: object) -> tuple[Tracker, ...]:
    """Check the argument ``trackers=`` of a pool.

    Raises:
        SpecError: An element is not a tracker, or a tracker's options are not valid.
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
