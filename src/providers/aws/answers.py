"""Decide whether a response is the answer to its call. Any other response counts as a lost answer.

ANSWER-1: a caller gets a whole answer to its own action, or an error; never an empty answer that botocore made up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http.client import MULTIPLE_CHOICES
from typing import Any

from . import api_retries

UNREADABLE = "UnreadableAnswer"
_ROOT = re.compile(rb"(?:\s|\xef\xbb\xbf|<\?.*?\?>|<!--.*?-->)*<(?:\w+:)?(\w+)", re.DOTALL)


class Unreadable(Exception):
    """The response is not a complete answer to its action."""


def check_root(operation_model: Any, response_dict: Mapping[str, Any], **_: Any) -> None:
    """Check the root of an XML answer, on botocore's event ``before-parse``.

    botocore's parser accepts any well-formed XML, such as a proxy's page, as an answer without contents.

    Raises:
        Unreadable: The document does not belong to this action.
    """
    if not _is_xml(operation_model) or response_dict["status_code"] >= MULTIPLE_CHOICES:
        return
    root = _ROOT.match(response_dict["body"])
    expected = f"{operation_model.name}Response"
    if root is None or root[1].decode() != expected:
        received = "no document" if root is None else f"the document {root[1].decode()}"
        raise Unreadable(f"{received} instead of {expected}")


def check_contents(operation_model: Any, answer: Mapping[str, Any]) -> None:
    """Check that a parsed answer has contents: for truncated JSON, botocore returns an empty answer.

    AWS never sends an empty answer: each has at least a list, which may be empty.

    Raises:
        Unreadable: The answer is empty.
    """
    shape = operation_model.output_shape
    if _is_xml(operation_model) or shape is None or not shape.members:
        return
    if not any(name in answer for name in shape.members):
        raise Unreadable("an answer with nothing in it")


def lost_code(error: Exception) -> str:
    """Return the code of a failure without an error answer: the names of botocore's own errors, or else `UNREADABLE`.

    `UNREADABLE` stands for every error while an answer is parsed, such as a truncated date.
    """
    from botocore.exceptions import BotoCoreError

    name = type(error).__name__
    return name if isinstance(error, BotoCoreError) or name in api_retries.LOST else UNREADABLE


def _is_xml(operation_model: Any) -> bool:
    return operation_model.service_model.metadata.get("protocol") in {"ec2", "query"}
