"""A tracker that sends runs to MLflow by its REST API, without the package mlflow: one MLflow run for each pool.

A repeated delivery changes nothing in MLflow: the MLflow run is found by its tag, a point is one row by name, time,
step and value, a param has one value, and an artifact one path (mlflow/store/tracking/dbmodels of MLflow 2 and 3).
"""

from __future__ import annotations

import json
import math
import mimetypes
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ....lazy_dataclass import dataclass
from ...api.checks import checks_options, refuse, shown
from ...api.secrets import Secret, revealed
from .base import (
    MACHINES,
    READY,
    Artifact,
    Away,
    End,
    Machine,
    Point,
    Ranks,
    Refused,
    Rejected,
    Sender,
    TrackedRun,
    Tracker,
    basic,
    check_address,
    check_header,
    check_name,
    check_ranks,
    joined,
    values_of,
    variable,
)

if TYPE_CHECKING:
    from .http_calls import Calls

API = "/api/2.0/mlflow"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
TAG = "outrider.run"  # the tag by which a later process finds the MLflow run of this run
FACT = "outrider.machine."  # prefix of tags that contain facts about machines
METRICS_MOST, PARAMS_MOST = 1000, 100  # most metrics and params in one batch, by mlflow/utils/validation.py
NAME_CHARS, TAG_CHARS = 250, 5000  # longest name and tag that all versions and stores of MLflow accept
PARAM_CHARS, FEW_PARAM_CHARS = 6000, 500  # longest value of a param: since MLflow 2.8; before MLflow 2.8
STATES = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")
T = TypeVar("T")


@checks_options
@dataclass(frozen=True, slots=True)
class MLflow(Tracker):
    """A tracking server of MLflow, 2.0 or newer.

    Args:
        url: The address of the server. Default: ``MLFLOW_TRACKING_URI`` of the environment.
        experiment: The name of the experiment, which is created if needed. Default: ``MLFLOW_EXPERIMENT_NAME`` of the
            environment, or else MLflow's "Default".
        ranks: The ranks whose points are sent: ``"head"``: rank 0; ``"all"``: all ranks, with the rank in the points'
            names (``loss/rank-1``); ``"mean"``: the mean of each step.
        token: An access token. Default: ``MLFLOW_TRACKING_TOKEN`` of the environment.
        username: A user name, instead of a token. Default: ``MLFLOW_TRACKING_USERNAME`` of the environment.
        password: The user's password. Default: ``MLFLOW_TRACKING_PASSWORD`` of the environment.
        artifacts: False: logged files are not sent.
        name: The name of the tracker, unique in its pool.

    Raises:
        SpecError: There is no address, or an option is not valid.
    """

    kind: ClassVar[str] = "mlflow"

    url: str | None = None
    experiment: str | None = None
    ranks: Ranks = "head"
    token: Secret | str | None = field(default=None, repr=False)
    username: str | None = None
    password: Secret | str | None = field(default=None, repr=False)
    artifacts: bool = True
    name: str = "mlflow"

    def __post_init__(self) -> None:
        url = self.url if self.url is not None else variable("MLFLOW_TRACKING_URI")
        if not url:
            refuse("MLflow takes the address of a server: MLflow('http://host:5000'), or set MLFLOW_TRACKING_URI.")
        check_address("MLflow", url, "http://host:5000")
        check_ranks("MLflow", self.ranks)
        check_name("MLflow", self.name)
        for option in ("experiment", "username"):
            if not isinstance(value := getattr(self, option), str | None):
                refuse(f"MLflow({option}=...) takes a text, not {shown(value)}.")
        for option in ("token", "password"):
            if not isinstance(value := getattr(self, option), Secret | str | None):
                refuse(f"MLflow({option}=...) takes a text or a Secret, not {shown(type(value))}.")
        check_header("MLflow(token=...)", "Authorization", revealed(self.token or ""))
        parts = urlsplit(url)
        own = {
            "url": urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")).rstrip(
                "/"
            ),
            "experiment": self.experiment or variable("MLFLOW_EXPERIMENT_NAME") or "Default",
            "username": self.username or (unquote(parts.username) if parts.username else None),
            "password": _secret(self.password) or (Secret(unquote(parts.password)) if parts.password else None),
            "token": _secret(self.token),
        }
        for option, value in own.items():
            object.__setattr__(self, option, value)

    def open(self, run: TrackedRun) -> MLflowSender:
        from .http_calls import Calls  # imported here, as the import is slow and a pool's program does not need it

        calls = Calls(
            self.url or "",
            self.authorization(),
            cafile=variable("MLFLOW_TRACKING_SERVER_CERT_PATH"),
            insecure=variable("MLFLOW_TRACKING_INSECURE_TLS").lower() in {"true", "1"},
        )
        return MLflowSender(self, run, calls)

    def authorization(self) -> dict[str, str]:
        """Return the HTTP Authorization header, by the tracker's settings or else by the environment."""
        token = self.token or variable("MLFLOW_TRACKING_TOKEN")
        username = self.username or variable("MLFLOW_TRACKING_USERNAME")
        password = self.password or variable("MLFLOW_TRACKING_PASSWORD")
        if username:
            return {"Authorization": basic(quote(username), quote(revealed(password) if password else ""))}
        return {"Authorization": f"Bearer {revealed(token)}"} if token else {}


class MLflowSender(Sender):
    """The sender of one run. Its method `begun` creates the run on the MLflow server."""

    events = frozenset({READY})

    def __init__(self, tracker: MLflow, run: TrackedRun, calls: Calls) -> None:
        self._tracker, self._run, self._calls = tracker, run, calls
        self._id = self._artifacts = ""

    def begun(self) -> None:
        """Create or find the run. If the server rejects it, raise Refused: the data is then sent later, not skipped."""
        try:
            self._begin()
        except Rejected as rejected:
            raise Refused(f"{rejected}: no run could be begun there") from None
        except (KeyError, TypeError, AttributeError):
            raise Away(f"{self._calls.host} answered what no MLflow would: is this its address?") from None

    def _begin(self) -> None:
        address, before = self._tracker.url or "", self._run.ids.get("address")
        if before not in {None, address}:
            raise Refused(f"this run was sent to {before}, and {address} is another server: give it a name of its own")
        experiment = self._experiment()
        kept = self._run.ids.get("run_id")
        existing = self._run_info(kept) if kept else self._searched(experiment)
        info = existing or self._created(experiment)
        self._id, self._artifacts = str(info["run_id"]), str(info.get("artifact_uri", ""))
        self._run.keep("run_id", self._id)
        self._run.keep("address", address)
        self._run.keep("experiment_id", str(info.get("experiment_id", experiment)))

    def params(self, values: Mapping[str, Any]) -> None:
        """Send params.

        MLflow never changes the value of a param: if a value has changed, it is sent as a tag instead.
        """
        params = [{"key": named(name), "value": _text(value, PARAM_CHARS)} for name, value in values.items()]
        for some in _pieces(params, PARAMS_MOST):
            try:
                self._post("runs/log-batch", {"params": some})
            except Rejected:
                for each in some:
                    self._param(each)

    def points(self, points: Sequence[Point]) -> None:
        metrics = [
            {
                "key": named(point.name),
                "value": _number(point.value),
                "timestamp": int(point.at * 1000),
                "step": point.number if point.step is None else point.step,
            }
            for point in points
        ]
        for some in _pieces(metrics, METRICS_MOST):
            self._batch(some)

    def artifact(self, artifact: Artifact) -> None:
        if not self._tracker.artifacts:
            return
        where = urlsplit(self._artifacts)
        if where.scheme != "mlflow-artifacts":
            scheme = where.scheme or "its own disk"
            raise Rejected(
                f"{self._calls.host} keeps artifacts at {scheme} and takes none itself: start it with "
                "--serve-artifacts, and make a new experiment"
            )
        path = quote(f"{where.path.strip('/')}/{artifact.path.name}")
        kind = mimetypes.guess_type(artifact.path.name)[0] or "application/octet-stream"
        try:
            with artifact.path.open("rb") as content:
                size = artifact.path.stat().st_size
                headers = {"Content-Type": kind, "Content-Length": str(size)}
                self._calls.send("PUT", f"{ARTIFACTS}/{path}", content if size else b"", headers)
        except FileNotFoundError:
            raise Rejected("it is not in the record any more") from None

    def event(self, event: Mapping[str, Any]) -> None:
        """Set the facts about the machines as tags, once all machines of the pool are ready."""
        tags = machine_tags(event["machines"])
        if tags:
            self._post("runs/log-batch", {"tags": _tags(tags)})

    def ended(self, end: End) -> None:
        tags = {"outrider.error": end.error}
        if end.exit_code is not None:
            tags["outrider.exit_code"] = str(end.exit_code)
        if end.spent_usd:
            tags["outrider.spent_usd"] = f"{end.spent_usd:.4f}"
        self._post("runs/log-batch", {"tags": _tags(tags)})
        self._post("runs/update", {"status": STATES[end.state], "end_time": int(end.at * 1000)})

    # --- the run ------------------------------------------------------------------------------------------------------

    def _experiment(self) -> str:
        name = self._tracker.experiment or "Default"
        experiment = self._named(name)
        if experiment is None:
            try:
                return str(self._calls.json("POST", f"{API}/experiments/create", {"name": name})["experiment_id"])
            except Rejected:  # another pool created the experiment at the same moment
                experiment = self._named(name)
        if experiment is None or experiment.get("lifecycle_stage", "active") != "active":
            raise Refused(f"{self._calls.host}: the experiment {name!r} was deleted: restore it, or take another name")
        return str(experiment["experiment_id"])

    def _named(self, name: str) -> dict[str, Any] | None:
        try:
            answer = self._calls.json("GET", f"{API}/experiments/get-by-name?experiment_name={quote(name, safe='')}")
        except Refused as refused:
            if "404" in str(refused) and "does not exist" not in str(refused) and "not find" not in str(refused):
                raise  # 404 without MLflow's text: this server is not MLflow
            if "answered 404" in str(refused):
                return None
            raise
        experiment: dict[str, Any] = answer["experiment"]
        return experiment

    def _run_info(self, run: str) -> dict[str, Any]:
        info: dict[str, Any] = self._calls.json("GET", f"{API}/runs/get?run_id={quote(run)}")["run"]["info"]
        return info

    def _searched(self, experiment: str) -> dict[str, Any] | None:
        """Return the MLflow run that an earlier process created but could not note before it was killed; None: none."""
        answer = self._calls.json(
            "POST",
            f"{API}/runs/search",
            {"experiment_ids": [experiment], "filter": f"tags.`{TAG}` = '{self._run.id}'", "max_results": 1},
        )
        runs = answer.get("runs") or []
        return runs[0]["info"] if runs else None

    def _created(self, experiment: str) -> dict[str, Any]:
        run = self._run
        words = [str(each) for each in run.about.get("argv") or ()]
        tags = {
            TAG: run.id,
            "outrider.name": run.name,
            "outrider.provider": run.provider,
            "outrider.host": str((run.about.get("owner") or {}).get("host", "")),
            **{f"outrider.{name}": joined(_words(value)) for name, value in run.placement.items()},
            **machine_tags(run.machines),
            "mlflow.user": run.user,
            "mlflow.source.type": "LOCAL",
            "mlflow.source.name": shlex.join(words[1:] if len(words) > 1 else words),
            "mlflow.source.git.commit": str(run.git.get("commit", "")),
            "mlflow.source.git.branch": str(run.git.get("branch", "")),
        }
        body = {
            "experiment_id": experiment,
            "run_name": run.id,
            "start_time": int(run.began * 1000),
            "tags": _tags(tags),
        }
        info: dict[str, Any] = self._calls.json("POST", f"{API}/runs/create", body)["run"]["info"]
        return info

    # --- batches ------------------------------------------------------------------------------------------------------

    def _post(self, path: str, body: Mapping[str, Any]) -> None:
        self._calls.json("POST", f"{API}/{path}", {"run_id": self._id, **body})

    def _batch(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Send points. If the server rejects some points, skip only these.

        Raises:
            Rejected: The server rejected one or more points; it has the others.
        """
        try:
            self._post("runs/log-batch", {"metrics": metrics})
        except Rejected as rejected:
            if len(metrics) == 1:
                raise Rejected(f"{metrics[0]['key']!r} at step {metrics[0]['step']}: {rejected}") from None
            middle, first = len(metrics) // 2, None
            for half in (metrics[:middle], metrics[middle:]):
                try:
                    self._batch(half)
                except Rejected as error:
                    first = first or error
            if first is not None:
                raise first from None

    def _param(self, param: Mapping[str, str]) -> None:
        for value in dict.fromkeys((param["value"], param["value"][:FEW_PARAM_CHARS])):
            try:
                self._post("runs/log-batch", {"params": [{"key": param["key"], "value": value}]})
            except Rejected:
                continue
            return
        self._post("runs/log-batch", {"tags": _tags({f"param.{param['key']}": param["value"]})})


def named(name: str) -> str:
    """Convert a name to a name that MLflow accepts: a relative path of letters, digits and ``_-. :/``."""
    path = posixpath.normpath(_NOT_IN_NAMES.sub("_", name).replace("..", "__").strip("/")).lstrip("/")
    return path[:NAME_CHARS].rstrip("/") or "_"


def machine_tags(machines: Sequence[Machine]) -> dict[str, str]:
    """Return the tags for the machines of a run: the machines' ids, and the values of each fact."""
    prefixes = {MACHINES: "outrider."}
    return {f"{prefixes.get(name, FACT)}{name}": joined(values) for name, values in values_of(machines).items()}


def _words(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _number(value: float) -> float | str:
    """Return a number as protobuf's JSON writes it: nan and infinities as strings."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: Any, most: int) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:most]


def _tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": named(name), "value": _text(value, TAG_CHARS)} for name, value in tags.items() if value]


def _pieces(values: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(values), most):
        yield values[first : first + most]


def _secret(value: Secret | str | None) -> Secret | None:
    return Secret(value) if isinstance(value, str) else value
