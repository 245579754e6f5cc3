"""The policy in docs/providers/aws.md allows what the provider and the command call, and nothing else."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "providers" / "aws.md"
# What EC2 asks for besides the action that is called: CreateFleet starts its machines, tags come with each create, and
# an account's first spot machine makes a role.
IMPLIED = {"ec2:RunInstances", "ec2:CreateTags", "iam:CreateServiceLinkedRole"}


def allowed() -> set[str]:
    policy: dict[str, Any] = json.loads(re.search(r"```json\n(.+?)```", PAGE.read_text(), re.DOTALL)[1])  # type: ignore[index]
    actions = [statement["Action"] for statement in policy["Statement"]]
    return {action for each in actions for action in ([each] if isinstance(each, str) else each)}


def called() -> set[str]:
    """Every ``api.call("...")`` and ``api.pages("...")``, as IAM names it."""
    found = set()
    for module in [*(ROOT / "src" / "providers" / "aws").glob("*.py"), ROOT / "src" / "engine" / "cli" / "clouds.py"]:
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            if node.func.attr not in {"call", "pages"}:
                continue
            names = _names(node.args[0])  # none: it is passed on, from a call that has one
            service = next((_text(each.value) for each in node.keywords if each.arg == "service"), "ec2")
            found |= {f"{service}:{_camel(name)}" for name in names}
    return found


def _text(constant: ast.expr) -> str:
    return str(constant.value) if isinstance(constant, ast.Constant) else "?"


def _names(argument: ast.expr) -> set[str]:
    """``f"authorize_security_group_{direction}"`` is both."""
    if isinstance(argument, ast.Constant):
        return {str(argument.value)}
    if isinstance(argument, ast.JoinedStr):
        begin = argument.values[0].value  # type: ignore[attr-defined]
        return {f"{begin}{direction}" for direction in ("ingress", "egress")}
    return set()


def _camel(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))


def test_the_policy_is_what_is_called() -> None:
    assert called() | IMPLIED == allowed()
