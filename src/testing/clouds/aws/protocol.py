"""EC2's query protocol in both directions, by botocore's model: parameters and answers are dicts, as in boto3."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast
from xml.sax.saxutils import escape

try:
    from botocore.loaders import Loader
    from botocore.model import ListShape, OperationNotFoundError, ServiceModel, Shape, StructureShape
except ImportError as error:
    raise ImportError("The test cloud needs botocore and moto: pip install 'outrider[testing]'.") from error

USER = "arn:aws:iam::123456789012:user/anybody"  # the caller's ARN for any credentials
NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"

Answer = Mapping[str, Any]


class EC2Error(Exception):
    """A refusal of EC2: its code, its message, and the HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


def unauthorized(action: str) -> EC2Error:
    words = f"You are not authorized to perform this operation. User: {USER} is not authorized to perform: ec2:{action}"
    why = f"because no identity-based policy allows the ec2:{action} action"
    return EC2Error("UnauthorizedOperation", f"{words} {why}", 403)


class Ask(dict[str, Any]):
    """Parameters by name. Access to a missing one raises EC2Error, as the caller should have sent it."""

    def __missing__(self, name: str) -> Any:
        raise EC2Error("MissingParameter", f"The request must contain the parameter {name}")


class Rendered(str):
    """The XML of a list item, rendered in advance, for large answers that never change."""

    __slots__ = ()


@cache
def model() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("ec2", "service-2"), "ec2")


def parse(action: str, parameters: Mapping[str, str]) -> Ask:
    """Parse the parameters of an action.

    Raises:
        EC2Error: There is no such action, or a value has the wrong type.
    """
    try:
        shape = model().operation_model(action).input_shape
    except OperationNotFoundError:
        raise EC2Error("InvalidAction", f"The action {action} is not valid for this web service.") from None
    tree: dict[str, Any] = {}
    for key, value in parameters.items():
        *path, last = key.split(".")
        branch = tree
        for part in path:
            below = branch.setdefault(part, {})
            branch = below if isinstance(below, dict) else {}
        branch[last] = value
    return _structure(tree, shape) if isinstance(shape, StructureShape) else Ask()


def _structure(tree: Mapping[str, Any], shape: StructureShape) -> Ask:
    ask = Ask()
    for name, member in _fields(shape).items():
        key = _query_name(name, member)
        if key in tree:
            ask[name] = _value(tree[key], member)
    return ask


def _query_name(name: str, member: Shape) -> str:
    wire_names = _wire_names(member)
    plain = wire_names.get("name", name)
    return wire_names.get("queryName", plain[0].upper() + plain[1:])


def _value(tree: Any, shape: Shape) -> Any:
    if isinstance(shape, StructureShape):
        return _structure(tree if isinstance(tree, dict) else {}, shape)
    if isinstance(shape, ListShape):
        items = tree if isinstance(tree, dict) else {}
        return [_value(items[key], _item(shape)) for key in sorted(items, key=int)]
    try:
        return _SCALARS.get(shape.type_name, str)(tree)
    except (ValueError, KeyError, TypeError):
        raise EC2Error("InvalidParameterValue", f"Invalid value {tree!r} for {shape.name}") from None


_SCALARS: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "timestamp": lambda text: datetime.fromisoformat(text.replace("Z", "+00:00")),
    "blob": base64.b64decode,
}


def render(action: str, answer: Answer, request_id: str) -> bytes:
    shape = model().operation_model(action).output_shape
    body = "".join(_members(answer, shape)) if isinstance(shape, StructureShape) else "<return>true</return>"
    text = f'<{action}Response xmlns="{NAMESPACE}"><requestId>{request_id}</requestId>{body}</{action}Response>'
    return text.encode()


def render_item(shape_name: str, value: Answer) -> Rendered:
    """Render one item of a list, to be put into answers unchanged. ``shape_name``: botocore's type of the item."""
    shape = model().shape_for(shape_name)
    assert isinstance(shape, StructureShape)
    return Rendered("".join(_members(value, shape)))


def render_error(error: EC2Error, request_id: str) -> bytes:
    detail = f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>"
    answer = f"<Response><Errors><Error>{detail}</Error></Errors><RequestID>{request_id}</RequestID></Response>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{answer}'.encode()


def _members(value: Answer, shape: StructureShape) -> Iterator[str]:
    for name, item in value.items():
        member = _fields(shape)[name]
        if item is not None:
            tag = _wire_names(member).get("name", name)
            yield f"<{tag}>{_text(item, member)}</{tag}>"


def _text(value: Any, shape: Shape) -> str:
    if isinstance(value, Rendered):
        return value
    if isinstance(shape, StructureShape):
        return "".join(_members(value, shape))
    if isinstance(shape, ListShape):
        return "".join(f"<item>{_text(each, _item(shape))}</item>" for each in value)
    match value:
        case bool():
            value = "true" if value else "false"
        case datetime():
            value = value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        case bytes():
            value = base64.b64encode(value).decode()
    return escape(str(value))


def _fields(shape: StructureShape) -> Mapping[str, Shape]:
    fields: Mapping[str, Shape] = cast("Any", shape).members  # botocore computes it, so type checkers do not see it
    return fields


def _item(shape: ListShape) -> Shape:
    item: Shape = cast("Any", shape).member
    return item


def _wire_names(shape: Shape) -> Mapping[str, str]:
    names: Mapping[str, str] = cast("Any", shape).serialization
    return names
