"""Commands that users give, and options that users pass through to a command, such as ``{"shm-size": "16g"}`` for
`docker run`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from .option_names import shown

OptionValue = str | int | float | bool | Sequence[str]
LongOptions = tuple[tuple[str, str | None], ...]  # (option, value) pairs; a value of None: the option has no value

_NAME = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)


def long_options(
    provider: str,
    options: Mapping[str, OptionValue] | LongOptions,
    *,
    command: str,
    example: str,
    ours: Mapping[str, str],
    abbreviated: bool = False,
) -> LongOptions:
    """Check a provider's ``options=`` for a ``command``. If a value is a list, the option is repeated for each entry.

    ``example``: an option name of the command, for errors. ``ours``: options that Outrider sets itself, each with the
    option of Outrider to use instead (empty: there is none). ``abbreviated``: the command accepts abbreviated option
    names.

    Raises:
        ValueError: An option can never work, or is one of ``ours``.
    """
    try:
        pairs = dict(options)
    except (TypeError, ValueError):
        raise ValueError(f"{provider}(options=...) takes names and values, not {shown(options)}") from None
    words: list[tuple[str, str | None]] = []
    for name, value in pairs.items():
        plain = str(name).lstrip("-").replace("_", "-")
        if not _NAME.fullmatch(plain) or (len(plain) < 2 and not abbreviated):
            raise ValueError(f"{provider}(options=...): {name!r} is no long option of {command}, such as {example!r}")
        taken = [each for each in sorted(ours) if each == plain or (abbreviated and each.startswith(plain))]
        if taken:
            instead = f": say it by {ours[taken[0]]}" if ours[taken[0]] else ", which Outrider sets itself"
            program = command.split(maxsplit=1)[0]
            short = f" ({program} reads {plain} as the beginning of a longer name)" if plain != taken[0] else ""
            raise ValueError(f"{provider}(options=...): {taken[0]} is not taken here{instead}{short}")
        if value is False or "\n" in str(value):
            raise ValueError(f"{provider}(options=...): {plain} is {value!r}: leave it out, or give it a text or True")
        if value is True:
            words.append((plain, None))
        elif isinstance(value, str | int | float):
            words.append((plain, str(value)))
        elif isinstance(value, list | tuple) and all(isinstance(each, str | int | float) for each in value):
            words += [(plain, str(each)) for each in value]
        else:
            takes = "takes a text, a number, True or a list of texts"
            raise ValueError(f"{provider}(options=...): {plain} {takes}, not {shown(value)}")
    return tuple(words)


def as_words(options: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return the options as words of a command line."""
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options]


def words_of(command: object) -> tuple[object, ...]:
    """Return the words of a command that a user gives as a line or as a list; empty: it is neither."""
    if not isinstance(command, str):
        return tuple(command) if isinstance(command, Sequence) else ()
    try:
        return tuple(shlex.split(command))
    except ValueError:  # the line has an unclosed quote
        return ()
