"""botocore's sessions: credentials and configuration, region, endpoint. Sends nothing to AWS."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ..cloud.extra import from_extra
from ..cloud.http import check_url
from ..errors import BadRequest
from .errors import Failure, translate


def choose_region(given: str | None, environment: Mapping[str, str], configured: str | None) -> str:
    """Choose the first of: the parameter, ``AWS_REGION``, ``AWS_DEFAULT_REGION``, the profile's region.

    Raises:
        BadRequest: none is set.
    """
    chosen = given or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or configured
    if not chosen:
        raise BadRequest("no AWS region is configured: give AWS(region=...), or set AWS_REGION", code="NoRegionError")
    return chosen


def check_endpoint(url: str) -> None:
    """Raise BadRequest for an invalid endpoint, for which botocore would raise a bare ValueError at the first call."""
    from botocore.utils import is_valid_endpoint_url

    check_url(url, is_valid_endpoint_url)


def new_session(profile: str | None) -> Any:
    with from_extra("AWS", "aws", "aiobotocore", "aiohttp", "botocore"):
        from aiobotocore.session import AioSession
    session = AioSession(profile=profile)
    try:
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    except _botocore_error() as error:
        raise translate(Failure(code=type(error).__name__, message=str(error))) from None
    return session


@cache
def _loader(data_path: str | None) -> Any:
    """botocore's models of the services, read once for all sessions of this process."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def _botocore_error() -> type[Exception]:
    from botocore.exceptions import BotoCoreError

    kind: type[Exception] = BotoCoreError
    return kind


def regions(session: Any) -> tuple[str, ...]:
    partitions = session.get_component("data_loader").load_data("endpoints")["partitions"]
    return tuple(region for partition in partitions for region in partition["regions"])
