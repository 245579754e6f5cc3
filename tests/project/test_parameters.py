"""Docstrings of public names describe exactly the parameters and attributes that there are, one a line."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import outrider
from outrider import events, integrations, plugins, testing, trackers

SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):\n((?:    .*\n|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^    (\w+): \S", re.MULTILINE)
MANY = 2  # parameters that running prose may describe
OF_ERRORS = {"message", "attempted"}  # users catch them, and make none
OF_PYTHON = {"args", "kwargs"}  # of Exception, and of protocols


def public_names() -> Iterator[tuple[str, Any]]:
    rooms: dict[str, Any] = {"outrider": outrider, "testing": testing, "events": events, "trackers": trackers}
    rooms |= {name: value for name in testing.__all__ if isinstance(value := getattr(testing, name), ModuleType)}
    for room, module in rooms.items():
        names = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
        ]
        for name in names:
            if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType):
                yield f"{room}.{name}", getattr(module, name)
    for name in ("using", *integrations.ADAPTERS):
        yield f"integrations.{name}", getattr(integrations, name)
    for name in dir(plugins):
        if not name.startswith("_"):
            yield f"plugins.{name}", getattr(plugins, name)


def public_callables() -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for name, value in public_names():
        if not (inspect.isclass(value) or inspect.isroutine(value)) or id(value) in seen:
            continue
        seen.add(id(value))
        yield name, value
        if inspect.isclass(value):
            for method, member in vars(value).items():
                function = getattr(member, "__func__", member)
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{name}.{method}", function


CALLABLES = dict(public_callables())


def text_of(value: Any) -> str:
    """The docstring; of a class, that of its own ``__init__`` as well."""
    own = inspect.getdoc(value) or ""
    if inspect.isclass(value) and "__init__" in vars(value):
        own += "\n\n" + (inspect.getdoc(vars(value)["__init__"]) or "")
    return own + "\n"


def entries(text: str, *sections: str) -> list[str]:
    return [name for title, body in SECTION.findall(text) if title in sections for name in ENTRY.findall(body)]


def parameters(value: Any) -> set[str]:
    """The names that users pass arguments for."""
    try:
        given = inspect.signature(value).parameters.values()
    except ValueError:  # a type of Python's own
        return set()
    names = {each.name for each in given if str(each.annotation) != "Never" and not each.name.startswith("_")}
    return names - {"self", "cls"} - OF_PYTHON


def unpacked(value: Any) -> set[str]:
    """The keys of the typed dict that ``**options`` unpacks."""
    if inspect.isclass(value) or "options" not in inspect.signature(value).parameters:
        return set()
    module = inspect.getmodule(inspect.unwrap(value))
    written = str(inspect.signature(value).parameters["options"].annotation)
    match = re.fullmatch(r"Unpack\[(\w+)\]", written)
    kind = match and getattr(module, match[1], None)
    return set(kind.__annotations__) if kind else set()


def attributes(kind: type) -> set[str]:
    """The fields of a class, and what its bases and its initializer set."""
    found = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    found |= {name for base in kind.__mro__ for name in vars(base) if not name.startswith("_")}
    for base in kind.__mro__:
        code = getattr(vars(base).get("__init__"), "__code__", None)
        found |= set(code.co_names) if code else set()
    return found


def described(value: Any) -> set[str]:
    """The names that have an entry, in the docstring or in that of a base."""
    kinds = value.__mro__ if inspect.isclass(value) else (value,)
    return {name for kind in kinds for name in entries(text_of(kind), "Args", "Attributes")}


def failing(objection: Callable[[Any], str | set[str]]) -> list[str]:
    """One line for each public callable that the objection holds for."""
    return [f"{name}: {text}" for name, value in CALLABLES.items() if (text := objection(value))]


def unknown(value: Any) -> set[str]:
    text = text_of(value)
    other = set(entries(text, "Args")) - parameters(value) - unpacked(value)
    return other | (set(entries(text, "Attributes")) - attributes(value) if inspect.isclass(value) else set())


def missing(value: Any) -> set[str]:
    """The parameters without an entry; ``**options`` needs none where the keys that it unpacks have theirs."""
    names = described(value)
    found = parameters(value) - names
    if unpacked(value) and unpacked(value) <= names:
        found -= {"options"}
    if inspect.isclass(value) and issubclass(value, BaseException):
        found -= OF_ERRORS
    return found


def lacking(value: Any) -> set[str]:
    return missing(value) if entries(text_of(value), "Args") else set()


def undescribed(value: Any) -> set[str]:
    first = text_of(value).partition("\n")[0]
    refers = re.search(r"[Ss]ee `[\w.]+`", first) or value.__doc__ is None  # SyncPool's verbs; inherited words
    return set() if refers or len(parameters(value)) <= MANY else missing(value)


def bare(value: Any) -> str:
    checks = {*testing.cloud_checks.CHECKS, *testing.provider_contract.CHECKS}  # their names say it
    return "" if text_of(value).strip() or value in checks else "no docstring"


def test_described_parameters_exist() -> None:
    assert failing(unknown) == []


def test_described_parameters_are_complete() -> None:
    assert failing(lacking) == []


def test_many_parameters_have_entries() -> None:
    assert failing(undescribed) == []


def test_public_names_have_docstrings() -> None:
    assert len(CALLABLES) > 400
    assert failing(bare) == []


def test_help_shows_each_option_of_a_pool_on_a_line() -> None:
    shown = [re.sub(r"^[ |]*", "", line) for line in pydoc.plain(pydoc.render_doc(outrider.Pool)).splitlines()]
    options = parameters(outrider.Pool)
    assert len(options) > 30
    for option in options:
        assert sum(line.startswith(f"{option}: ") for line in shown) >= 1, option
    assert sorted(entries(text_of(outrider.Pool), "Args")) == sorted(options)


def test_entries_of_a_pool_have_the_defaults_of_the_code() -> None:
    text = " ".join(text_of(outrider.Pool).split())
    defaults = {name: each.default for name, each in inspect.signature(outrider.Pool).parameters.items()}
    numbers = {name: value for name, value in defaults.items() if isinstance(value, float)}
    assert len(numbers) > 4
    for name, value in numbers.items():
        assert re.search(rf" {name}: [^:]*Default: {value:g}\.", text), f"{name}: Default: {value:g}."


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A.\n\nArgs:\n    a: One.\n        More: of it.\n    b: Two.\n\nReturns:\n    c: no.\n", ["a", "b"]),
        ("A.\n\n``a``: in prose. Args: not here.\n", []),
    ],
)
def test_entries_are_the_names_at_the_margin_of_a_section(text: str, names: list[str]) -> None:
    assert entries(text, "Args") == names
