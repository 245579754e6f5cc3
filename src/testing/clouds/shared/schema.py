"""A checker of JSON against an extract of a cloud's published schema: OpenAPI 3.1 or Google's discovery documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any


class Invalid(Exception):
    """A value that does not fit the schema. ``path``: its position in the document."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


_TYPES: Mapping[str, Callable[[object], bool]] = {
    "any": lambda value: True,  # noqa: ARG005
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}
_WORDS = frozenset({"description", "default", "examples", "example", "title", "deprecated", "readOnly", "id"})
# keywords of Google's discovery documents that do not affect the check
_NOT_HERE = frozenset({"annotations", "enumDescriptions", "enumDeprecated"})


class Schemas:
    """Schemas by name. Schemas refer to each other by ``$ref``.

    A property that an object's schema does not name is refused (unless the schema has ``additionalProperties``),
    because a cloud would ignore a misspelt property. An unknown keyword in a schema is an error in the extract.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._schemas = schemas

    def check(self, name: str, value: object) -> None:
        """Check a value against the schema of this name.

        Raises:
            Invalid: The value does not fit the schema.
        """
        self._check({"$ref": name}, value, name)

    def _check(self, schema: Mapping[str, Any], value: object, path: str) -> None:
        for keyword, rule in schema.items():
            if keyword in _WORDS or keyword in _NOT_HERE:
                continue
            check = getattr(self, f"_{keyword.removeprefix('$')}", None)
            if check is None:
                raise LookupError(f"{path}: the extract of the schema has the unknown keyword {keyword}")
            check(rule, value, path, schema)

    def _ref(self, name: str, value: object, path: str, _: object) -> None:
        self._check(self._schemas[name.rpartition("/")[2]], value, path)

    def _type(self, types: str | list[str], value: object, path: str, _: object) -> None:
        if not any(_TYPES[each](value) for each in ([types] if isinstance(types, str) else types)):
            raise Invalid(path, f"it is {value!r:.80}, and no {types}")

    def _format(self, form: str, value: object, path: str, _: object) -> None:
        """Check 64-bit numbers, which Google sends as texts. Other formats are not checked."""
        if form in ("int64", "uint64") and not (isinstance(value, str) and re.fullmatch(r"-?\d+", value)):
            raise Invalid(path, f"it is {value!r:.80}, and no number as a text")

    def _enum(self, values: list[object], value: object, path: str, _: object) -> None:
        if value not in values:
            raise Invalid(path, f"it is {value!r:.80}, and none of {values}")

    def _const(self, constant: object, value: object, path: str, _: object) -> None:
        self._enum([constant], value, path, None)

    def _required(self, names: list[str] | bool, value: object, path: str, _: object) -> None:
        if isinstance(names, list) and isinstance(value, dict):
            missing = [each for each in names if each not in value]
            if missing:
                raise Invalid(path, f"it lacks {', '.join(missing)}")

    def _properties(self, properties: Mapping[str, Any], value: object, path: str, schema: Mapping[str, Any]) -> None:
        if not isinstance(value, dict):
            return
        for key, inner in value.items():
            if key in properties:
                self._check(properties[key], inner, f"{path}.{key}")
            elif "additionalProperties" not in schema:
                raise Invalid(path, f"it has {key}, which the schema does not know")

    def _additionalProperties(  # noqa: N802 - named like its keyword
        self, rule: Mapping[str, Any] | bool, value: object, path: str, schema: Mapping[str, Any]
    ) -> None:
        if isinstance(value, dict) and not isinstance(rule, bool):
            for key in value.keys() - schema.get("properties", {}).keys():
                self._check(rule, value[key], f"{path}.{key}")

    def _items(self, inner: Mapping[str, Any], value: object, path: str, _: object) -> None:
        for place, each in enumerate(value if isinstance(value, list) else ()):
            self._check(inner, each, f"{path}[{place}]")

    def _oneOf(self, choices: list[Mapping[str, Any]], value: object, path: str, _: object) -> None:  # noqa: N802
        why: list[str] = []
        for each in choices:
            try:
                self._check(each, value, path)
            except Invalid as error:
                why.append(str(error))
        if len(choices) - len(why) != 1:
            raise Invalid(path, f"{len(choices) - len(why)} of {len(choices)} schemas fit: {'; '.join(why)}")

    def _pattern(self, pattern: str, value: object, path: str, _: object) -> None:
        if isinstance(value, str) and not re.search(pattern, value):
            raise Invalid(path, f"{value!r:.80} does not match {pattern}")

    def _maxLength(self, most: int, value: object, path: str, _: object) -> None:  # noqa: N802
        if isinstance(value, str) and len(value) > most:
            raise Invalid(path, f"it has {len(value)} characters, and {most} are allowed")

    def _minLength(self, least: int, value: object, path: str, _: object) -> None:  # noqa: N802
        if isinstance(value, str) and len(value) < least:
            raise Invalid(path, f"it has {len(value)} characters, and needs {least}")

    def _maxItems(self, most: int, value: object, path: str, _: object) -> None:  # noqa: N802
        if isinstance(value, list) and len(value) > most:
            raise Invalid(path, f"it has {len(value)} items, and {most} are allowed")

    def _minItems(self, least: int, value: object, path: str, _: object) -> None:  # noqa: N802
        if isinstance(value, list) and len(value) < least:
            raise Invalid(path, f"it has {len(value)} items, and needs {least}")

    def _minimum(self, least: float, value: object, path: str, _: object) -> None:
        if isinstance(value, int | float) and value < float(least):
            raise Invalid(path, f"it is {value}, and at least {least} is needed")

    def _maximum(self, most: float, value: object, path: str, _: object) -> None:
        if isinstance(value, int | float) and value > float(most):
            raise Invalid(path, f"it is {value}, and {most} is allowed")
