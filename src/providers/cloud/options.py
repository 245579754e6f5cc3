"""Checks of a cloud provider's options, and of the tags that users give. ``owner``: the provider, such as ``AWS``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Several = str | Iterable[str]


def several(owner: str, option: str, given: Several | None) -> tuple[str, ...] | None:
    """Check a list of names.

    Raises:
        ValueError: it is empty, or one text, which might mean one name or a list of letters.
    """
    if given is None:
        return None
    if isinstance(given, str):
        raise ValueError(f"{owner}({option}=...) takes a list: write {owner}({option}=[{given!r}])")
    names = tuple(dict.fromkeys(given))
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{owner}({option}=...) takes a list of names: leave it out for its default")
    return names


def set_all(provider: object, given: Mapping[str, object]) -> None:
    """Set the fields of a frozen provider.

    Raises:
        ValueError: one is an empty text.
    """
    for name, value in given.items():
        if value == "":
            raise ValueError(f"{type(provider).__name__}({name}=...) is empty: leave it out for its default")
        object.__setattr__(provider, name, value)


def tags(
    owner: str, given: Mapping[str, str], *, service: str, reserved: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Check the user's tags, for a ``service`` that takes 128 characters in keys and 256 in values.

    Raises:
        ValueError: a tag is not accepted, or what it begins with is ``reserved``.
    """
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"{owner}(tags=...) takes texts, not {key!r}: {value!r}")
        if not 0 < len(key) <= 128 or len(value) > 256:
            limits = f"{service} takes keys of 1 to 128 characters and values of up to 256"
            raise ValueError(f"{owner}(tags=...): {key!r}: {limits}")
        if key.lower().startswith(reserved):
            raise ValueError(f"{owner}(tags=...): {key!r}: what begins with {' or '.join(reserved)} is not for users")
    return tuple(given.items())
