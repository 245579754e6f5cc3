"""`EC2`: the test cloud, opened by `with`. Tests can also see and do things that its API does not offer."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ....lazy_dataclass import dataclass
from ..shared.billing import Ledger
from ..shared.connections import ClosesConnections
from ..shared.hypervisor import Hypervisor, Paper
from .behaviour import Behaviour
from .faults import Fault, Faults
from .instances import Instance
from .moto import Moto
from .state import CloudState, InstanceLife
from .wsgi_app import CHECKIP, CloudApp

if TYPE_CHECKING:
    from werkzeug.serving import ThreadedWSGIServer


@dataclass(frozen=True, slots=True)
class Left:
    """A resource that still exists, as a describe call would show it."""

    kind: str  # instance, volume, spot request, launch template, placement group, security group, key pair, address
    id: str
    region: str
    tags: dict[str, str]


class EC2:
    """A cloud on this computer, for the length of a `with` block. ``endpoint_url`` serves every service.

    `Behaviour` and faults define EC2; moto answers everything else. Any credentials are accepted. A process has one
    cloud at a time.

    Args:
        behaviour: The semantics and times of EC2.
        hypervisor: Runs the machines. Default: they exist only on paper.
        region: The region.
        faults: Faults in force from the beginning.

    Raises:
        ImportError: ``outrider[testing]`` is not installed.
        RuntimeError: This process has a cloud already.
        ValueError: The region does not exist.
        ExceptionGroup: At the end: exceptions of the hypervisor, and calls that failed by the cloud's own fault.
    """

    def __init__(
        self,
        behaviour: Behaviour = Behaviour(),  # noqa: B008 - the default is immutable
        *,
        hypervisor: Hypervisor | None = None,
        region: str = "us-east-1",
        faults: Sequence[Fault] = (),
    ) -> None:
        self.behaviour, self.region = behaviour, region
        self.hypervisor: Hypervisor = Paper() if hypervisor is None else hypervisor
        self._first_faults = tuple(faults)

    def __enter__(self) -> EC2:
        own = self.behaviour.vpc_cidr if self.behaviour.default_vpc else None
        with ExitStack() as closing:
            self._moto = closing.enter_context(Moto(self.behaviour.seed, default_vpc=own))
            self._state = CloudState(self.behaviour, self.hypervisor, self._moto)
            closing.callback(self._unplug)
            closing.callback(self._state.close)
            self._state.faults.add(*self._first_faults)
            try:
                self._state.region(self.region)
            except KeyError:
                raise ValueError(f"EC2(region=...): there is no region {self.region!r}") from None
            self._app = CloudApp(self._state)
            self._server = _server(self._app)
            closing.callback(self._server.server_close)
            serving = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="ec2-front", daemon=True)
            serving.start()
            closing.callback(serving.join)
            closing.callback(self._server.shutdown)
            # Closed first: the server waits for its calls, which wait for the clock.
            closing.callback(self._state.clock.close)
            self._closing = closing.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()
        if self._state.failures and error is None:
            raise ExceptionGroup("the test cloud or its hypervisor failed", self._state.failures)

    @property
    def endpoint_url(self) -> str:
        """The URL of every service of the cloud."""
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def checkip_url(self) -> str:
        """A URL that answers with the client's own address, like checkip.amazonaws.com."""
        return self.endpoint_url + CHECKIP

    @property
    def faults(self) -> Faults:
        """The faults in force."""
        return self._state.faults

    @property
    def ledger(self) -> Ledger:
        """The bills of all instances."""
        return self._state.ledger

    @property
    def calls(self) -> Counter[str]:
        """The number of calls of each action, including refused and lost ones."""
        return self._app.calls

    def time(self) -> float:
        """Return the cloud's time in seconds since 1970: `time.time`, plus the seconds of `advance`."""
        return self._state.clock.unix()

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass at once; everything that was due has happened when this returns."""
        self._state.advance(seconds)

    def instances(self, *states: str) -> list[Instance]:
        """Return all instances, including terminated ones that EC2 still describes; or only those in these states."""
        with self._state.lock:
            instances = [each for region in self._state.regions.values() for each in region.instances.all()]
        return [each for each in instances if not states or each.state in states]

    def instance(self, instance_id: str) -> Instance:
        """Return one instance."""
        return self._life(instance_id).instance

    def interrupt(self, instance_id: str, notice_s: float = 120.0, rebalance_s: float | None = None) -> None:
        """Take a spot instance: send its notice now, and end it later.

        Args:
            instance_id: The instance.
            notice_s: Seconds from the notice to the end. 0: no notice at all.
            rebalance_s: Send the rebalance recommendation now, and the notice this many seconds later.

        Raises:
            KeyError: The instance does not exist.
            ValueError: The instance is not a spot instance.
        """
        life = self._life(instance_id)
        if life.instance.market != "spot":
            raise ValueError(f"{instance_id} is an on-demand instance, and those are not interrupted")
        life.interrupt(notice_s, rebalance_s)

    def withdraw(self, instance_id: str) -> None:
        """Withdraw an announced interruption."""
        self._life(instance_id).withdraw()

    def left(self) -> list[Left]:
        """Return everything that was created and still exists, in all regions."""
        with self._state.lock:
            return [each for name in self._state.regions for each in self._left_in(name)]

    # --- inside ---------------------------------------------------------------------------------------------------

    def _left_in(self, name: str) -> list[Left]:
        region = self._state.regions[name]
        instances = [each for each in region.instances.all() if each.state != "terminated"]
        requests = [each for each in region.spot_requests.all() if each.state == "active"]
        ours: list[tuple[str, Sequence[Any]]] = [
            ("instance", instances),
            ("volume", region.volumes.all()),
            ("spot request", requests),
            ("launch template", region.templates.all()),
            ("placement group", region.placement_groups.all()),
        ]
        leftovers = [Left(kind, each.id, name, dict(each.tags)) for kind, things in ours for each in things]
        return leftovers + [Left(kind, each, name, tags) for kind, each, tags in self._moto.left(name)]

    def _unplug(self) -> None:
        for region in self._state.regions.values():
            for life in region.lives.values():
                life.unplug()

    def _life(self, instance_id: str) -> InstanceLife:
        with self._state.lock:
            for region in self._state.regions.values():
                if instance_id in region.lives and region.instances.get(instance_id) is not None:
                    return region.lives[instance_id]
        raise KeyError(instance_id)


def _server(wsgi_app: CloudApp) -> ThreadedWSGIServer:
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import ThreadedWSGIServer

    class Handler(MotoRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002, ARG002 - werkzeug defines the signature
            logging.getLogger("outrider.testing.ec2").debug(message, *args)

    class Server(ClosesConnections, ThreadedWSGIServer):
        daemon_threads = False

        def __init__(self) -> None:
            super().__init__("127.0.0.1", 0, wsgi_app, Handler)

    return Server()
