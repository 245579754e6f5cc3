"""Filters with wildcards, and paging, for all describe calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

from .protocol import EC2Error

T = TypeVar("T")
Fact = Callable[[T], Iterable[str]]
Facts = Mapping[str, Fact[T]]  # by the filter's name: a function that returns the filtered value of a resource
Tags = Callable[[T], Mapping[str, str]]
TAGS: Tags[Any] = attrgetter("tags")


def chosen(
    things: Iterable[T], filters: Sequence[Mapping[str, Any]] | None, facts: Facts[T], tags: Tags[T] | None = None
) -> list[T]:
    """Return the resources that match every filter by one of its values. ``*`` and ``?`` are wildcards, ``\\`` quotes.

    Raises:
        EC2Error: A filter has no name, or an unknown name, even if there are no resources.
    """
    conditions = [(_fact(each.get("Name"), facts, tags), each.get("Values", ())) for each in filters or ()]
    return [thing for thing in things if all(_fits(fact(thing), values) for fact, values in conditions)]


def _fact(name: str | None, facts: Facts[T], tags: Tags[T] | None) -> Fact[T]:
    if not name:
        raise EC2Error("InvalidParameterValue", "The filter 'null' is invalid")
    if tags is not None:
        if name == "tag-key":
            return lambda thing: tags(thing).keys()
        if name == "tag-value":
            return lambda thing: tags(thing).values()
        if name.startswith("tag:"):
            key = name.removeprefix("tag:")
            return lambda thing: [value for each, value in tags(thing).items() if each == key]
    try:
        return facts[name]
    except KeyError:
        raise EC2Error("InvalidParameterValue", f"The filter '{name}' is invalid") from None


def _fits(facts: Iterable[str], values: Iterable[str]) -> bool:
    return any(_pattern(wanted).fullmatch(fact) for wanted in values for fact in facts)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    parts = re.findall(r"\\.|[*?]|[^\\*?]+|\\", text, re.DOTALL)
    stand_for = {"*": ".*", "?": "."}
    return re.compile("".join(stand_for.get(part) or re.escape(re.sub(r"^\\(.)$", r"\1", part)) for part in parts))


def page(things: Sequence[T], ask: Mapping[str, Any], most: int = 1000) -> tuple[list[T], str | None]:
    """Return one page of ``things``, and the token of the next page."""
    token, size = ask.get("NextToken"), min(ask.get("MaxResults") or most, most)
    if token and not re.fullmatch(r"after-\d+", token):
        raise EC2Error("InvalidNextToken", f"The token '{token}' is invalid")
    start = int(token.removeprefix("after-")) if token else 0
    end = start + size
    return list(things[start:end]), f"after-{end}" if end < len(things) else None


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def launch_tags(ask: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return the tags in a launch call for its resources of ``kind``."""
    return {
        tag["Key"]: tag.get("Value", "")
        for each in ask.get("TagSpecifications") or ()
        if each.get("ResourceType") == kind
        for tag in each.get("Tags", ())
    }
