"""A pool's firewall rules: they allow SSH from its client and all traffic among its machines, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from ..cloud import small_labels as labels
from ..cloud.labels import labels_of
from ..cloud.own_address import let_in
from ..resource_ownership import Thing
from ..side_by_side import side_by_side

if TYPE_CHECKING:
    from ..cloud.recorder import Recorder
    from .api import Api

KIND: Final = "firewall-rule"
# Priorities: the smallest number wins. The network's own rules (default-allow-ssh is open to all) have 65534 or 1000.
ALLOWED, DENIED = 900, 910


class GCPOptions(Protocol):
    """The options of `GCP` that a launch reads."""

    @property
    def image(self) -> str | None: ...

    @property
    def user(self) -> str: ...

    @property
    def network(self) -> str: ...

    @property
    def subnet(self) -> str | None: ...

    @property
    def network_tags(self) -> Collection[str] | None: ...

    @property
    def service_account(self) -> str | None: ...

    @property
    def instance_types(self) -> Collection[str] | None: ...

    @property
    def zones(self) -> Collection[str] | None: ...

    @property
    def ssh_from(self) -> str | Sequence[str]: ...

    @property
    def max_run_hours(self) -> float: ...

    @property
    def labels(self) -> Mapping[str, str] | tuple[tuple[str, str], ...]: ...

    @property
    def public(self) -> bool: ...


async def prepare(api: Api, provider: GCPOptions, recorder: Recorder) -> tuple[str, ...]:
    """Create the pool's firewall rules, unless the user has named tags of existing rules. Return the tags for the
    pool's machines.

    Raises:
        BadRequest: This computer's address cannot be determined.
        ProviderError: Compute Engine refused a rule, or did not respond.
    """
    if provider.network_tags is not None:
        return tuple(provider.network_tags)
    inside = provider.ssh_from == "auto" and not provider.public
    sources = await let_in("GCP", "10.0.0.0/8" if inside else provider.ssh_from, api.endpoint_url)
    tag = labels.stem(recorder.pool)
    ours = {"direction": "INGRESS", "targetTags": [tag], "network": f"global/networks/{provider.network}"}
    everything = [{"IPProtocol": "all"}]
    rules = [
        {"priority": ALLOWED, "sourceRanges": list(sources), "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]},
        {"priority": ALLOWED, "sourceTags": [tag], "allowed": everything},
        {"priority": DENIED, "sourceRanges": ["0.0.0.0/0"], "denied": everything},
    ]
    await side_by_side([partial(_make, api, recorder, {**ours, **each}) for each in rules])
    return (tag,)


async def _make(api: Api, recorder: Recorder, rule: Mapping[str, Any]) -> None:
    token = uuid4().hex
    name = f"{labels.stem(recorder.pool)}-{token[:10]}"
    body = {**rule, "name": name, "description": labels.description(labels_of(recorder.pool, {}), token)}
    ask = partial(api.carry_out, "POST", "/global/firewalls", "a firewall rule", body=body, token=token)
    await recorder.create(KIND, token, {}, ask, lambda _: [name])


async def shown(api: Api, pool: str = "") -> list[Thing]:
    """Return the firewall rules whose description names ``pool``; if ``pool`` is empty, the rules of all pools."""
    named = f'name eq "{labels.stem(pool) if pool else "outrider"}-.*"'
    things = [labels.thing(each["name"], each) for each in await api.pages("/global/firewalls", {"filter": named})]
    return [each for each in things if each.pool and pool in ("", each.pool)]


async def delete(api: Api, name: str) -> None:
    await api.carry_out("DELETE", f"/global/firewalls/{name}", f"the end of {name}")
