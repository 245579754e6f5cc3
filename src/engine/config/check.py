"""Check of a whole configuration file: the errors of its pools and trackers, and the pools' settings."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ...lazy_dataclass import dataclass
from ..api.checks import check_known
from ..api.errors import SpecError
from ..api.language import in_toml
from ..pool_options import DEFAULTS, checked
from ..record.runs.description import spec_of
from .files import ConfigFile
from .tables import POOL_KEYS, RUN_KEYS, Table, named_table, pool_options, ranks_of, restarts_of, tracker_of

if TYPE_CHECKING:
    from ..pool_options import PoolOptions

_IN_PLACE = "\N{BULLET}"  # the value that replaces a missing secret, so that the other settings can be checked


@dataclass(frozen=True, slots=True)
class CheckedPool:
    """The result of checking one pool of a configuration file.

    ``settings``: all its settings including defaults, without secrets; {}: there are ``problems``.
    """

    name: str
    problems: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changed(self) -> dict[str, Any]:
        """The settings that differ from the defaults."""
        usual = spec_of(checked((), DEFAULTS))
        return {name: value for name, value in self.settings.items() if value != usual.get(name)}


def checked_pool(file: ConfigFile, name: str) -> CheckedPool:
    """Check one pool of a configuration file.

    Find as many problems as possible. Each problem is a sentence that names the key.
    """
    table = file.pools[name]
    missing = _missing(table)
    problems = [*missing.values()]
    known: dict[str, Any] = {}  # key -> value, for keys whose values were found valid
    for key in sorted(table, key=lambda each: each not in _PROVIDERS):
        try:
            check_known("a pool", [key], POOL_KEYS | RUN_KEYS)
            _check_run_key(key, table)
            if key in POOL_KEYS:
                value = _without(table[key], missing)
                _settings({**{each: known[each] for each in _PROVIDERS if each in known}, key: value})
                known[key] = value
        except SpecError as error:
            problems.append(_message(error))
    settings: dict[str, Any] = {}
    if not any(each in table and each not in known for each in _PROVIDERS):
        try:
            settings = _settings(known)
        except SpecError as error:
            problems.append(_message(error))
    return CheckedPool(name, tuple(problems), {} if problems else settings)


def checked_tracker(file: ConfigFile, name: str) -> tuple[str, ...]:
    """Check one tracker of a configuration file, and return the problems.

    A tracker that no pool names is checked, too, because `outrider run --track` may name it.
    """
    table = named_table(name, file.trackers)
    missing = _missing(table)
    try:
        tracker_of(_without(table, missing))
    except SpecError as error:
        return *missing.values(), _message(error)
    return tuple(missing.values())


_PROVIDERS = ("provider", "specs")  # keys to check first, because they determine which other keys are allowed


def _settings(table: Table) -> dict[str, Any]:
    """Return the settings of the pool that the table defines.

    Raises:
        SpecError
    """
    specs, options = pool_options(table, "")
    whole: PoolOptions = {**DEFAULTS, **options}
    try:
        return spec_of(checked(specs, whole))
    except (ValueError, TypeError) as error:
        raise SpecError(str(error)) from error


def _missing(table: Table) -> dict[str, str]:
    """Return environment variables that should contain secrets but are not set: name -> error message."""
    names = [name for name in sorted(set(_secrets(table))) if not os.environ.get(name)]
    return {
        name: f"{name} is {'empty' if name in os.environ else 'not set'}, and a secret is to come from it"
        for name in names
    }


def _check_run_key(key: str, table: Table) -> None:
    if key == "ranks_per_node":
        ranks_of(table)
    elif key == "max_restarts":
        restarts_of(table)


def _message(error: SpecError) -> str:
    return in_toml(str(error)).removeprefix(": ").rstrip(".")


def _secrets(value: Any) -> Iterator[str]:
    """Yield the names of the environment variables from which a table reads secrets."""
    match value:
        case {"secret": str(name), **more} if not more:
            yield name
        case Mapping():
            for each in value.values():
                yield from _secrets(each)
        case list():
            for each in value:
                yield from _secrets(each)
        case _:
            pass


def _without(value: Any, missing: Container[str]) -> Any:
    """Return ``value`` with each secret whose variable is ``missing`` replaced by a placeholder."""
    match value:
        case {"secret": str(name), **more} if not more:
            return _IN_PLACE if name in missing else value
        case Mapping():
            return {key: _without(each, missing) for key, each in value.items()}
        case list():
            return [_without(each, missing) for each in value]
        case _:
            return value
