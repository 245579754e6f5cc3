"""What all describe calls share: filters with their wildcards, and pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from .protocol import EC2Error

T = TypeVar("T")
Facts = Mapping[str, Sequence[str]]


def chosen(things: Iterable[T], filters: Sequence[Mapping[str, Any]] | None, facts: Callable[[T], Facts]) -> list[T]:
    """Those that every filter fits, by one of its values at least; ``*`` and ``?`` stand for others, ``\\`` quotes.

    Raises:
        EC2Error: a filter has no name, or one that things of this kind do not have.
    """
    if not filters:
        return list(things)
    for each in filters:
        if not each.get("Name"):
            raise EC2Error("InvalidParameterValue", "The filter 'null' is invalid")
    return [thing for thing in things if all(_fits(facts(thing), each) for each in filters)]


def _fits(facts: Facts, asked: Mapping[str, Any]) -> bool:
    name = asked["Name"]
    if name.startswith("tag:"):
        values = facts.get(name, ())
    else:
        try:
            values = facts[name]
        except KeyError:
            raise EC2Error("InvalidParameterValue", f"The filter '{name}' is invalid") from None
    return any(_pattern(wanted).fullmatch(value) for wanted in asked.get("Values", ()) for value in values)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    parts = re.findall(r"\\.|[*?]|[^\\*?]+|\\", text, re.DOTALL)
    stand_for = {"*": ".*", "?": "."}
    return re.compile("".join(stand_for.get(part) or re.escape(re.sub(r"^\\(.)$", r"\1", part)) for part in parts))


def page(things: Sequence[T], ask: Mapping[str, Any], most: int = 1000) -> tuple[list[T], str | None]:
    """This call's share, and the token for the next."""
    token, size = ask.get("NextToken"), min(ask.get("MaxResults") or most, most)
    if token and not re.fullmatch(r"after-\d+", token):
        raise EC2Error("InvalidNextToken", f"The token '{token}' is invalid")
    start = int(token.removeprefix("after-")) if token else 0
    end = start + size
    return list(things[start:end]), f"after-{end}" if end < len(things) else None


def tag_facts(tags: Mapping[str, str]) -> dict[str, list[str]]:
    return {f"tag:{key}": [value] for key, value in tags.items()} | {
        "tag-key": list(tags),
        "tag-value": list(tags.values()),
    }


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def given_tags(ask: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Those that the call wants on what it makes of that kind."""
    return {
        tag["Key"]: tag.get("Value", "")
        for each in ask.get("TagSpecifications") or ()
        if each.get("ResourceType") == kind
        for tag in each.get("Tags", ())
    }
