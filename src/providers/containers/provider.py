"""`Containers`: nodes in any image, as containers of Docker or Podman on this computer or on the user's hosts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, field
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, Login, MachineOffer
from ..cloud.provider import CloudProvider, set_all, several
from ..errors import UnknownOption
from ..shared.login_options import LongOptions, OptionValue, as_texts, login_of, long_options, words_of
from ..shared.option_names import checking_options
from ..shared.paths import StrPath

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.offers import Cooldowns
    from ..cloud.port import Plan
    from ..cloud.recorder import Recorder
    from ..shared.login_host import Place
    from .cloud import ContainerCloud, ContainerLauncher

Pull = Literal["missing", "always", "never"]
OURS = {  # options of `docker run` that Outrider sets itself, each with the option of Outrider to use instead
    **dict.fromkeys(("rm", "detach", "name", "label", "entrypoint", "interactive", "tty", "restart"), ""),
    "pull": "Containers(pull=...)",
    "network": "Containers(network=...)",
    "net": "Containers(network=...)",
    "volume": "Containers(volumes=[...])",
    "memory": "Pool(memory_gb=...)",
    "cpus": "Pool(vcpus=...)",
    "gpus": "Pool(accelerator=...)",
    "env": "Image(env={...})",
}


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True)
class Containers(CloudProvider["ContainerCloud"]):
    """Nodes in containers of Docker or Podman, which end with the pool. An image needs only a shell.

    Args:
        image: The image, as for ``docker run``, such as ``"python:3.12-slim"``. None: the pool's
            ``Image(container=...)``.
        hosts: Hosts with Docker or Podman, each ``"user@host:port"``, to which the client connects as `SSH` does.
            Containers are spread over them. None: this computer.
        runtime: ``"docker"``, ``"podman"``, or a list of words such as ``["sudo", "-n", "docker"]``. ``"auto"``: Docker
            if it can be used, else Podman.
        network: True: the runtime's own network. False: no network. A text: the name of a network. If nodes on several
            hosts need to reach each other, use ``"host"``.
        pull: When the image is fetched: ``"missing"``, ``"always"`` or ``"never"``.
        volumes: Volumes, as for ``docker run --volume``.
        per_host: The most containers of a pool on a host. None: no limit.
        options: Further long options of ``docker run``, such as ``{"shm-size": "16g", "ulimit": ["memlock=-1"]}``.
            True: an option without a value.
        key: A private key file for the hosts, as for `SSH`.
        known_hosts: Files to check the hosts' keys against, as for `SSH`.
        config: True reads ``~/.ssh/config`` if it exists; or the path of another file.

    Raises:
        ValueError: An option can never work.
        TypeError: The option does not exist.
    """

    image: str | None = None
    _: KW_ONLY
    hosts: Collection[str] | None = None
    runtime: str | Sequence[str] = "auto"
    network: bool | str = True
    pull: Pull = "missing"
    volumes: Sequence[str] = ()
    per_host: int | None = None
    options: Mapping[str, OptionValue] | LongOptions = ()
    key: StrPath | None = None
    known_hosts: StrPath | Sequence[StrPath] | None = None
    config: bool | StrPath = True
    login: Login = field(init=False)  # made from the options key, known_hosts and config
    # The hosts, each with the login to it; empty: this computer.
    places: tuple[Place, ...] = field(init=False, repr=False)

    name = "containers"
    free = True
    # No key of the pool is needed: the user's own login leads to the hosts, and containers have no SSH server.
    keyless = True
    containers = True  # machines run an image that `Image(container=...)` may name

    def __post_init__(self) -> None:
        from ..shared.login_host import Place

        image, network, runtime, names = self.image, self.network, self.runtime, self.hosts
        if image is not None and (not image or image.startswith("-") or any(c.isspace() for c in image)):
            raise ValueError(f"Containers(image={image!r}) is no image: write one as for `docker run`")
        if self.pull not in get_args(Pull):
            raise ValueError(f"Containers(pull=...) is 'missing', 'always' or 'never', not {self.pull!r}")
        if self.per_host is not None and self.per_host < 1:
            raise ValueError(f"Containers(per_host=...) must be 1 or more, not {self.per_host!r}")
        if not isinstance(network, bool) and (not network or network.startswith("-")):
            raise ValueError(f"Containers(network={network!r}): True, False or a network's name, such as 'host'")
        words = words_of(runtime)
        if not words or not all(isinstance(each, str) and each for each in words):
            raise ValueError("Containers(runtime=...) is 'auto', 'docker', 'podman', or a list of words of a command")
        names = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else names
        hosts = several("Containers", "hosts", names) or ()
        if len(hosts) < len(names or ()):
            raise ValueError("Containers(hosts=...) has a host twice; per_host= is for several containers on one")
        login = login_of("Containers", key=self.key, known_hosts=self.known_hosts, config=self.config)
        checked = {
            "hosts": hosts,
            "runtime": words,
            "volumes": several("Containers", "volumes", self.volumes or None) or (),
            "options": long_options("Containers", self.options, command="docker run", example="shm-size", ours=OURS),
            "login": login,
            "places": tuple(Place.of_option("Containers(hosts=...)", each, login) for each in hosts),
        }
        set_all(self, checked)

    @property
    def journal_place(self) -> dict[str, str]:
        """Return the runtime's command and the hosts, as texts for the journal.

        By these texts, later commands find the containers.
        """
        where = {"containers": shlex.join(self.runtime)}
        if not self.hosts:
            return {**where, "on": os.uname().nodename}
        return {**where, "hosts": " ".join(self.hosts), **as_texts(self.login)}

    def _reach(self) -> AbstractAsyncContextManager[ContainerCloud]:
        from .cloud import reach

        return reach(self)

    async def _first_plan(self, cloud: ContainerCloud, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:  # noqa: ARG002
        from .cloud import plan

        return plan(self, request, cooldowns)

    def _shown(self, offer: MachineOffer, plan: Plan) -> MachineOffer:  # noqa: ARG002
        """Return the offer without hardware, because a host's hardware is unknown before the first connection."""
        return MachineOffer(kind=offer.kind, place=offer.place, hourly_usd=0.0)

    def _launcher(self, cloud: ContainerCloud, recorder: Recorder, tasks: TaskGroup) -> ContainerLauncher:  # noqa: ARG002
        from .cloud import ContainerLauncher

        return ContainerLauncher(self, cloud, recorder)
