"""`AWS`: Amazon EC2's machines, spot and on demand, that end with their pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Never, TypeVar

import anyio

from ..base import Embedding
from ..errors import refuse_unknown_options
from ..threads import in_thread

if TYPE_CHECKING:
    from .fleet import AWSFleet

T = TypeVar("T")
Several = str | Iterable[str]


@dataclass(frozen=True, slots=True, init=False)
class AWS:
    """Nodes on Amazon EC2, in one region.

    ``region``, ``profile``: default what the AWS command line takes (``AWS_REGION``, ``AWS_PROFILE``, ``~/.aws``), and
    so for credentials. ``ami``: an AMI's id or the name of an SSM parameter with one; default a current Ubuntu, with
    NVIDIA's driver where there is a GPU. ``user``: who logs in there, default by the image. ``vpc``, ``subnets``:
    default the default VPC's. ``security_groups``: default one of the pool's own, open to ``ssh_from`` on port 22
    only: ``"auto"`` is this computer's address, or CIDRs. ``instance_profile``: the role that tasks may use, by name
    or ARN. ``instance_types``, ``zones``: only these. ``address``: by which the machines are reached;
    ``"private"`` gives them no public one, for clients within the VPC or a VPN, and EFA on all network cards.
    ``endpoint_url``: of another cloud that speaks EC2. ``rebalance``: replace a spot machine when EC2 says that it is
    at risk, before it says that it is taken. ``tags``: further ones on everything that is created.

    Machines are found again by the tag ``outrider:pool``; `outrider gc` ends what no living pool owns. A launch
    template, a security group and what else a pool makes are removed with it.

    Raises:
        ValueError: what can never work.
        TypeError: an option that there is not.
    """

    region: str | None
    profile: str | None
    ami: str | None
    user: str | None
    vpc: str | None
    subnets: tuple[str, ...] | None
    security_groups: tuple[str, ...] | None
    instance_profile: str | None
    instance_types: tuple[str, ...] | None
    zones: tuple[str, ...] | None
    address: Literal["public", "private"]
    ssh_from: str | tuple[str, ...]
    endpoint_url: str | None
    rebalance: bool
    tags: tuple[tuple[str, str], ...]

    def __init__(
        self,
        region: str | None = None,
        *,
        profile: str | None = None,
        ami: str | None = None,
        user: str | None = None,
        vpc: str | None = None,
        subnets: Several | None = None,
        security_groups: Several | None = None,
        instance_profile: str | None = None,
        instance_types: Several | None = None,
        zones: Several | None = None,
        address: Literal["public", "private"] = "public",
        ssh_from: str | Sequence[str] = "auto",
        endpoint_url: str | None = None,
        rebalance: bool = False,
        tags: Mapping[str, str] | None = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown_options("AWS", unknown, list(AWS.__dataclass_fields__))
        if address not in ("public", "private"):
            raise ValueError(f"AWS(address=...) is 'public' or 'private', not {address!r}")
        given: dict[str, object] = {
            "region": region,
            "profile": profile,
            "ami": ami,
            "user": user,
            "vpc": vpc,
            "subnets": _several("subnets", subnets),
            "security_groups": _several("security_groups", security_groups),
            "instance_profile": instance_profile,
            "instance_types": _several("instance_types", instance_types),
            "zones": _several("zones", zones),
            "address": address,
            "ssh_from": ssh_from if ssh_from == "auto" else _cidrs(ssh_from),
            "endpoint_url": endpoint_url,
            "rebalance": bool(rebalance),
            "tags": _tags(tags or {}),
        }
        for name, value in given.items():
            if value == "":
                raise ValueError(f"AWS({name}=...) is empty: leave it out for its default")
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        return "aws"

    @property
    def local(self) -> bool:
        return False

    @property
    def outlives(self) -> bool:
        """Return that the machines outlive their client, for some minutes: see `AWSFleet.adopt`."""
        return True

    @asynccontextmanager
    async def open(self, pool: str, embedding: Embedding) -> AsyncIterator[AWSFleet]:  # noqa: ARG002
        """The network is prepared meanwhile; what goes wrong there is told by `launch`.

        Raises:
            BadRequest: no region is known, the extra ``outrider[aws]`` is not installed, or the pool is somebody's.
            NotAuthorized: there is no such profile.
            JournalError: what is created could not be written down.
        """
        from ..journal import Journal
        from .fleet import AWSFleet
        from .recorded import RecordedApi
        from .teardown import place_of

        opened = RecordedApi.open(region=self.region, endpoint_url=self.endpoint_url, profile=self.profile)
        async with opened as api:
            assert isinstance(api, RecordedApi)
            journal = await _surely(Journal.open)
            ownership = await _surely(partial(journal.own, pool, self.name, place_of(api)))
            try:
                api.record(journal, pool)
                async with anyio.create_task_group() as tasks:
                    fleet = AWSFleet(self, pool, api, tasks)
                    fleet.start()
                    try:
                        yield fleet
                    finally:
                        with anyio.CancelScope(shield=True):
                            await fleet.close()
                        tasks.cancel_scope.cancel()
            finally:
                await _surely(ownership.close)


async def _surely(run: Callable[[], T]) -> T:
    """Run ``run`` in a thread, uncancelled to its end: a lock whose result is lost is held until the program ends."""
    results: list[T] = []
    with anyio.CancelScope(shield=True):
        results.append(await in_thread(run))
    return results[0]


def _several(option: str, given: Several | None) -> tuple[str, ...] | None:
    """
    Raises:
        ValueError: there are none in it, or it is one text: of a list of one, or of letters?
    """
    if given is None:
        return None
    if isinstance(given, str):
        raise ValueError(f"AWS({option}=...) takes a list: write AWS({option}=[{given!r}])")
    names = tuple(dict.fromkeys(given))
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"AWS({option}=...) takes a list of names: leave it out for its default")
    return names


def _cidrs(given: str | Sequence[str]) -> tuple[str, ...]:
    from .firewall import sources

    return sources(given)


def _tags(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """
    Raises:
        ValueError: EC2 takes none such, or they are ours.
    """
    from .tags import RESERVED

    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"AWS(tags=...) takes texts, not {key!r}: {value!r}")
        if not 0 < len(key) <= 128 or len(value) > 256:
            raise ValueError(f"AWS(tags=...): {key!r}: EC2 takes keys of 1 to 128 characters and values of up to 256")
        if key.lower().startswith(RESERVED):
            raise ValueError(f"AWS(tags=...): {key!r}: what begins with {' or '.join(RESERVED)} is not for users")
    return tuple(given.items())
