"""A pool's firewall rules: SSH for its client and everything among its machines, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from ..cloud import small_labels as labels
from ..cloud.labels import labels_of
from ..cloud.own_address import let_in
from ..resource_ownership import Thing
from ..side_by_side import side_by_side
from .launch import Place

if TYPE_CHECKING:
    from ..cloud.recorder import Recorder
    from .api import Api
    from .provider import GCP

KIND: Final = "firewall-rule"
# The network's own rules (default-allow-ssh is open to all) have 65534 or 1000; the smallest number holds.
ALLOWED, DENIED = 900, 910


async def prepare(api: Api, provider: GCP, recorder: Recorder) -> Place:
    """Make the pool's rules, unless the user has named tags of rules that exist.

    Raises:
        BadRequest: this computer's address is not to be found out.
        ProviderError: Compute Engine refused a rule, or did not answer.
    """
    network = f"global/networks/{provider.network}"
    subnet = f"regions/{api.region}/subnetworks/{provider.subnet}" if provider.subnet else ""
    if provider.network_tags is not None:
        return Place(network=network, subnet=subnet, tags=tuple(provider.network_tags), public=provider.public)
    inside = provider.ssh_from == "auto" and not provider.public
    sources = await let_in("GCP", "10.0.0.0/8" if inside else provider.ssh_from, api.endpoint_url)
    tag = labels.stem(recorder.pool)
    jobs = [partial(_make, api, recorder, network, each) for each in rules(tag, sources)]
    await side_by_side(jobs)
    return Place(network=network, subnet=subnet, tags=(tag,), public=provider.public)


def rules(tag: str, sources: Sequence[str]) -> list[dict[str, Any]]:
    """The rules of machines with this tag, without name and network. They count before the network's own."""
    ours = {"direction": "INGRESS", "targetTags": [tag]}
    ssh = {"IPProtocol": "tcp", "ports": ["22"]}
    return [
        {**ours, "priority": ALLOWED, "sourceRanges": list(sources), "allowed": [ssh]},
        {**ours, "priority": ALLOWED, "sourceTags": [tag], "allowed": [{"IPProtocol": "all"}]},
        {**ours, "priority": DENIED, "sourceRanges": ["0.0.0.0/0"], "denied": [{"IPProtocol": "all"}]},
    ]


async def _make(api: Api, recorder: Recorder, network: str, rule: dict[str, Any]) -> None:
    token = uuid4().hex
    name = f"{labels.stem(recorder.pool)}-{token[:10]}"
    said = {
        **rule,
        "name": name,
        "network": network,
        "description": labels.description(labels_of(recorder.pool, {}), token),
    }

    async def ask() -> None:
        operation = await api.call("POST", "/global/firewalls", body=said, token=token)
        await api.carried_out(operation, "a firewall rule")

    await recorder.create(KIND, token, {}, ask, lambda _: [name])


async def shown(api: Api, pool: str = "") -> list[Thing]:
    """The rules with a pool's description: of ``pool``, or of any."""
    found = await api.pages(
        "/global/firewalls", {"filter": f'name eq "{labels.stem(pool) if pool else "outrider"}-.*"'}
    )
    things = [labels.thing(each["name"], each) for each in found]
    return [each for each in things if each.pool == pool or (not pool and each.pool)]


async def delete(api: Api, name: str) -> None:
    await api.carried_out(await api.call("DELETE", f"/global/firewalls/{name}"), f"the end of {name}")
