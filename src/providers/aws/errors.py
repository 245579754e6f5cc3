"""Translation of AWS's error codes into errors with the next step. No I/O; `api` makes the calls."""

from __future__ import annotations

import re
from difflib import get_close_matches

from ...lazy_dataclass import dataclass
from ..cloud import failures
from ..cloud.call_failures import meant, passing, settled, with_reply
from ..cloud.failures import AGAIN_S, CallRefused, Meanings
from ..cloud.retries import Trouble
from ..errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded, Unreachable
from . import api_retries, quotas

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
# A part of EC2's message when only this zone lacks the type, permanently or today.
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
    endpoint_url: str = ""  # the user's own, if any
    regions: tuple[str, ...] = ()  # known to botocore
    retry_after_s: float = 0.0  # always 0, as AWS never sends it

    @property
    def trouble(self) -> Trouble | None:
        return api_retries.trouble(self.code, self.status)

    @property
    def call(self) -> str:
        return " in ".join(filter(None, (self.operation or "the call", self.region)))

    @property
    def reads(self) -> bool:
        return self.operation.startswith(api_retries.READS)

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
    quota = quotas.of_code(failure.code, failure.instance_type, spot=failure.spot)
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
    return failures.redacted(re.sub(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}", "(key)", text))


def _first_group(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""
