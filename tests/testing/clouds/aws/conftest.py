"""Fresh clouds, with clients that show each refusal instead of trying again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from outrider.testing import EC2, Behaviour

from .account import Account


@pytest.fixture(scope="session")
def session() -> boto3.session.Session:
    """One for all: it keeps what it has read of the API's description."""
    return boto3.session.Session()


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of this computer's user."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


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
