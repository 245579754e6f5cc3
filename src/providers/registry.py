"""The providers of this project, by their names on the command line and in outrider.toml.

A new provider needs a row here, and its class in ``outrider/__init__.py``. There is no other list of providers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from ..lazy_dataclass import dataclass

if TYPE_CHECKING:
    from .survey import Surveyor

ProviderName = Literal["local", "ssh", "containers", "slurm", "aws", "gcp", "lambda", "vast", "hyperstack", "runpod"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One provider. A class is given as ``"module:Class"``, and is imported when it is needed.

    ``surveyor``: the class that finds and ends machines for `outrider ps` and `outrider gc`; only for providers whose
    machines may outlive their client. ``rents``: the provider is a cloud, and its class works without arguments:
    `outrider offers` queries all such providers.
    """

    provider: str
    surveyor: str = ""
    rents: bool = False


PROVIDERS: Mapping[str, Registered] = {
    "local": Registered(provider="local.provider:Local"),
    "ssh": Registered(provider="ssh:SSH"),
    "containers": Registered(
        provider="containers.provider:Containers", surveyor="containers.surveyor:ContainerSurveyor"
    ),
    "slurm": Registered(provider="slurm.provider:Slurm", surveyor="slurm.surveyor:SlurmSurveyor"),
    "aws": Registered(provider="aws.provider:AWS", surveyor="aws.cloud:AWSSurveyor", rents=True),
    "gcp": Registered(provider="gcp.provider:GCP", surveyor="gcp.cloud:GCPSurveyor", rents=True),
    "lambda": Registered(
        provider="lambda_labs.provider:Lambda", surveyor="lambda_labs.cloud:LambdaSurveyor", rents=True
    ),
    "vast": Registered(provider="vast.provider:Vast", surveyor="vast.cloud:VastSurveyor", rents=True),
    "hyperstack": Registered(
        provider="hyperstack.provider:Hyperstack", surveyor="hyperstack.cloud:HyperstackSurveyor", rents=True
    ),
    "runpod": Registered(provider="runpod.provider:RunPod", surveyor="runpod.cloud:RunPodSurveyor", rents=True),
}


def provider_class(name: str) -> Callable[..., Any]:
    """Return the class that users configure, such as `AWS`."""
    return _imported(PROVIDERS[name].provider)


def surveyors() -> dict[str, Surveyor]:
    """Return a surveyor for each provider that has one, by the provider's name in the journal."""
    return {name: _imported(each.surveyor)() for name, each in PROVIDERS.items() if each.surveyor}


def clouds() -> list[str]:
    """Return the names of the providers that rent machines."""
    return [name for name, each in PROVIDERS.items() if each.rents]


def _imported(where: str) -> Callable[..., Any]:
    module, _, name = where.partition(":")
    factory: Callable[..., Any] = getattr(import_module(f"{__package__}.{module}"), name)
    return factory
