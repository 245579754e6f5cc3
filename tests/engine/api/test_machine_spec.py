"""What machines a pool asks for is checked when it is written, and reaches the provider as it was meant."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import outrider
from outrider import SSH, Local, Pool, Spec, SpecError, accelerators
from outrider.engine.api.settings import MachineOptions
from outrider.engine.node.sampler import LEAST_S
from outrider.providers.base import AcceleratorRequest, LaunchRequest
from outrider.testing.fake_provider import Fake

REQUEST = LaunchRequest("key", 4, least=2, lease_s=30.0)


def settings(*specs: Any, **options: Any) -> Any:
    return Pool(*specs, **options)._settings


def test_what_is_asked_for_reaches_the_provider() -> None:
    spec = Spec(
        provider=Fake(),
        accelerator=accelerators.A100(count=8, memory="80GB"),
        vcpus=16,
        memory_gb=64,
        disk_gb=200,
        architecture="arm64",
        allocation="spot",
        max_hourly_cost=3.5,
        interconnect="efa",
    )
    assert spec.applied_to(REQUEST) == LaunchRequest(
        "key",
        4,
        least=2,
        lease_s=30.0,
        accelerator=AcceleratorRequest("A100", 8, 80),
        vcpus=16,
        memory_gb=64.0,
        disk_gb=200,
        architecture="arm64",
        allocation="spot",
        max_hourly_cost=3.5,
        interconnect="efa",
    )


def test_nothing_asked_for_is_what_a_launch_request_says() -> None:
    assert Spec(provider=Fake()).applied_to(REQUEST) == REQUEST


def test_a_pools_options_are_those_of_a_spec() -> None:
    fake = Fake()
    one = settings(provider=fake, vcpus=4, memory_gb=16, allocation="cheapest", accelerator="T4")
    assert one.specs == (Spec(provider=fake, vcpus=4, memory_gb=16, allocation="cheapest", accelerator="T4"),)
    assert one.provider is fake
    assert settings().specs == (Spec(),)
    assert Spec(fake, vcpus=4) == Spec(provider=fake, vcpus=4)
    assert outrider.Spec is Spec


@pytest.mark.parametrize(("options", "said"), [
    ({"vcpus": 0}, "vcpus must be at least 1"),
    ({"vcpus": 2.5}, "vcpus takes a whole number"),
    ({"memory_gb": -1}, "memory_gb must be more than 0 GB"),
    ({"memory_gb": "16GB"}, "memory_gb takes GB, as a number"),
    ({"disk_gb": 0}, "disk_gb must be at least 1"),
    ({"architecture": "arm"}, "Did you mean 'arm64'"),
    ({"allocation": "on_demand"}, "Did you mean 'on-demand'"),
    ({"max_hourly_cost": 0}, "more than 0 USD per hour"),
    ({"max_hourly_cost": float("nan")}, "more than 0 USD per hour"),
    ({"interconnect": "infiniband"}, "interconnect takes 'efa'"),
    ({"accelerator": "A1000"}, "No accelerator is called"),
    ({"provider": Local}, r"write provider=Local\(\)"),
    ({"vcpu": 4}, "did you mean 'vcpus'"),
])  # fmt: skip
def test_what_cannot_mean_anything_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Spec(**{"provider": Fake(), **options})
    with pytest.raises(SpecError, match=said):
        Pool(**{"provider": Fake(), **options})


@pytest.mark.parametrize("provider", [Local(), SSH(["host"])])
@pytest.mark.parametrize("options", [{"allocation": "spot"}, {"max_hourly_cost": 1.0}])
def test_limits_of_prices_hold_where_nothing_costs_anything(provider: Any, options: dict[str, Any]) -> None:
    (spec,) = settings(provider=provider, max_cost=1.0, **options).specs
    assert {name: getattr(spec, name) for name in options} == options


@pytest.mark.parametrize(("options", "said"), [
    ({"name": ""}, "name takes"),
    ({"name": "a/b"}, "name takes"),
    ({"name": "x" * 41}, "up to 40"),
    ({"max_cost": 0}, "more than 0 USD"),
    ({"max_cost": 10**400}, "max_cost must be more than 0 USD and finite, not 1000"),
    ({"lease": 10**5000}, "lease must be more than 0 seconds and finite, not something of type int"),
    ({"image": ["numpy"]}, r"image takes an Image, as in Image\(pip=\[.numpy.\]\), not \[.numpy.\]"),
    ({"worker": "2"}, "worker takes how many tasks a node runs at a time, or Worker"),
    ({"worker": True}, "takes a whole number, not True"),
    ({"max_lifetime": -1}, "more than 0 seconds"),
    ({"selection": "best"}, "selection takes"),
    ({"max_idle": 0}, "more than 0 seconds"),
    ({"max_idle": 9}, "max_idle=9 is too short for a sample every 5 s"),
    ({"max_idle": 900, "sample_every": 0}, "leave out sample_every, or set it"),
    ({"sample_every": -1}, "more than 0 seconds"),
    ({"sample_every": 0.05}, "at least 0.1 seconds, not 0.05; 0 turns samples off"),
    ({"sample_every": True}, "sample_every takes seconds"),
    ({"sample_every": False}, "sample_every takes seconds"),
])  # fmt: skip
def test_a_pools_own_options_are_checked(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Pool(**{"provider": Fake(), **options})


@pytest.mark.parametrize(
    ("given", "every_s"), [(None, None), (0, None), (2, 2.0), (timedelta(minutes=1), 60.0), (LEAST_S, LEAST_S)]
)
def test_samples_are_turned_off_by_nothing(given: Any, every_s: float | None) -> None:
    assert settings(provider=Fake(), sample_every=given).sample_every_s == every_s


def test_a_pool_may_be_idle_for_ever_or_so_long() -> None:
    assert settings(provider=Fake()).max_idle_s is None
    assert settings(provider=Fake(), max_idle=timedelta(minutes=30)).max_idle_s == 1800.0


def test_several_specs_say_everything_themselves() -> None:
    first, second = Spec(provider=Fake()), Spec(provider=Fake(), vcpus=4)
    pool = settings(first, second, selection="first", nodes=3)
    assert pool.specs == (first, second)
    assert (pool.provider.name, pool.provider.local, pool.provider.selection) == ("fake", False, "first")
    assert settings(second).provider is second.provider
    for options in ({"vcpus": 4}, {"provider": Fake()}, {"accelerator": "A100"}):
        with pytest.raises(SpecError, match=r"goes into each Spec\(...\)"):
            Pool(first, second, **options)
    with pytest.raises(SpecError, match="options with names"):
        Pool("A100")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="cannot be one pool's"):
        Pool(first, Spec(provider=Local()))


def test_pool_has_every_option_of_a_spec() -> None:
    """As people see it; type checkers read it from `PoolOptions`."""
    import inspect

    of_spec = set(inspect.signature(Spec).parameters)
    assert of_spec <= set(inspect.signature(Pool).parameters)
    assert of_spec == set(MachineOptions.__annotations__)
    assert all(
        inspect.signature(Pool).parameters[name].annotation == inspect.signature(Spec).parameters[name].annotation
        for name in of_spec
    )
