"""`Api` against a server that answers as EC2 does, and as it does on bad days."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import anyio
import pytest
import trio.testing
from aiohttp import web

from outrider.providers.aws import api as api_module
from outrider.providers.aws.api import Api, Credentials, choose_region
from outrider.providers.aws.errors import Failure
from outrider.providers.cloud.calls import Bucket, CallRefused, is_lost
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded, Unreachable

pytestmark = pytest.mark.anyio

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
CREDENTIALS = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "FwoGZXIvYXdzE" * 10)

Answer = Callable[["Call", web.Request], Awaitable[web.StreamResponse]]


class Call(dict[str, str]):
    """One request's parameters, as EC2 reads them."""

    key_id = ""


class Cloud:
    """Answers with what is in ``answers``, in turn; the last one stays."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.calls: list[Call] = []
        self.url = ""
        self.arrived = anyio.Event()
        self.ended = anyio.Event()

    def will(self, *answers: Answer) -> None:
        self.answers += answers

    async def serve(self, request: web.Request) -> web.StreamResponse:
        call = Call({str(key): str(value) for key, value in (await request.post()).items()})
        call.key_id = request.headers.get("Authorization", "").partition("Credential=")[2].split("/")[0]
        if "X-Amz-Target" in request.headers:
            call |= {"Action": request.headers["X-Amz-Target"].split(".")[1], "Body": await request.text()}
        self.calls.append(call)
        self.arrived.set()
        return await (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(call, request)

    @property
    def actions(self) -> list[str]:
        return [call["Action"] for call in self.calls]


def ok(inner: str = "", **headers: str) -> Answer:
    async def answer(call: Call, request: web.Request) -> web.StreamResponse:
        name = f"{call['Action']}Response"
        body = f'<{name} xmlns="{NAMESPACE}"><requestId>r</requestId>{inner}</{name}>'
        return web.Response(text=body, content_type="text/xml", headers=headers)

    return answer


def says(answer_: object) -> Answer:
    """For the services that speak JSON."""

    async def answer(call: Call, request: web.Request) -> web.StreamResponse:
        return web.json_response(answer_)

    return answer


def fails(code: str, message: str = "It is so.", status: int = 400, **headers: str) -> Answer:
    async def answer(call: Call, request: web.Request) -> web.StreamResponse:
        inner = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        body = f"<Response><Errors>{inner}</Errors><RequestID>r</RequestID></Response>"
        return web.Response(text=body, content_type="text/xml", status=status, headers=headers)

    return answer


async def loses(call: Call, request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@pytest.fixture
def hangs(cloud: Cloud) -> Answer:
    async def answer(call: Call, request: web.Request) -> web.StreamResponse:
        await cloud.ended.wait()
        return web.Response()

    return answer


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nobody's own configuration; returns the file for credentials."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                 "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path / "credentials"  # type: ignore[return-value]


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    cloud = Cloud()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", cloud.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    cloud.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield cloud
    cloud.ended.set()
    await runner.cleanup()


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Api]:
    options = {"credentials": CREDENTIALS, "luck": lambda: 0.0, "region": "us-east-1", **options}
    async with Api.open(endpoint_url=url, **options) as api:
        yield api


@pytest.fixture
async def api(cloud: Cloud) -> AsyncIterator[Api]:
    async with opened(cloud.url) as api:
        yield api


# --- what passes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [
    fails("RequestLimitExceeded", status=503), fails("Throttling"), fails("InternalError", status=500),
    fails("ServiceUnavailable", status=503), fails("Unavailable", status=503), loses,
], ids=["limit", "throttling", "500", "503", "unavailable", "lost"])  # fmt: skip
async def test_a_read_is_asked_again(cloud: Cloud, api: Api, trouble: Answer) -> None:
    cloud.will(trouble, trouble, ok("<vpcSet><item><vpcId>vpc-1</vpcId></item></vpcSet>"))
    answer = await api.call("describe_vpcs")
    assert [vpc["VpcId"] for vpc in answer["Vpcs"]] == ["vpc-1"]
    assert cloud.actions == ["DescribeVpcs"] * 3


VPC = (
    f'<DescribeVpcsResponse xmlns="{NAMESPACE}"><requestId>r</requestId><vpcSet><item/></vpcSet></DescribeVpcsResponse>'
)
PAGE = "<html><body>The proxy has a page for you.</body></html>"


def bare(body: str | bytes, status: int = 200, kind: str = "text/xml") -> Answer:
    async def answer(call: Call, request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, content_type=kind)

    return answer


async def ends_halfway(call: Call, request: web.Request) -> web.StreamResponse:
    """The length of the whole, and half of it."""
    response = web.StreamResponse(headers={"Content-Length": str(len(VPC)), "Content-Type": "text/xml"})
    await response.prepare(request)
    await response.write(VPC[: len(VPC) // 2].encode())
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.mark.parametrize("lost", [
    ends_halfway, bare(VPC[: len(VPC) // 2]), bare(VPC[:-1]), bare(""), bare(PAGE), bare(PAGE, kind="text/html"),
    bare("no XML"), bare(VPC.replace("Vpcs", "Subnets")), bare(VPC.encode()[:-30] + b"\xff\xfe" + VPC.encode()[-30:]),
    bare(PAGE, status=403), bare("", status=400), bare("<Response><Errors><Err", status=400),
], ids=["half of the length", "half", "last byte", "nothing", "page", "page as html", "text", "another action's",
        "no text", "page that forbids", "error without a word", "half an error"])  # fmt: skip
async def test_whatever_is_no_answer_of_the_action_counts_as_lost(cloud: Cloud, api: Api, lost: Answer) -> None:
    cloud.will(lost, ok("<vpcSet><item><vpcId>vpc-1</vpcId></item></vpcSet>"))
    answer = await api.call("describe_vpcs")
    assert [vpc["VpcId"] for vpc in answer["Vpcs"]] == ["vpc-1"]
    cloud.answers = [lost]
    with pytest.raises(CallRefused, match="whether it was done is not known") as caught:
        await api.call("create_vpc", CidrBlock="10.0.0.0/16")
    assert is_lost(caught.value)
    assert cloud.actions == ["DescribeVpcs", "DescribeVpcs", "CreateVpc"]


async def test_invalid_date_is_a_lost_answer(cloud: Cloud, api: Api) -> None:
    instance = "<instancesSet><item><launchTime>2026-02-31T1</launchTime></item></instancesSet>"
    cloud.will(ok(f"<reservationSet><item>{instance}</item></reservationSet>"), ok())
    await api.call("describe_instances")
    assert len(cloud.calls) == 2


@pytest.mark.parametrize("lost", [
    '{"Parameters": [{"Name": "a", "Val', '{"Parameters": [', "{}", "", "[]", "null", "1", '{"Other": 1}', PAGE
])  # fmt: skip
async def test_truncated_json_is_a_lost_answer(cloud: Cloud, api: Api, lost: str) -> None:
    whole = {"Parameters": [{"Name": "a", "Value": "ami-1"}], "InvalidParameters": []}
    cloud.will(bare(lost, kind="application/x-amz-json-1.1"), says(whole))
    answer = await api.call("get_parameters", service="ssm", Names=["a"])
    assert answer["Parameters"][0]["Value"] == "ami-1"
    cloud.answers = [bare('{"__type": "Throt', status=400, kind="application/x-amz-json-1.1"), says(whole)]
    await api.call("get_parameters", service="ssm", Names=["a"])
    assert len(cloud.calls) == 4


async def test_a_create_whose_answer_is_lost_is_not_done_again(cloud: Cloud, api: Api) -> None:
    cloud.will(loses, ok())
    with pytest.raises(CallRefused, match="whether it was done is not known"):
        await api.call("create_vpc", CidrBlock="10.0.0.0/16")
    assert len(cloud.calls) == 1


async def test_a_create_with_a_token_is_done_again_with_that_token(cloud: Cloud, api: Api) -> None:
    cloud.will(loses, fails("InternalError", status=500), ok("<fleetId>fleet-1</fleetId>"))
    fleet: dict[str, Any] = {"LaunchTemplateConfigs": [], "TargetCapacitySpecification": {"TotalTargetCapacity": 1}}
    answer = await api.call("create_fleet", ClientToken="one", **fleet)
    assert answer["FleetId"] == "fleet-1"
    assert [call["ClientToken"] for call in cloud.calls] == ["one"] * 3


async def test_refusal_after_a_lost_answer_does_not_claim_that_nothing_was_done(cloud: Cloud, api: Api) -> None:
    cloud.will(loses, fails("AuthFailure", status=401))
    with pytest.raises(CallRefused, match="whether it was done is not known, and now AWS does not accept") as caught:
        await api.call("create_fleet", ClientToken="one", LaunchTemplateConfigs=[],
                       TargetCapacitySpecification={"TotalTargetCapacity": 1})  # fmt: skip
    assert caught.value.retry_after_s is not None


async def test_botocores_own_token_is_none_of_the_callers(cloud: Cloud, api: Api) -> None:
    cloud.will(loses, ok())
    with pytest.raises(CallRefused):
        await api.call("create_fleet", LaunchTemplateConfigs=[], TargetCapacitySpecification={"TotalTargetCapacity": 1})
    assert len(cloud.calls) == 1


async def test_throttled_create_is_retried(cloud: Cloud, api: Api) -> None:
    cloud.will(fails("RequestLimitExceeded", status=503), ok())
    await api.call("create_vpc", CidrBlock="10.0.0.0/16")
    assert len(cloud.calls) == 2


async def test_idempotent_argument_allows_a_retry(cloud: Cloud, api: Api) -> None:
    cloud.will(loses, fails("InvalidGroup.Duplicate"))
    with pytest.raises(CallRefused) as caught:
        await api.call("create_security_group", idempotent=True, GroupName="a", Description="b")
    assert caught.value.code == "InvalidGroup.Duplicate"


async def test_retries_end_with_the_error(cloud: Cloud, api: Api) -> None:
    cloud.will(fails("InternalError", status=500))
    with pytest.raises(CallRefused, match="AWS failed at DescribeVpcs") as caught:
        await api.call("describe_vpcs")
    assert len(cloud.calls) == 6
    assert caught.value.retry_after_s is not None


async def test_no_capacity_is_an_answer(cloud: Cloud, api: Api) -> None:
    cloud.will(fails("InsufficientInstanceCapacity", status=500), ok())
    with pytest.raises(NoCapacity):
        await api.call("run_instances", MinCount=1, MaxCount=1, ClientToken="one")
    assert len(cloud.calls) == 1


async def test_not_found_is_retried_for_new_resources(cloud: Cloud, api: Api) -> None:
    cloud.will(fails("InvalidGroup.NotFound"), fails("InvalidGroup.NotFound"), ok())
    await api.call("delete_security_group", GroupId="sg-1", lag_s=10)
    assert len(cloud.calls) == 3


async def test_not_found_is_raised_for_old_resources(cloud: Cloud, api: Api) -> None:
    cloud.will(fails("InvalidGroup.NotFound"))
    with pytest.raises(ProviderError) as caught:
        await api.call("delete_security_group", GroupId="sg-1")
    assert caught.value.code == "InvalidGroup.NotFound"
    assert len(cloud.calls) == 1


async def test_json_services_are_throttled_alike(cloud: Cloud, api: Api) -> None:
    async def throttled(call: Call, request: web.Request) -> web.StreamResponse:
        return web.json_response({"__type": "ThrottlingException", "message": "Rate exceeded"}, status=400)

    cloud.will(throttled, says({"Parameters": [{"Name": "/a", "Value": "ami-1"}]}))
    answer = await api.call("get_parameters", service="ssm", Names=["/a"])
    assert answer["Parameters"][0]["Value"] == "ami-1"


# --- time -------------------------------------------------------------------------------------------------------------


async def test_a_call_ends_at_its_deadline(cloud: Cloud, api: Api, hangs: Answer) -> None:
    cloud.will(hangs)
    with anyio.fail_after(60), pytest.raises(CallRefused, match="did not answer DescribeVpcs") as caught:
        await api.call("describe_vpcs", timeout_s=0.1)
    assert caught.value.code == "TimedOut"


class Throttled(Api):
    """Whose every try is refused for its pace, at once."""

    def __init__(self, luck: float) -> None:
        self.tried_at: list[float] = []
        options: Any = {"endpoint_url": None, "profile": None, "credentials": CREDENTIALS}
        super().__init__("us-east-1", None, AsyncExitStack(), luck=lambda: luck, **options)

    async def _try(self, call: api_module._Call) -> Failure:
        await self._wait_for_token(call)
        self.tried_at.append(anyio.current_time())
        call.tries, call.action = call.tries + 1, "DescribeVpcs"
        call.failure = self._failure(call, "RequestLimitExceeded", status=503)
        return call.failure


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})])
@pytest.mark.parametrize("luck", [0.0, 0.5, 0.99])
async def test_a_throttled_call_is_tried_until_its_deadline(luck: float) -> None:
    api, started = Throttled(luck), anyio.current_time()
    with pytest.raises(CallRefused, match="too often") as caught:
        await api.call("describe_vpcs", timeout_s=30)
    assert caught.value.code == "RequestLimitExceeded"
    assert anyio.current_time() - started == pytest.approx(30)
    pauses = [b - a for a, b in pairwise(api.tried_at)]
    assert all(pause >= 0.05 - 1e-9 for pause in pauses)  # as slow as EC2 fills its bucket, though luck says at once
    assert max(pauses) <= 10
    assert 4 <= len(pauses) <= 600


async def test_an_unanswered_try_is_told_whatever_was_before_it(cloud: Cloud, api: Api, hangs: Answer) -> None:
    cloud.will(ok(), fails("RequestLimitExceeded", status=503), hangs)
    await api.call("describe_vpcs")
    with pytest.raises(CallRefused, match="whether it was done is not known") as caught:
        await api.call("create_vpc", CidrBlock="10.0.0.0/16", timeout_s=5)
    assert caught.value.code == "TimedOut"


async def test_cancelling_leaves_an_api_that_works(cloud: Cloud, api: Api, hangs: Answer) -> None:
    cloud.will(hangs, ok("<vpcSet/>"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(api.call, "describe_vpcs")
        await cloud.arrived.wait()
        tasks.cancel_scope.cancel()
    assert (await api.call("describe_vpcs"))["Vpcs"] == []


async def test_cancellation_closes_the_api(cloud: Cloud) -> None:
    cloud.will(ok("<vpcSet/>"))
    with anyio.CancelScope() as scope:
        async with opened(cloud.url) as api:
            await api.call("describe_vpcs")
            scope.cancel()
            await anyio.sleep_forever()
    gc.collect()  # a session that nobody closed would say so, and warnings are errors


async def test_tasks_share_one_api(cloud: Cloud, api: Api) -> None:
    cloud.will(ok("<vpcSet/>"))
    async with anyio.create_task_group() as tasks:
        for _ in range(90):
            tasks.start_soon(api.call, "describe_vpcs")
    assert len(cloud.calls) == 90


async def test_cancelled_wait_returns_its_token(cloud: Cloud, api: Api) -> None:
    cloud.will(ok("<instancesSet/>"))
    slow = api._buckets["RunInstances"] = Bucket(1, 0.01)
    await api.call("run_instances", MinCount=1, MaxCount=1)
    for _ in range(3):
        with pytest.raises(CallRefused):
            await api.call("run_instances", MinCount=1, MaxCount=1, timeout_s=0.1)
    assert len(cloud.calls) == 1
    assert slow.take(anyio.current_time()) <= 100


async def test_pages_are_read_to_the_last(cloud: Cloud, api: Api) -> None:
    def page(vpc: str, token: str) -> Answer:
        return ok(f"<vpcSet><item><vpcId>{vpc}</vpcId></item></vpcSet><nextToken>{token}</nextToken>")

    cloud.will(page("vpc-1", "two"), page("vpc-2", "three"), page("vpc-3", ""))
    vpcs = await api.pages("describe_vpcs", "Vpcs", MaxResults=5)
    assert [vpc["VpcId"] for vpc in vpcs] == ["vpc-1", "vpc-2", "vpc-3"]
    assert [call.get("NextToken") for call in cloud.calls] == [None, "two", "three"]


# --- who one is -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken"])
async def test_refused_credentials_are_told_and_not_repeated(cloud: Cloud, api: Api, code: str) -> None:
    cloud.will(fails(code, f"The key {CREDENTIALS.key_id} with {CREDENTIALS.secret} and {CREDENTIALS.token}", 401))
    with pytest.raises(NotAuthorized) as caught:
        await api.call("describe_vpcs")
    assert caught.value.code == code
    for secret in (CREDENTIALS.key_id, CREDENTIALS.secret, CREDENTIALS.token):
        assert secret is not None
        assert secret not in str(caught.value)
    assert CREDENTIALS.secret not in repr(CREDENTIALS)
    assert len(cloud.calls) == 1


async def test_no_credentials_at_all(cloud: Cloud) -> None:
    cloud.will(ok())
    async with opened(cloud.url, credentials=None) as api:
        with pytest.raises(NotAuthorized, match="aws configure"):
            await api.call("describe_vpcs")
    assert not cloud.calls


async def test_half_of_the_credentials(cloud: Cloud, environment: Path) -> None:
    environment.write_text("[default]\naws_access_key_id = AKIAONE\n")
    async with opened(cloud.url, credentials=None) as api:
        with pytest.raises(NotAuthorized, match="incomplete"):
            await api.call("describe_vpcs")


async def test_a_profile_that_there_is_not() -> None:
    with pytest.raises(NotAuthorized, match="list-profiles"):
        async with Api.open(profile="nobody", region="us-east-1"):
            pass


def keys(key_id: str) -> str:
    return f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = secret\n"


async def test_credentials_that_expire_are_read_anew_once(cloud: Cloud, environment: Path) -> None:
    environment.write_text(keys("AKIAONE"))

    async def renewed(call: Call, request: web.Request) -> web.StreamResponse:
        environment.write_text(keys("AKIATWO"))
        return await fails("ExpiredToken")(call, request)

    cloud.will(ok("<vpcSet/>"), renewed, ok("<vpcSet/>"))
    async with opened(cloud.url, credentials=None) as api:
        await api.call("describe_vpcs")
        await api.call("create_vpc", CidrBlock="10.0.0.0/16")
    assert [call.key_id for call in cloud.calls] == ["AKIAONE", "AKIAONE", "AKIATWO"]


async def test_calls_that_expire_together_read_anew_together(
    cloud: Cloud, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.write_text(keys("AKIAONE"))
    sessions: list[object] = []

    async def by_key(call: Call, request: web.Request) -> web.StreamResponse:
        old = call.key_id == "AKIAONE"
        environment.write_text(keys("AKIATWO"))
        return await (fails("ExpiredToken") if old else ok("<vpcSet/>"))(call, request)

    cloud.will(by_key)
    made = api_module.new_session
    monkeypatch.setattr(api_module, "new_session", lambda profile: sessions.append(profile) or made(profile))
    async with opened(cloud.url, credentials=None) as api, anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(api.call, "describe_vpcs")
    assert len(sessions) == 2
    assert [call.key_id for call in cloud.calls].count("AKIATWO") == 5


async def test_credentials_that_stay_expired_are_told(cloud: Cloud, environment: Path) -> None:
    environment.write_text(keys("AKIAONE"))
    cloud.will(fails("RequestExpired"))
    async with opened(cloud.url, credentials=None) as api:
        with pytest.raises(NotAuthorized, match="have expired"):
            await api.call("describe_vpcs")
    assert len(cloud.calls) == 2


@pytest.mark.parametrize(("hours", "said"), [(2, "s behind AWS's"), (-2, "s ahead of AWS's")])
async def test_a_wrong_clock_is_told(cloud: Cloud, api: Api, hours: int, said: str) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=hours), usegmt=True)
    cloud.will(fails("RequestExpired", Date=date))
    with pytest.raises(NotAuthorized, match=said):
        await api.call("describe_vpcs")


async def test_authorization_failure_is_decoded(cloud: Cloud, api: Api) -> None:
    told = {"explicitDeny": False, "context": {"action": "iam:PassRole", "resource": "arn:aws:iam::1:role/r",
                                               "principal": {"arn": "arn:aws:iam::1:user/bob"}}}  # fmt: skip
    decoded = f"<DecodedMessage>{escape(json.dumps(told))}</DecodedMessage>"

    async def sts(call: Call, request: web.Request) -> web.StreamResponse:
        assert call["EncodedMessage"] == "Zm9vYmFy"
        inner = f"<DecodeAuthorizationMessageResult>{decoded}</DecodeAuthorizationMessageResult>"
        body = f"<DecodeAuthorizationMessageResponse>{inner}</DecodeAuthorizationMessageResponse>"
        return web.Response(text=body, content_type="text/xml")

    encoded = "You are not authorized. Encoded authorization failure message: Zm9vYmFy"
    cloud.will(fails("UnauthorizedOperation", encoded, 403), sts)
    with pytest.raises(NotAuthorized, match=r"iam:PassRole is not allowed on arn:aws:iam::1:role/r.*user/bob"):
        await api.call("run_instances", MinCount=1, MaxCount=1)


async def test_undecodable_authorization_failure_names_the_call(cloud: Cloud, api: Api) -> None:
    encoded = "You are not authorized. Encoded authorization failure message: Zm9vYmFy"
    cloud.will(fails("UnauthorizedOperation", encoded, 403), fails("AccessDenied", status=403))
    with pytest.raises(NotAuthorized, match=r"ec2:RunInstances is not allowed"):
        await api.call("run_instances", MinCount=1, MaxCount=1)
    assert cloud.actions == ["RunInstances", "DecodeAuthorizationMessage"]


async def test_a_quota_is_told_by_the_type_that_was_asked_for(cloud: Cloud, api: Api) -> None:
    cloud.will(fails("MaxSpotInstanceCountExceeded"))
    with pytest.raises(QuotaExceeded, match="L-3819A6DF"):
        await api.call("run_instances", MinCount=1, MaxCount=1, InstanceType="g5.xlarge",
                       InstanceMarketOptions={"MarketType": "spot"})  # fmt: skip


async def test_wrong_parameters_are_a_bad_request(api: Api) -> None:
    with pytest.raises(BadRequest, match="InstanceIds"):
        await api.call("describe_instances", InstanceIds="i-1")


# --- where ------------------------------------------------------------------------------------------------------------


async def test_unreachable_endpoint_is_an_error() -> None:
    async with opened("http://127.0.0.1:9") as api:  # discard: nobody listens
        with pytest.raises(Unreachable, match=r"nothing answers at endpoint_url=http://127\.0\.0\.1:9"):
            await api.call("describe_vpcs")


@pytest.mark.parametrize(
    ("given", "environment_", "configured", "chosen"),
    [
        ("a", {"AWS_REGION": "b", "AWS_DEFAULT_REGION": "c"}, "d", "a"),
        (None, {"AWS_REGION": "b", "AWS_DEFAULT_REGION": "c"}, "d", "b"),
        (None, {"AWS_DEFAULT_REGION": "c"}, "d", "c"),
        (None, {}, "d", "d"),
    ],
)
def test_the_region_is_the_first_that_is_said(
    given: str | None, environment_: dict[str, str], configured: str, chosen: str
) -> None:
    assert choose_region(given, environment_, configured) == chosen


async def test_a_region_is_never_guessed() -> None:
    with pytest.raises(BadRequest, match="AWS_REGION"):
        async with Api.open():
            pass


async def test_environment_variables_are_stored(
    cloud: Cloud, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the journal: whoever finds the pool's machines later has another environment."""
    environment.with_name("config").write_text("[profile far]\nregion = ap-southeast-2\n")
    monkeypatch.setenv("AWS_PROFILE", "far")
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.url)
    async with Api.open() as api:
        assert (api.region, api.profile, api.endpoint_url) == ("ap-southeast-2", "far", cloud.url)


async def test_the_region_of_the_profile(environment: Path) -> None:
    environment.with_name("config").write_text("[profile far]\nregion = ap-southeast-2\n")
    async with Api.open(profile="far") as api:
        assert api.region == "ap-southeast-2"


# --- the extra --------------------------------------------------------------------------------------------------------


async def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore.session", None)
    with pytest.raises(BadRequest, match=r"pip install 'outrider\[aws\]'"):
        async with Api.open(region="us-east-1"):
            pass


def test_importing_it_imports_no_botocore() -> None:
    heavy = "{'aiobotocore', 'aiohttp', 'boto3', 'botocore', 'cryptography'} & set(sys.modules)"
    code = f"import sys, outrider.providers.aws.api, outrider.providers.aws.network; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True)
