"""`Secret`: a value that is never printed, and is sent only to nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .errors import SpecError

HIDDEN = "****"
SECRET = f"{__name__}.Secret"  # the class's name in `wire.values.Unpicklable`
_LEAST_HIDDEN = 4  # shorter texts are not hidden, because they occur everywhere by chance

_allowed: ContextVar[bool] = ContextVar("outrider_secrets_allowed", default=False)


class Secret:
    """A token or password: ``Secret("...")``, or ``Secret.env("HF_TOKEN")`` for a variable of this process.

    ``repr`` and ``str`` hide the value, `reveal` returns it. A secret can only be pickled to send it to a node, or back
    from there.

    Raises:
        SpecError: The value is empty, or not a text.
    """

    __slots__ = ("_name", "_value")

    def __init__(self, value: str) -> None:
        if not isinstance(value, str) or not value or "\0" in value:
            what = "" if isinstance(value, str) else f", not {type(value).__name__}"
            raise SpecError(f"Secret takes a text that is not empty and has no NUL in it{what}.")
        self._value = value
        self._name = ""

    @classmethod
    def env(cls, name: str) -> Secret:
        """Return the present value of an environment variable of this process, as a secret.

        Raises:
            SpecError: The variable is not set, or empty.
        """
        value = os.environ.get(name) if isinstance(name, str) else None
        if not value:
            raise SpecError(f"Secret.env({name!r}): {name} is {'empty' if value == '' else 'not set'} in this process.")
        return _restored(value, name)

    def reveal(self) -> str:
        """Return the secret text."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret.env({self._name!r})" if self._name else f"Secret({HIDDEN!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return self._value == other._value

    def __hash__(self) -> int:
        return hash(("Secret", self._value))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> tuple[Callable[..., Secret], tuple[str, str]]:
        if not _allowed.get():
            raise TypeError("a Secret is pickled only on the way to a node: store what reveal() gives, or leave it out")
        return _restored, (self._value, self._name)


@contextmanager
def allow_secrets() -> Iterator[None]:
    """Allow secrets to be pickled during the block, because the pickle is sent to a node, or back to its client."""
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def secrets_allowed() -> bool:
    return _allowed.get()


def revealed(value: str | Secret) -> str:
    return value.reveal() if isinstance(value, Secret) else value


def revealed_env(env: Mapping[str, str | Secret]) -> dict[str, str]:
    return {name: revealed(value) for name, value in env.items()}


class Scrubber:
    def __init__(self, secrets: Iterable[str | Secret]) -> None:
        self._forms = shown_forms(map(revealed, secrets))

    def __call__(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text


def shown_forms(values: Iterable[str]) -> list[str]:
    """Return the forms in which these values may appear in a text, the longest form first.

    The forms of a value are: the whole value, each of its lines, because programs log line by line, and the URL-quoted
    value. Forms that are so short that they occur everywhere are left out.
    """
    from urllib.parse import quote

    parts = {part.strip() for value in values for part in (value, *value.splitlines())}
    forms = {form for part in parts for form in (part, quote(part, safe=""))}
    return sorted((form for form in forms if len(form) >= _LEAST_HIDDEN), key=len, reverse=True)


def _restored(value: str, name: str) -> Secret:
    secret = Secret(value)
    secret._name = name
    return secret


def secrets_in(*values: Any) -> list[Secret]:
    secrets: list[Secret] = []
    for value in values:
        if isinstance(value, Secret):
            secrets.append(value)
        elif isinstance(value, Mapping):
            secrets += secrets_in(*value.values())
        elif isinstance(value, list | tuple):
            secrets += secrets_in(*value)
    return secrets
