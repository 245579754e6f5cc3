"""The meaning of AWS's responses: whether they answer the call, whether to repeat it, and the error for the user. No
I/O.

`check_root` and `check_contents` recognize a response that is not the answer to its call. `bucket_for`, `idempotent`
and `trouble` decide when AWS may be called, and when a call is repeated. `translate` converts AWS's error codes into
errors with the next step, with the name of the account's quota (`of_type`, `of_code`).

ANSWER-1: a caller gets a whole answer to its own action, or an error; never an empty answer that botocore made up.

Names and codes of quotas: "Amazon EC2 endpoints and quotas", AWS General Reference, and "Spot Instance quotas", EC2
User Guide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from http.client import MULTIPLE_CHOICES
from typing import Any, Literal

from ...lazy_dataclass import dataclass
from ..cloud import calls
from ..cloud.calls import AGAIN_S, Bucket, CallRefused, Meanings, Trouble, meant, passing, settled, with_reply
from ..errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded, Unreachable

CAPACITY_AGAIN_S = 10.0
# Seconds; AWS refuses signatures with a clock error of 5 minutes: "Signing AWS API requests", IAM User Guide.
SKEW_S = 240.0

DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedAccess", "UnauthorizedOperation"})
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_CLOCK = frozenset({"RequestInTheFuture", "RequestTimeTooSkewed"})
_WRONG = frozenset({
    "AuthFailure", "IncompleteSignature", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSignatureException",
    "InvalidToken", "MissingAuthenticationToken", "SignatureDoesNotMatch", "UnrecognizedClientException",
})  # fmt: skip
# Matches EC2's message if only this zone, not the whole region, lacks the type, permanently or today.
_OF_THE_ZONE = re.compile("Availability Zone|requested configuration is currently not supported")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed call. ``code``: AWS's, or the name of botocore's exception if AWS did not respond."""

    code: str
    message: str = ""
    operation: str = ""  # such as "RunInstances"
    service: str = "ec2"
    region: str = ""
    status: int = 0  # HTTP status; 0 without a response
    skew_s: float = 0.0  # seconds by which this computer's clock is ahead of AWS's
    instance_type: str = ""
    zone: str = ""
    spot: bool = False
    endpoint_url: str = ""  # the user's own URL instead of AWS's, if any
    regions: tuple[str, ...] = ()  # the regions that botocore knows
    retry_after_s: float = 0.0  # always 0, because AWS never sends a time for the retry

    @property
    def trouble(self) -> Trouble | None:
        return trouble(self.code, self.status)

    @property
    def call(self) -> str:
        return " in ".join(filter(None, (self.operation or "the call", self.region)))

    @property
    def reads(self) -> bool:
        return self.operation.startswith(READS)

    @property
    def words(self) -> str:
        return redacted(self.message)

    @property
    def where(self) -> str:
        return self.zone or self.region or "there"

    @property
    def what(self) -> str:
        market = "spot " if self.spot else ""
        return f"{market}{self.instance_type or 'machines'}"


def translate(failure: Failure, *, unsure: bool = False) -> ProviderError:
    """Return the error for the caller, with AWS's own ``code``. Its class says what can be done about it.

    ``unsure``: an earlier try of the same call may have been carried out.
    """
    error = (
        _access(failure)
        or _unreached(failure, unsure=unsure)
        # A response says nothing about earlier tries.
        or passing("AWS", failure, f"in {failure.region}", unsure=unsure or failure.trouble != "unreached")
        or _limit(failure)
        or _meant(failure)
        or CallRefused(with_reply(failure, f"{failure.operation or 'the call'} failed"))
    )
    return settled("AWS", failure, error, unsure=unsure)


def _access(failure: Failure) -> ProviderError | None:
    code = failure.code
    if code in _CLOCK or (code in _WRONG | EXPIRED and abs(failure.skew_s) > SKEW_S):
        return NotAuthorized(_clock(failure))
    if code in DENIED:
        return NotAuthorized(_denied(failure))
    if code == "AuthFailure" and "image" in failure.message:
        return BadRequest(with_reply(failure, "the AMI is not shared with this account"))
    return None


def _limit(failure: Failure) -> ProviderError | None:
    if not failure.code.endswith(("LimitExceeded", "CountExceeded")):
        return None
    quota = of_code(failure.code, failure.instance_type, spot=failure.spot)
    if quota is None:
        reason = f"a quota of the account is used up in {failure.where}: ask for more in Service Quotas"
    else:
        reason = (
            f"{quota} is used up in {failure.region or 'the region'}: ask for more, {quota.console(failure.region)}"
        )
    return QuotaExceeded(with_reply(failure, reason))


def _meant(failure: Failure) -> ProviderError | None:
    if failure.code == "Unsupported" and _OF_THE_ZONE.search(failure.message):
        return NoCapacity(with_reply(failure, f"{failure.what} cannot be had in {failure.where}"))
    code = "InvalidIamInstanceProfile" if "iamInstanceProfile" in failure.message else failure.code
    facts = {"call": failure.operation or "request", "region": failure.region}
    return meant(failure, _MEANINGS, _AGAIN_AFTER_S, code=code, what=failure.what, where=failure.where, **facts)


# "Error codes for the Amazon EC2 API", EC2 Developer Guide; names that end in Error are botocore's. The first match
# wins. `_AGAIN_S`: seconds after which a further try may succeed.
_MEANINGS: Meanings = (
    (NotAuthorized, {
        "NoCredentialsError":
            "there are no AWS credentials: run 'aws configure' or 'aws sso login', or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY",
        "PartialCredentialsError": "the AWS credentials are incomplete: give the key's id and the key",
        "ProfileNotFound": "there is no such profile: 'aws configure list-profiles' names those there are",
        ".*SSO.*|TokenRetrievalError|LoginError.*": "the AWS sign-on is over: run 'aws sso login'",
        "CredentialRetrievalError|MetadataRetrievalError|RefreshWithMFAUnsupportedError|.*LoopConfigError":
            "the AWS credentials could not be fetched: check what the profile names as their source",
        "|".join(EXPIRED): "the AWS credentials have expired: get new ones, such as by 'aws sso login'",
        "OptInRequired|SubscriptionRequiredException":
            "the account has not subscribed to this: follow AWS's link, or choose another AMI or region",
        ".*ServiceLinkedRoleCreationNotPermitted":
            "the account has no service-linked role for this yet: allow iam:CreateServiceLinkedRole once, or run "
            "'aws iam create-service-linked-role --aws-service-name spot.amazonaws.com'",
        "|".join(_WRONG):
            "AWS does not accept these credentials: check them with 'aws sts get-caller-identity', and that the "
            "account has the region {region} enabled",
        "Blocked": "AWS has blocked the account: ask AWS Support",
    }),
    (QuotaExceeded, {
        "PendingVerification": "AWS is still verifying the account for {region}: try again in some minutes",
    }),
    (NoCapacity, {
        "SpotMaxPriceTooLow":
            "the spot price of {what} in {where} is above what may be paid: raise max_hourly_cost, or take other "
            "types",
        "InsufficientFreeAddressesInSubnet": "the subnet in {where} has no free address: choose another",
        ".*Capacity.*": "AWS has no {what} left in {where} now",
    }),
    (BadRequest, {
        r"InvalidAMI.*":
            "there is no such AMI in {region}: their ids are a region's own; leave ami out for a current one",
        r"InvalidInstanceType(\.NotFound)?":
            "there is no such instance type in {region}: 'aws ec2 describe-instance-types' lists them",
        r"InvalidSubnet.*":
            "there is no such subnet in {region}: 'aws ec2 describe-subnets' lists them, for AWS(subnets=[...])",
        r"InvalidVpcI[Dd]\..*": "there is no such VPC in {region}: 'aws ec2 describe-vpcs' lists them",
        r"(InvalidGroup|InvalidGroupId|InvalidSecurityGroup|InvalidSecurityGroupI[Dd])\.(NotFound|Malformed)":
            "there is no such security group in that VPC of {region}",
        "VPCIdNotSpecified|DefaultVpcDoesNotExist|MissingDefaultVpc":
            "{region} has no default VPC: run 'aws ec2 create-default-vpc', or give AWS(vpc=...) or "
            "AWS(subnets=[...])",
        "VPCResourceNotSpecified|DefaultSubnetDoesNotExist.*":
            "this needs a subnet: give AWS(subnets=[...]) of {region}",
        r"InvalidIamInstanceProfile.*":
            "there is no such instance profile: 'aws iam list-instance-profiles' lists them",
        r"InvalidKeyPair\..*": "there is no such key pair in {region}",
        r"InvalidZone\..*|InvalidAvailabilityZone":
            "there is no such zone in {region}: 'aws ec2 describe-availability-zones' lists them",
        "Unsupported.*": "AWS cannot do this with {what}: choose another type, AMI or zone",
        "InvalidRegionError": "the region is not one: give AWS(region=...), such as us-east-1",
        "ConfigParseError|ConfigNotFound": "the AWS configuration cannot be read: look into ~/.aws/config",
        "SSLError|InvalidProxy.*":
            "no safe connection to AWS comes about: check the computer's certificates, and any proxy on the way",
    }),
    (CallRefused, {
        r".*\.NotFound|.*\.Duplicate|DependencyViolation|InvalidClientToken|IdempotentParameterMismatch":
            "AWS says otherwise of what is there in {region}",
    }),
    (BadRequest, {
        "(Invalid|Malformed|Missing|Unknown|Validation|ParamValidation).*": "AWS does not take this {call} as it is",
    }),
)  # fmt: skip
_AGAIN_AFTER_S = {
    "PendingVerification": 60.0,
    "InsufficientFreeAddressesInSubnet": CAPACITY_AGAIN_S,
    ".*Capacity.*": CAPACITY_AGAIN_S,
}


def _clock(failure: Failure) -> str:
    if not failure.skew_s:
        return with_reply(failure, "this computer's clock is wrong: set it, best by NTP")
    side = "ahead of" if failure.skew_s > 0 else "behind"
    return f"this computer's clock is {abs(failure.skew_s):.0f} s {side} AWS's: set it, best by NTP ({failure.code})"


def _denied(failure: Failure) -> str:
    """Explain ``...is not authorized to perform: ec2:RunInstances on resource: arn:... because no ... policy...``."""
    text = failure.message
    action = _first_group(r"perform: ([\w-]+:\w+)", text) or f"{failure.service}:{failure.operation or '?'}"
    who, resource = _first_group(r"User: (\S+)", text), _first_group(r"on resource: (\S+)", text)
    why = _first_group(r"(with an explicit deny[^.:]*|because no [^.:]* allows)", text)
    reason = f"the action {action} is not allowed" + (f" on {resource}" if resource else "")
    reason += f", {why} it" if why.endswith("allows") else f", {why}" if why else ""
    cure = "have the deny lifted" if "explicit deny" in why else "allow it in an IAM policy"
    return redacted(f"{reason}: {cure}" + (f" of {who}" if who else ""))


def _unreached(failure: Failure, *, unsure: bool) -> ProviderError | None:
    if failure.trouble != "unreached":
        return None
    region = failure.region
    if failure.endpoint_url:
        reason = f"nothing answers at endpoint_url={redacted(failure.endpoint_url)}: check it, and that it runs"
        if unsure:
            return CallRefused(reason, retry_after_s=AGAIN_S)
        return Unreachable(reason, retry_after_s=AGAIN_S, kind="nothing at endpoint_url")
    if failure.regions and region not in failure.regions:
        close = " or ".join(get_close_matches(region, failure.regions, n=2))
        hint = f"did you mean {close}?" if close else "'aws ec2 describe-regions' lists them"
        return BadRequest(f"there is no AWS region {region!r}: {hint}")
    return None


def redacted(text: str) -> str:
    """Remove texts that may be credentials (AWS repeats a signed request that it refuses), and shorten the rest."""
    text = re.split(r"\s*(?:The Canonical String|Encoded authorization failure)", text)[0]
    return calls.redacted(re.sub(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}", "(key)", text))


def _first_group(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


# --- quotas -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota, named as in the Service Quotas console and ``aws service-quotas``. ``code``: empty if not listed
    there.
    """

    name: str
    code: str
    service: Literal["ec2", "vpc", "ebs"] = "ec2"

    def __str__(self) -> str:
        return f"the quota {self.name!r}" + (f" ({self.service} {self.code})" if self.code else "")

    def console(self, region: str) -> str:
        """Return where to request an increase: a URL, or AWS Support."""
        if not self.code:
            return "AWS Support"
        place = f"{region}." if region else ""
        return f"https://{place}console.aws.amazon.com/servicequotas/home/services/{self.service}/quotas/{self.code}"


# vCPU quotas by the letters at the start of a type's name ("g" for "g5.xlarge"). Each value has the types' name in the
# quotas' names, the code of the on-demand quota, and the code of the spot quota (empty: there is no such quota).
_STANDARD = ("Standard (A, C, D, H, I, M, R, T, Z)", "L-1216C47A", "L-34B43A08")
_G_AND_VT = ("G and VT", "L-DB2E81BA", "L-3819A6DF")
_FAMILIES = {
    "dl": ("DL", "L-6E869C2A", "L-85EED4F7"),
    "f": ("F", "L-74FC7D96", "L-88CF9481"),
    "g": _G_AND_VT,
    "gr": _G_AND_VT,
    "vt": _G_AND_VT,
    "hpc": ("HPC", "L-F7808C92", ""),
    "inf": ("Inf", "L-1945791B", "L-B5D1601B"),
    "p": ("P", "L-417A185B", "L-7212CCBC"),
    "trn": ("Trn", "L-2C3B7624", "L-6B0D517C"),
    "u": ("High Memory", "L-43DA4232", ""),
    "x": ("X", "L-7295265B", "L-E3A00192"),
}

_OTHERS = {
    "AddressLimitExceeded": Quota("EC2-VPC Elastic IPs", "L-0263D0A3"),
    "MaxIOPSLimitExceeded": Quota("IOPS for Provisioned IOPS SSD volumes", "", "ebs"),
    "NetworkInterfaceLimitExceeded": Quota("Network interfaces per Region", "L-DF5E4CA3", "vpc"),
    "PlacementGroupLimitExceeded": Quota("placement groups per Region", ""),
    "RulesPerSecurityGroupLimitExceeded": Quota("Inbound or outbound rules per security group", "L-0EA8095F", "vpc"),
    "SecurityGroupLimitExceeded": Quota("VPC security groups per Region", "L-E79EC296", "vpc"),
    "SecurityGroupsPerInterfaceLimitExceeded": Quota("Security groups per network interface", "L-2AFB9258", "vpc"),
    "VolumeLimitExceeded": Quota("Storage for General Purpose SSD (gp3) volumes, in TiB", "L-7A658B76", "ebs"),
}
OF_VCPUS = frozenset({"InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"})


def of_type(instance_type: str, *, spot: bool) -> Quota | None:
    """Return the vCPU quota of ``"g5.xlarge"``; None: its family has none for that market, or the type is unknown."""
    letters = re.match(r"[a-z]+", instance_type)
    if letters is None:
        return None
    known = _FAMILIES.get(letters[0]) or (_STANDARD if letters[0][0] in "acdhimrtz" else ("", "", ""))
    types, on_demand_code, spot_code = known
    name = f"All {types} Spot Instance Requests" if spot else f"Running On-Demand {types} instances"
    code = spot_code if spot else on_demand_code
    return Quota(name, code) if code else None


def of_code(code: str, instance_type: str, *, spot: bool) -> Quota | None:
    """Return the quota that an EC2 error is about; None: unknown."""
    if code in OF_VCPUS:
        return of_type(instance_type, spot=spot or code.startswith("MaxSpot"))
    return _OTHERS.get(code)


# --- rate limits and retries ------------------------------------------------------------------------------------------


THROTTLED = frozenset({
    "EC2ThrottledException", "PriorRequestNotComplete", "RequestLimitExceeded", "RequestThrottled",
    "RequestThrottledException", "SlowDown", "Throttling", "ThrottlingException", "ThrottledException",
    "TooManyRequestsException",
})  # fmt: skip
# names of botocore's exceptions if there was no connection, so that no request was sent
UNREACHED = frozenset({"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "ConnectionError"})
# names of botocore's and this package's failures if the request was sent, but the response is missing or unreadable;
# the request may have been carried out
LOST = frozenset({"ConnectionClosedError", "HTTPClientError", "IncompleteReadError", "ReadTimeoutError",
                  "ResponseParserError", "ResponseStreamingError", "TimedOut",
                  "UnreadableAnswer"})  # fmt: skip
BROKEN = frozenset({"InternalError", "InternalFailure", "InternalServerError", "RequestTimeout", "ServiceUnavailable",
                    "ServiceUnavailableException", "Unavailable"})  # fmt: skip

READS = ("Describe", "Get", "Head", "List", "Lookup", "Search", "Simulate", "DecodeAuthorizationMessage")
_SETS = ("Authorize", "Cancel", "Delete", "Modify", "Revoke", "CreateTags", "StopInstances", "TerminateInstances")

# "Request throttling for the Amazon EC2 API", EC2 Developer Guide: each action has its own bucket.
NON_MUTATING = (100.0, 20.0)  # (capacity in tokens, tokens refilled per second)
UNFILTERED = (50.0, 10.0)  # limits (capacity, tokens per second) of some describe calls without filters
MUTATING = (50.0, 5.0)  # limits of actions that change something, also of those that AWS calls resource-intensive
# Limits of single actions. AWS calls these actions uncategorized; Outrider calls no others of that category.
_UNCATEGORIZED = {"RunInstances": (5.0, 2.0), "TerminateInstances": (100.0, 5.0)}
_UNFILTERED_ACTIONS = frozenset({"DescribeInstances", "DescribeSecurityGroups", "DescribeVolumes"})


def bucket_for(operation: str, *, filtered: bool) -> tuple[str, Bucket]:
    """Return the bucket for an EC2 action (``"DescribeInstances"``), and the key under which callers share it."""
    if not filtered and operation in _UNFILTERED_ACTIONS:
        return f"{operation}, unfiltered", Bucket(*UNFILTERED)
    size = _UNCATEGORIZED.get(operation) or (NON_MUTATING if operation.startswith(READS) else MUTATING)
    return operation, Bucket(*size)


def idempotent(operation: str, *, token: bool) -> bool:
    """Return whether the call is idempotent. ``token``: it has a ClientToken, which is an idempotency key."""
    return token or operation.startswith(READS + _SETS)


def trouble(code: str, status: int) -> Trouble | None:
    """Return the kind of a transient failure; None: a permanent failure."""
    if code in THROTTLED or status == 429:
        return "throttled"
    if code in UNREACHED:
        return "unreached"
    if code in LOST:
        return "lost"
    # Missing capacity has status 500 or 503 too, but lasts longer than a transient failure.
    if code in BROKEN or (status >= 500 and "Capacity" not in code):
        return "broken"
    return None


# --- complete and incomplete answers ----------------------------------------------------------------------------------


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
    """Return a code for a call that failed without an error response of AWS.

    It is the exception's class name, if that is botocore's or in `LOST`; otherwise `UNREADABLE`, because the response
    could not be parsed (for example, a truncated date).
    """
    from botocore.exceptions import BotoCoreError

    name = type(error).__name__
    return name if isinstance(error, BotoCoreError) or name in LOST else UNREADABLE


def _is_xml(operation_model: Any) -> bool:
    return operation_model.service_model.metadata.get("protocol") in {"ec2", "query"}
