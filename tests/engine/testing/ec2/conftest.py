"""Fresh clouds, with clients that show each refusal instead of trying again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from outrider.testing import EC2, Behaviour

from .account import Account


@pytest.fixture(scope="session")
def session() -> boto3.session.Session:
    return boto3.session.Session()


@pytest.fixture
def open_account(session: boto3.session.Session) -> Iterator[Callable[..., Account]]:
    """An account in a cloud of that behaviour; the cloud ends with the test."""
    opened: list[Account] = []

    def open_one(**options: Any) -> Account:
        behaviour = {key: options.pop(key) for key in list(options) if key in Behaviour.__dataclass_fields__}
        cloud = EC2(Behaviour(**behaviour), **options)
        opened.append(Account(cloud.__enter__(), session))
        return opened[-1]

    yield open_one
    for account in opened:
        account.close()
        account.cloud.__exit__(None, None, None)


@pytest.fixture
def account(open_account: Callable[..., Account]) -> Account:
    return open_account()
