"""What a published schema does not have is found, in requests and in answers."""

from __future__ import annotations

import pytest

from outrider.testing.clouds.shared.schema import Invalid, Schemas

SCHEMAS = Schemas({
    "Launch": {
        "type": "object",
        "required": ["kind", "keys"],
        "properties": {
            "kind": {"type": "string", "enum": ["small", "large"]},
            "keys": {"type": "array", "items": {"type": "string", "pattern": "^k"}, "minItems": 1, "maxItems": 1},
            "name": {"type": ["string", "null"], "maxLength": 4, "minLength": 1},
            "count": {"type": "integer", "minimum": 1, "maximum": 8},
            "size": {"type": "string", "format": "int64"},
            "image": {"oneOf": [{"$ref": "#/components/schemas/ById"}, {"$ref": "ByFamily"}]},
            "tags": {"type": "object", "additionalProperties": {"type": "string"}},
            "more": {"type": "object", "additionalProperties": True},
        },
    },
    "ById": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
    "ByFamily": {"type": "object", "required": ["family"], "properties": {"family": {"const": "ubuntu"}}},
})  # fmt: skip
GOOD = {"kind": "small", "keys": ["k1"]}


@pytest.mark.parametrize(
    "more",
    [{}, {"name": None}, {"name": "four"}, {"count": 8}, {"size": "9"}, {"image": {"id": "x"}}, {"tags": {"a": "b"}},
     {"image": {"family": "ubuntu"}}, {"more": {"any": [1]}}],
    ids=str,
)  # fmt: skip
def test_what_the_schema_has_passes(more: dict[str, object]) -> None:
    SCHEMAS.check("Launch", GOOD | more)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "no object"),
        ({"kind": "small"}, "lacks keys"),
        (GOOD | {"kind": "medium"}, "none of"),
        (GOOD | {"keys": []}, "0 items"),
        (GOOD | {"keys": ["k1", "k2"]}, "2 items"),
        (GOOD | {"keys": ["x"]}, r"keys\[0\]: 'x' does not match"),
        (GOOD | {"name": ""}, "0 characters"),
        (GOOD | {"name": "12345"}, "5 characters"),
        (GOOD | {"count": True}, "no integer"),
        (GOOD | {"count": 0}, "at least 1"),
        (GOOD | {"count": 9}, "8 is allowed"),
        (GOOD | {"size": 9}, "no string"),
        (GOOD | {"size": "nine"}, "no number as a text"),
        (GOOD | {"image": {}}, "0 of 2 schemas fit"),
        (GOOD | {"image": {"family": "debian"}}, "0 of 2 schemas fit"),
        (GOOD | {"tags": {"a": 1}}, r"tags\.a: it is 1, and no string"),
        (GOOD | {"misspelt": 1}, "has misspelt"),
    ],
    ids=str,
)
def test_what_it_does_not_have_is_told_with_its_place(value: object, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        SCHEMAS.check("Launch", value)


def test_an_extract_with_an_unknown_keyword_is_no_extract() -> None:
    with pytest.raises(LookupError, match="unknown keyword uniqueItems"):
        Schemas({"Launch": {"uniqueItems": True}}).check("Launch", [])
