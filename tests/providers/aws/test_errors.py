"""What AWS's errors mean: their class, their code, the next step, and no credential in any of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.actors.interfaces import GaveUp, NodeId, Reason
from outrider.engine.serialization.error_translation import gave_up_error, provider_error
from outrider.providers.aws import errors
from outrider.providers.aws.errors import Failure, translate
from outrider.providers.cloud.calls import CallRefused, most_telling
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded, Unreachable

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
DENIAL = (
    "You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/bob is not authorized to "
    "perform: ec2:CreateFleet on resource: arn:aws:ec2:us-east-1:123456789012:fleet/* because no identity-based policy "
    "allows the ec2:CreateFleet action. Encoded authorization failure message: " + "Zm9v" * 60
)


def failure(code: str, message: str = "", **facts: object) -> Failure:
    return Failure(**{"code": code, "message": message, "region": "us-east-1", "operation": "CreateFleet", **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        # who one is
        ("NoCredentialsError", NotAuthorized, "aws configure"),
        ("PartialCredentialsError", NotAuthorized, "incomplete"),
        ("ProfileNotFound", NotAuthorized, "list-profiles"),
        ("UnauthorizedSSOTokenError", NotAuthorized, "aws sso login"),
        ("SSOTokenLoadError", NotAuthorized, "aws sso login"),
        ("TokenRetrievalError", NotAuthorized, "aws sso login"),
        ("CredentialRetrievalError", NotAuthorized, "could not be fetched"),
        ("ExpiredToken", NotAuthorized, "expired"),
        ("ExpiredTokenException", NotAuthorized, "expired"),
        ("RequestExpired", NotAuthorized, "expired"),
        ("AuthFailure", NotAuthorized, "get-caller-identity"),
        ("InvalidClientTokenId", NotAuthorized, "get-caller-identity"),
        ("SignatureDoesNotMatch", NotAuthorized, "get-caller-identity"),
        ("OptInRequired", NotAuthorized, "subscribed"),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", NotAuthorized, "iam:CreateServiceLinkedRole"),
        ("UnauthorizedOperation", NotAuthorized, "ec2:CreateFleet"),
        ("AccessDeniedException", NotAuthorized, "ec2:CreateFleet"),
        ("RequestTimeTooSkewed", NotAuthorized, "clock"),
        # what there is
        ("InsufficientInstanceCapacity", NoCapacity, "left in us-east-1"),
        ("InsufficientHostCapacity", NoCapacity, "left"),
        ("InsufficientCapacityOnHost", NoCapacity, "left"),
        ("InsufficientCapacity", NoCapacity, "left"),
        ("UnfulfillableCapacity", NoCapacity, "left"),
        ("SpotMaxPriceTooLow", NoCapacity, "max_hourly_cost"),
        ("InsufficientFreeAddressesInSubnet", NoCapacity, "subnet"),
        ("VcpuLimitExceeded", QuotaExceeded, "Service Quotas"),
        ("MaxSpotInstanceCountExceeded", QuotaExceeded, "Service Quotas"),
        ("VolumeLimitExceeded", QuotaExceeded, "L-7A658B76"),
        ("AddressLimitExceeded", QuotaExceeded, "L-0263D0A3"),
        ("SecurityGroupLimitExceeded", QuotaExceeded, "L-E79EC296"),
        ("PendingVerification", QuotaExceeded, "verifying"),
        # what was asked for
        ("InvalidAMIID.NotFound", BadRequest, "leave ami out"),
        ("InvalidAMIID.Unavailable", BadRequest, "AMI"),
        ("InvalidInstanceType", BadRequest, "describe-instance-types"),
        ("InvalidSubnetID.NotFound", BadRequest, "subnets"),
        ("InvalidVpcID.NotFound", BadRequest, "describe-vpcs"),
        ("InvalidGroup.NotFound", BadRequest, "security group"),
        ("VPCIdNotSpecified", BadRequest, "create-default-vpc"),
        ("DefaultVpcDoesNotExist", BadRequest, "create-default-vpc"),
        ("VPCResourceNotSpecified", BadRequest, "subnets"),
        ("InvalidIamInstanceProfile.NotFound", BadRequest, "list-instance-profiles"),
        ("InvalidParameterValue", BadRequest, "CreateFleet"),
        ("InvalidParameterCombination", BadRequest, "CreateFleet"),
        ("MissingParameter", BadRequest, "CreateFleet"),
        ("ParamValidationError", BadRequest, "CreateFleet"),
        ("UnsupportedOperation", BadRequest, "another type"),
        # the caller knows which
        ("InvalidInstanceID.NotFound", CallRefused, "us-east-1"),
        ("InvalidGroup.Duplicate", CallRefused, "us-east-1"),
        ("DependencyViolation", CallRefused, "us-east-1"),
        ("SomethingNew", CallRefused, "CreateFleet failed"),
        # what passes
        ("RequestLimitExceeded", CallRefused, "too often"),
        ("InternalError", CallRefused, "AWS failed"),
        ("ReadTimeoutError", CallRefused, "not known"),
        ("EndpointConnectionError", Unreachable, "network"),
    ],
)
def test_each_code_has_its_class_and_its_next_step(code: str, kind: type[ProviderError], said: str) -> None:
    error = translate(failure(code))
    assert type(error) is kind
    assert said in str(error)
    assert error.code == code


@pytest.mark.parametrize(
    ("code", "again"),
    [("InsufficientInstanceCapacity", True), ("InternalError", True), ("RequestLimitExceeded", True),
     ("EndpointConnectionError", True), ("SpotMaxPriceTooLow", False), ("VcpuLimitExceeded", False),
     ("InvalidAMIID.NotFound", False), ("AuthFailure", False)],
)  # fmt: skip
def test_transient_error_has_a_retry_time(code: str, again: bool) -> None:
    assert (translate(failure(code)).retry_after_s is not None) is again


def test_a_missing_permission_is_told_by_its_action() -> None:
    said = str(translate(failure("UnauthorizedOperation", DENIAL)))
    assert "the action ec2:CreateFleet is not allowed on arn:aws:ec2:us-east-1:123456789012:fleet/*" in said
    assert "allow it in an IAM policy of arn:aws:iam::123456789012:user/bob" in said
    assert "Zm9v" not in said


def test_another_action_than_the_one_called_may_be_missing() -> None:
    said = str(translate(failure("UnauthorizedOperation", "User: x is not authorized to perform: iam:PassRole on r")))
    assert "iam:PassRole" in said
    assert "CreateFleet" not in said


def test_an_explicit_deny_asks_for_another_cure() -> None:
    told = DENIAL.replace("because no identity-based policy allows the ec2:CreateFleet action",
                          "with an explicit deny in a service control policy")  # fmt: skip
    said = str(translate(failure("UnauthorizedOperation", told)))
    assert "explicit deny in a service control policy: have the deny lifted" in said


@pytest.mark.parametrize("code", ["RequestExpired", "SignatureDoesNotMatch", "AuthFailure", "RequestTimeTooSkewed"])
@pytest.mark.parametrize(("skew_s", "said"), [(3600.0, "3600 s ahead of"), (-1200.0, "1200 s behind")])
def test_a_wrong_clock_is_told_by_how_much(code: str, skew_s: float, said: str) -> None:
    error = translate(failure(code, skew_s=skew_s))
    assert isinstance(error, NotAuthorized)
    assert said in str(error)
    assert "clock" in str(error)


def test_seconds_of_skew_are_not_why() -> None:
    assert "clock" not in str(translate(failure("SignatureDoesNotMatch", skew_s=20.0)))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Your requested instance type (p5.48xlarge) is not supported in your requested Availability Zone (x).",
         NoCapacity),
        ("The requested configuration is currently not supported. Please check the documentation.", NoCapacity),
        ("The instance type 't2.micro' does not support an EFA", BadRequest),
    ],
)  # fmt: skip
def test_unsupported_is_the_zones_or_ones_own_fault(message: str, kind: type[ProviderError]) -> None:
    assert type(translate(failure("Unsupported", message))) is kind


def test_an_ami_that_is_not_shared_is_no_matter_of_credentials() -> None:
    error = translate(failure("AuthFailure", "Not authorized for images: [ami-1]"))
    assert isinstance(error, BadRequest)


def test_a_wrong_instance_profile_is_told_though_its_code_says_little() -> None:
    told = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    error = translate(failure("InvalidParameterValue", told))
    assert "list-instance-profiles" in str(error)
    assert error.code == "InvalidParameterValue"


def test_an_unknown_region_is_told_with_the_close_ones() -> None:
    regions = ("us-east-1", "eu-central-1")
    error = translate(failure("EndpointConnectionError", region="us-esat-1", regions=regions))
    assert isinstance(error, BadRequest)
    assert "did you mean us-east-1?" in str(error)


def test_an_endpoint_that_does_not_answer_is_named() -> None:
    url = "http://me:password@127.0.0.1:1"
    error = translate(failure("EndpointConnectionError", endpoint_url=url, region="x", regions=("y",)))
    assert isinstance(error, Unreachable)
    assert "endpoint_url=http://127.0.0.1:1" in str(error)


def test_a_user_reads_the_cause_first_and_the_next_step_last() -> None:
    """And not the cause at the end of a sentence about it, in brackets."""
    limit = translate(failure("VcpuLimitExceeded", "You have requested more vCPU capacity.", instance_type="g5.xlarge"))
    said = str(provider_error(limit))
    assert said.startswith(
        "the quota 'Running On-Demand G and VT instances' (ec2 L-DB2E81BA) is used up in us-east-1: "
    )
    assert said.endswith("until it is raised, ask for fewer nodes, or other types.")
    none = translate(failure("InsufficientInstanceCapacity", "We do not have it.", instance_type="p5.48xlarge"))
    said = str(provider_error(most_telling([none, none])))
    assert said.startswith("AWS has no p5.48xlarge left in us-east-1 now (")
    assert said.endswith("Pool(Spec(...), Spec(...)) asks for one after the other.")
    lost = gave_up_error(GaveUp(Reason.NO_REPLACEMENT, ((NodeId(3), "taken by AWS"),), failure=none), "train")
    assert str(lost).startswith("AWS has no p5.48xlarge left in us-east-1 now (")
    assert str(lost).endswith("so no replacement came, and train needs a node that was lost (node 3: taken by AWS).")


# --- quotas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instance_type", "on_demand", "spot"),
    [
        ("m5.large", "L-1216C47A", "L-34B43A08"),
        ("c7gn.xlarge", "L-1216C47A", "L-34B43A08"),
        ("mac2.metal", "L-1216C47A", "L-34B43A08"),
        ("i4i.large", "L-1216C47A", "L-34B43A08"),
        ("inf2.xlarge", "L-1945791B", "L-B5D1601B"),
        ("g5.xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("gr6.4xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("vt1.3xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("p4d.24xlarge", "L-417A185B", "L-7212CCBC"),
        ("p5en.48xlarge", "L-417A185B", "L-7212CCBC"),
        ("trn1.2xlarge", "L-2C3B7624", "L-6B0D517C"),
        ("dl1.24xlarge", "L-6E869C2A", "L-85EED4F7"),
        ("d3.xlarge", "L-1216C47A", "L-34B43A08"),
        ("x2idn.16xlarge", "L-7295265B", "L-E3A00192"),
        ("f1.2xlarge", "L-74FC7D96", "L-88CF9481"),
        ("u-6tb1.metal", "L-43DA4232", None),
        ("hpc7a.96xlarge", "L-F7808C92", None),
        ("nonsense", None, None),
        ("", None, None),
    ],
)
def test_each_family_counts_against_its_own_quota(instance_type: str, on_demand: str | None, spot: str | None) -> None:
    found = [errors.of_type(instance_type, spot=market) for market in (False, True)]
    assert [quota and quota.code for quota in found] == [on_demand, spot]


def test_a_quota_is_told_with_its_name_and_where_to_ask() -> None:
    error = translate(failure("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded",
                              instance_type="g5.xlarge", spot=True))  # fmt: skip
    assert isinstance(error, QuotaExceeded)
    assert "'All G and VT Spot Instance Requests' (ec2 L-3819A6DF)" in str(error)
    assert "us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-3819A6DF" in str(error)


# --- secrets ----------------------------------------------------------------------------------------------------------

codes = st.sampled_from(["SignatureDoesNotMatch", "AuthFailure", "InvalidParameterValue", "UnauthorizedOperation",
                         "Unsupported", "VcpuLimitExceeded", "Whatever", "InvalidAccessKeyId"])  # fmt: skip
words = st.text("abc XYZ.:'\n", max_size=30)


@given(codes, words, words, st.sampled_from(["AKIAIOSFODNN7EXAMPLE", SECRET, "FwoGZXIvYXdzE" * 20]))
def test_no_credential_is_repeated(code: str, before: str, after: str, secret: str) -> None:
    error = translate(failure(code, f"{before} {secret} {after}"))
    assert secret not in str(error)


def test_the_signed_request_is_not_repeated() -> None:
    message = (
        "The request signature we calculated does not match the signature you provided. "
        "The Canonical String for this request should have been 'POST\n/\n\nx-amz-security-token:secret-token\n'"
    )
    said = str(translate(failure("SignatureDoesNotMatch", message)))
    assert "does not match" in said
    assert "secret-token" not in said


@given(st.text(max_size=2000), codes | st.text(max_size=40), st.integers(0, 599))
def test_every_failure_is_an_error_and_a_short_one(message: str, code: str, status: int) -> None:
    error = translate(failure(code, message, status=status))
    assert error.code == code
    assert 0 < len(str(error)) < 900
