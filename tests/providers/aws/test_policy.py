"""docs/providers/aws-pool-policy.json allows what a pool asks of AWS, and nobody else's machine is touched with it."""

from __future__ import annotations

import ast
import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import boto3
import pytest

from outrider import AWS
from outrider.providers.aws import cloud as listing
from outrider.providers.aws import network
from outrider.providers.aws.api import Api
from outrider.providers.aws.cloud import leftovers
from outrider.providers.base import AcceleratorRequest, EntryPoints, LaunchRequest
from outrider.providers.shared.resource_ownership import Claim
from outrider.testing import EC2
from outrider.testing.clouds.aws import templates, wsgi_app
from outrider.testing.clouds.aws.protocol import parse

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "providers" / "aws.md"
POOL_POLICY = PAGE.with_name("aws-pool-policy.json")
VOLUME_POLICY = PAGE.with_name("aws-volume-policy.json")
POLICY_CHARACTERS = 6144  # of a managed policy, white space not counted: "IAM and AWS STS quotas", IAM User Guide
POOL = "outrider:pool"
OURS, STRANGERS = {POOL: "pool"}, {"Name": "somebody else's"}
WITHIN_S = 120.0
# What EC2 asks for besides the action that is called: CreateFleet starts its machines, tags come with each create, and
# an account's first spot machine makes a role.
IMPLIED = {"ec2:RunInstances", "ec2:CreateTags", "iam:CreateServiceLinkedRole"}
MADE = {
    "CreateLaunchTemplate": "launch-template",
    "CreatePlacementGroup": "placement-group",
    "CreateSecurityGroup": "security-group",
}
CHANGED = {  # of which kind, and which parameter names it
    "AuthorizeSecurityGroupEgress": ("security-group", "GroupId"),
    "AuthorizeSecurityGroupIngress": ("security-group", "GroupId"),
    "RevokeSecurityGroupIngress": ("security-group", "GroupId"),
    "DeleteSecurityGroup": ("security-group", "GroupId"),
    "DeleteLaunchTemplate": ("launch-template", "LaunchTemplateName"),
    "DeletePlacementGroup": ("placement-group", "GroupName"),
    "TerminateInstances": ("instance", "InstanceIds"),
}
READS = re.compile(r"ec2:Describe|pricing:Get|sts:Decode")
PARAMETERS = "arn:aws:ssm:us-east-1::parameter"  # AWS's own, which are of no account

# --- a small IAM: "Policy evaluation logic" and "IAM JSON policy elements: Condition operators", IAM User Guide -------


class Question(NamedTuple):
    """May this be done to one resource? A call asks one for each resource that it touches; all must be allowed."""

    action: str
    resource: str  # "instance/i-1", an ARN, or "*"
    context: Mapping[str, str] = {}  # condition keys

    @property
    def arn(self) -> str:
        whole = self.resource == "*" or self.resource.startswith("arn:")
        return self.resource if whole else f"arn:aws:ec2:us-east-1:123456789012:{self.resource}"


def policy() -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = json.loads(POOL_POLICY.read_text())["Statement"]
    return statements


def allows(question: Question) -> bool:
    effects = {each["Effect"] for each in policy() if applies(each, question)}
    assert effects <= {"Allow", "Deny"}
    return effects == {"Allow"}


def applies(statement: Mapping[str, Any], question: Question) -> bool:
    assert statement.keys() <= {"Sid", "Effect", "Action", "Resource", "Condition"}, "the evaluator knows no other"
    named = any(fnmatchcase(question.action.lower(), each.lower()) for each in several(statement["Action"]))
    there = any(fnmatchcase(question.arn, each) for each in several(statement["Resource"]))
    return named and there and all(holds(*each, question.context) for each in statement.get("Condition", {}).items())


def holds(operator: str, wanted: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    match operator:
        case "Null":  # "true": the key must not be there
            return all((key not in context) is (absent == "true") for key, absent in wanted.items())
        case "StringEquals":
            return all(context.get(key) in several(values) for key, values in wanted.items())
        case _:
            raise AssertionError(f"the evaluator does not know {operator}")


def several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


# --- what a call asks: "Actions, resources, and condition keys for Amazon EC2", Service Authorization Reference -------


def reads(action: str) -> list[Question]:
    return [Question(action, "*")]


def makes(action: str, kind: str, tags: Mapping[str, str], *also: str) -> list[Question]:
    """Something new with tags, which are a second action; ``also``: what else it touches."""
    service, _, name = action.partition(":")
    asked = {f"aws:RequestTag/{key}": value for key, value in tags.items()}
    tagging = [Question(f"{service}:CreateTags", f"{kind}/new", {**asked, "ec2:CreateAction": name})] if tags else []
    return [Question(action, f"{kind}/new", asked), *tagging, *(Question(action, each) for each in also)]


def changes(action: str, kind: str, name: str, tags: Mapping[str, str]) -> list[Question]:
    return [Question(f"ec2:{action}", f"{kind}/{name}", {f"aws:ResourceTag/{key}": tags[key] for key in tags})]


def launches(kinds: Mapping[str, Mapping[str, str]], used: Mapping[str, Mapping[str, str]]) -> list[Question]:
    """CreateFleet and the RunInstances below it. ``kinds``: the tags that each new thing is given; ``used``: the tags
    that what is used has."""
    found = []
    for action in ("ec2:CreateFleet", "ec2:RunInstances"):
        for kind, tags in kinds.items():
            if (kind == "fleet") <= (action == "ec2:CreateFleet"):
                found += makes(action, kind, tags)
        for name, tags in used.items():
            found += changes(action.removeprefix("ec2:"), *name.split("/"), tags)
    return found


def given(ask: Mapping[str, Any], *, of: str | None = None) -> dict[str, dict[str, str]]:
    """The tags in a request, by the kind of what gets them."""
    return {
        each["ResourceType"]: {tag["Key"]: tag["Value"] for tag in each["Tags"]}
        for each in ask.get("TagSpecifications") or ()
        if of in (None, each["ResourceType"])
    }


def questions(cloud: EC2, request: wsgi_app.Request) -> list[Question]:
    """Everything that AWS would ask the policy for this request."""
    action = f"{request.service}:{request.action}"
    if request.service == "ssm":
        named = json.loads(request.body)
        return [Question(action, PARAMETERS + name) for name in named.get("Names") or [named["Name"]]]
    if request.service != "ec2" or READS.match(action):
        return reads(action)
    ask = parse(request.action, request.parameters)
    have = {name: each.tags for each in cloud.left() for name in (each.id, each.tags.get("Name", ""))}

    def tags_of(name: str) -> Mapping[str, str]:
        if request.action == "DeleteLaunchTemplate":  # its name is not in what is left: there is one pool's
            return next((each.tags for each in cloud.left() if each.kind == "launch template"), STRANGERS)
        return have.get(name, STRANGERS)

    if request.action == "CreateFleet":
        return fleet_questions(cloud, ask, tags_of)
    if request.action in MADE:
        kind = MADE[request.action]
        return makes(
            action, kind, given(ask, of=kind).get(kind, {}), *([f"vpc/{ask['VpcId']}"] if "VpcId" in ask else [])
        )
    kind, parameter = CHANGED[request.action]
    names = ask[parameter] if isinstance(ask[parameter], list) else [ask[parameter]]
    return [each for name in names for each in changes(request.action, kind, name, tags_of(name))]


def fleet_questions(cloud: EC2, ask: Mapping[str, Any], tags_of: Callable[[str], Mapping[str, str]]) -> list[Question]:
    region = cloud._state.region(cloud.region)
    kinds: dict[str, dict[str, str]] = {"instance": {}, "volume": {}, "network-interface": {}}
    if ask["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "spot":
        kinds["spot-instances-request"] = {}
    used: dict[str, Mapping[str, str]] = {"image/ami": {}, "snapshot/snap": {}, "subnet/subnet": {}}
    for each in ask["LaunchTemplateConfigs"]:
        named = each["LaunchTemplateSpecification"]
        used[f"launch-template/{named['LaunchTemplateId']}"] = tags_of(named["LaunchTemplateId"])
        told = templates.data(region, named)
        kinds |= given(told)
        if "Placement" in told:
            group = told["Placement"]["GroupName"]
            used[f"placement-group/{group}"] = tags_of(group)
        for interface in told["NetworkInterfaces"]:
            used |= {f"security-group/{group}": tags_of(group) for group in interface["Groups"]}
    return launches(kinds | given(ask), used)


# --- what the code calls ----------------------------------------------------------------------------------------------


def called() -> set[str]:
    """Every ``api.call("...")`` and ``api.pages("...")``, as IAM names it."""
    found = set()
    for module in (ROOT / "src" / "providers" / "aws").glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Constant) and re.fullmatch(r"(describe|delete)_[a-z_]+", str(node.value)):
                found.add(f"ec2:{_camel(str(node.value))}")  # also one that is passed on
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


def test_the_policy_names_what_is_called_and_nothing_else() -> None:
    named = {action for statement in policy() for action in several(statement["Action"])}
    assert called() | IMPLIED == named


# --- a pool's life under the policy -----------------------------------------------------------------------------------


@pytest.fixture
def asked(cloud: EC2, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """The cloud obeys the policy. How often each action was asked for."""
    counts: dict[str, int] = {}
    let_in = wsgi_app.CloudApp._let_in

    def judged(self: wsgi_app.CloudApp, request: wsgi_app.Request) -> None:
        counts[f"{request.service}:{request.action}"] = counts.get(f"{request.service}:{request.action}", 0) + 1
        for each in questions(cloud, request):
            if not allows(each):
                raise wsgi_app.EC2Error(
                    "UnauthorizedOperation", f"{each.action} on {each.resource}: {each.context}", 403
                )
        let_in(self, request)

    monkeypatch.setattr(wsgi_app.CloudApp, "_let_in", judged)
    return counts


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("allocation", "devices"), [("spot", 1), ("on-demand", 8)], ids=["spot", "in a placement group"]
)
async def test_a_pool_lives_and_ends_under_the_policy(
    cloud: EC2, aws: Callable[..., AWS], asked: dict[str, int], allocation: str, devices: int
) -> None:
    request = replace(LaunchRequest("ssh-ed25519 CLIENT", 2), allocation=allocation)
    if devices > 1:
        request = replace(request, accelerator=AcceleratorRequest("A100", devices))
    async with aws().open("pool", EntryPoints()) as fleet:
        with anyio.fail_after(WITHIN_S):
            machines = await fleet.launch(request, 2)
            await fleet.terminate([machines[0].id])
    assert cloud.left() == []
    assert {"ec2:CreateFleet", "ec2:TerminateInstances", "ec2:DeleteSecurityGroup"} <= asked.keys()
    assert ("ec2:CreatePlacementGroup" in asked) is (devices > 1)


@pytest.mark.anyio
async def test_doors_are_moved_and_leftovers_found_under_the_policy(cloud: EC2, asked: dict[str, int]) -> None:
    host = socket.gethostname()
    mine, labels = Claim("pool", hosts=frozenset({host})), {**OURS, "outrider:owner": f"me@{host}"}
    async with Api.open(region=cloud.region, endpoint_url=cloud.endpoint_url) as api:
        for source in ("203.0.113.7/32", "203.0.113.8/32"):
            await network.prepare(api, mine, labels, ssh_from=source, efa=True)
        await listing.survey(api)
        for each in leftovers(api):
            await each.remove(mine, ())
    rules = ("RevokeSecurityGroupIngress", "AuthorizeSecurityGroupIngress", "AuthorizeSecurityGroupEgress")
    assert {f"ec2:{rule}" for rule in rules} <= asked.keys()
    assert cloud.left() == []


@pytest.mark.parametrize("path", [POOL_POLICY, VOLUME_POLICY], ids=lambda path: path.stem)
def test_a_policy_can_be_made_of_each_file(cloud: EC2, path: Path) -> None:
    keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
    iam = boto3.client("iam", endpoint_url=cloud.endpoint_url, **keys)
    iam.create_policy(PolicyName=path.stem, PolicyDocument=path.read_text())  # raises MalformedPolicyDocument
    assert len("".join(path.read_text().split())) <= POLICY_CHARACTERS
    assert f"({path.name})" in PAGE.read_text()


def test_policy_allows_reads() -> None:
    assert [each for each in sorted(called()) if READS.match(each) and not allows(Question(each, "*"))] == []


def test_parameters_are_read_where_aws_tells_its_images_and_nowhere_else() -> None:
    image = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
    for action in ("ssm:GetParameter", "ssm:GetParameters"):
        assert allows(Question(action, PARAMETERS + image))
        assert not allows(Question(action, "arn:aws:ssm:us-east-1:123456789012:parameter/shop/database/password"))
        assert not allows(Question(action, f"arn:aws:ssm:us-east-1:123456789012:parameter{image}"))


# --- a stranger -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        *((action, kind) for action, (kind, _) in CHANGED.items()),
        ("RunInstances", "launch-template"),
        ("CreateFleet", "placement-group"),
        ("RunInstances", "security-group"),  # what lets in its members, such as a database, would let in anybody
    ],
)
def test_policy_denies_changes_to_other_resources(action: str, kind: str) -> None:
    (mine,) = changes(action, kind, "its-id", OURS)
    (strange,) = changes(action, kind, "its-id", STRANGERS)
    assert (allows(mine), allows(strange)) == (True, False)


@pytest.mark.parametrize("kind", ["instance", "security-group", "launch-template", "placement-group", "volume"])
@pytest.mark.parametrize("action", ["CreateTags", "DeleteTags"])
def test_policy_denies_tagging_of_existing_resources(kind: str, action: str) -> None:
    """Or it would be somebody's own, in the second step."""
    (bare,) = changes(action, kind, "its-id", STRANGERS)
    asked = bare._replace(context={**bare.context, f"aws:RequestTag/{POOL}": "pool"})
    assert not allows(asked)
    # EC2 itself says which call makes a thing: it is never a call that makes nothing.
    assert not allows(asked._replace(context={**asked.context, "ec2:CreateAction": "ModifyInstanceAttribute"}))


def test_nothing_is_made_without_the_tag() -> None:
    """What could be made without it could not be ended, and might be given to somebody else."""
    for action, kind in {**MADE, "CreateFleet": "fleet", "RunInstances": "instance"}.items():
        assert all(map(allows, makes(f"ec2:{action}", kind, OURS)))
        assert not all(map(allows, makes(f"ec2:{action}", kind, STRANGERS)))
        assert not all(map(allows, makes(f"ec2:{action}", kind, {})))


def test_a_new_statement_kind_is_not_passed_over() -> None:
    with pytest.raises(AssertionError, match="does not know StringLike"):
        holds("StringLike", {"aws:PrincipalTag/team": "*"}, {})
