"""The table of providers names what is there, and is the only one."""

from __future__ import annotations

from typing import get_args

import pytest

import outrider
from outrider.providers.base import Offering
from outrider.providers.registry import PROVIDERS, ProviderName, clouds, provider_class, surveyors


def test_each_name_has_a_row() -> None:
    assert get_args(ProviderName) == tuple(PROVIDERS)


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_is_public_under_its_own_name(name: str) -> None:
    kind = provider_class(name)
    assert getattr(outrider, kind.__name__) is kind
    assert kind.__name__.lower() == name


def test_what_outlives_its_client_can_be_found() -> None:
    for name, each in PROVIDERS.items():
        assert each.surveyor or not hasattr(provider_class(name), "outlives"), name
    assert {"aws", "slurm"} <= surveyors().keys()


@pytest.mark.parametrize("name", clouds())
def test_a_cloud_is_asked_for_offers_without_arguments(name: str) -> None:
    cloud = provider_class(name)()
    assert isinstance(cloud, Offering)
    assert cloud.name == name
