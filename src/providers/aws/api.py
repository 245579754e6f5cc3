"""Calls to AWS's web services: one `Api` per fleet, with its clients, rate limits, retries and errors."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import KW_ONLY, field, replace
from functools import cache
from time import time
from typing import Any, Literal

import anyio

from ...lazy_dataclass import dataclass
from ..cloud.calls import Bucket, Tries, every_page, from_extra, wait_for_token
from ..cloud.http import check_url, date_of
from ..errors import BadRequest, ProviderError
from ..shared.threads import in_thread
from . import errors
from .errors import DENIED, EXPIRED, Failure, translate

Service = Literal["ec2", "pricing", "ssm", "sts"]

CONNECT_S = 5.0
CONNECTIONS = 64
CLOSE_S = 5.0
LAG_PAUSE_S = (0.1, 0.9)  # seconds: the shortest pause for a resource that is not known everywhere yet, and its jitter


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials to use instead of those that botocore finds (environment, configuration, the machine's role)."""

    key_id: str
    secret: str = field(repr=False)
    token: str | None = field(repr=False, default=None)


@dataclass(eq=False)
class Api:
    """One region's services with one set of credentials: ``async with Api.open(region=...) as api``.

    Any number of tasks may use an instance at the same time; they share its connections and rate limits.
    """

    region: str
    _session: Any
    _open: AsyncExitStack  # closes the clients at its exit
    _: KW_ONLY
    endpoint_url: str | None
    profile: str | None
    credentials: Credentials | None
    luck: Callable[[], float]
    _clients: dict[str, Any] = field(init=False, default_factory=dict)
    _opening: anyio.Lock = field(init=False, default_factory=anyio.Lock)
    _buckets: dict[str, Bucket] = field(init=False, default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        credentials: Credentials | None = None,
        luck: Callable[[], float] = random.random,
    ) -> AsyncIterator[Api]:
        """Open an API; nothing is sent to AWS yet. ``luck``: a number in [0, 1), for the jitter of pauses.

        Raises:
            BadRequest: No region is given or configured, the endpoint is not a URL, or aiobotocore is not installed.
            NotAuthorized: The profile does not exist.
        """
        # Read the environment here, because the journal must have these values: a client that takes over the pool may
        # have other values in its environment.
        profile = profile or os.environ.get("AWS_PROFILE")
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL_SSM"):
            if os.environ.get(name, "-").strip() == "":  # botocore would take an empty value for a URL
                raise BadRequest(f"the variable {name} is empty: unset it, or give it the URL of another cloud")
        endpoint_url = endpoint_url or os.environ.get("AWS_ENDPOINT_URL")
        session = await in_thread(new_session, profile)
        if endpoint_url:  # for an invalid URL, botocore would raise a bare ValueError at the first call
            from botocore.utils import is_valid_endpoint_url

            check_url(endpoint_url, is_valid_endpoint_url)
        chosen = choose_region(region, os.environ, session.get_config_variable("region"))
        clients = AsyncExitStack()
        try:
            yield cls(
                chosen,
                session,
                clients,
                endpoint_url=endpoint_url,
                profile=profile,
                credentials=credentials,
                luck=luck,
            )
        finally:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await clients.aclose()

    async def call(
        self,
        operation: str,
        /,
        *,
        service: Service = "ec2",
        timeout_s: float = 30.0,
        idempotent: bool | None = None,
        lag_s: float = 0.0,
        **parameters: Any,
    ) -> dict[str, Any]:
        """Call an operation such as ``"describe_instances"`` with AWS's own parameters and return the answer.

        Transient failures (throttling, failures of AWS, lost answers) are retried for ``timeout_s`` seconds in all.
        After a lost answer only idempotent calls are repeated: calls that read, delete or set, and creates with a
        ``ClientToken``; ``idempotent`` overrides this rule. For ``lag_s`` seconds, errors whose code ends in
        ``NotFound`` are retried too, because some parts of AWS may not know a new resource yet.

        Cancellation is safe, but the call may have been carried out.

        Raises:
            ProviderError: A subclass by what can be done about the failure, with AWS's ``code``.
        """
        token = "ClientToken" in parameters
        safe = errors.idempotent(_camel(operation), token=token) if idempotent is None else idempotent
        call = _Call(operation, service, parameters, safe=safe, timeout_s=timeout_s)
        started = anyio.current_time()
        with anyio.move_on_after(timeout_s):
            while True:
                failure = call.failure = await self._try(call)
                if failure is None:
                    return call.answer
                pause_s = await self._pause(call, failure, lasted_s=anyio.current_time() - started, lag_s=lag_s)
                if pause_s is None:
                    raise translate(await self._decoded(failure), unsure=call.unsure)
                await anyio.sleep(pause_s)
        raise translate(call.failure or self._failure(call, "TimedOut"))

    async def pages(
        self, operation: str, key: str, /, *, service: Service = "ec2", timeout_s: float = 30.0, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Call an operation until there is no ``NextToken``; return all items under ``key``. ``timeout_s`` is per page.

        Raises:
            ProviderError: As in `call`.
        """

        async def page(token: str) -> tuple[list[dict[str, Any]], str]:
            arguments = {**parameters, **page_of(token)}
            answer = await self.call(operation, service=service, timeout_s=timeout_s, **arguments)
            return answer.get(key) or [], answer.get("NextToken") or ""

        return await every_page(page)

    async def _client(self, service: Service) -> Any:
        """Return the client for a service. It is closed with this Api."""
        async with self._opening:
            if service not in self._clients:
                # Reading EC2's model takes 0.25 s, which would block the event loop.
                loader = self._session.get_component("data_loader")
                await in_thread(loader.load_service_model, service, "service-2")
                client = await self._open.enter_async_context(self._new_client(service))
                client.meta.events.register("before-parse", errors.check_root)
                self._clients[service] = client
            return self._clients[service]

    # --- one try ------------------------------------------------------------------------------------------------------

    async def _try(self, call: _Call) -> Failure | None:
        """Try once. None: success, and ``call.answer`` is set."""
        from botocore.exceptions import BotoCoreError, ClientError

        call.tries += 1
        call.session = self._session
        try:
            client = await self._client(call.service)
        except BotoCoreError as error:
            return self._failure(call, type(error).__name__, str(error))
        call.action = client.meta.method_to_api_mapping[call.operation]
        await self._wait_for_token(call)
        call.failure = None  # if this try exceeds the time, its outcome is unknown
        try:
            with anyio.move_on_after(call.try_s):
                answer = await getattr(client, call.operation)(**call.parameters)
                errors.check_contents(client.meta.service_model.operation_model(call.action), answer)
                call.answer = answer
                return None
            return self._failure(call, "TimedOut")
        except ClientError as error:
            return self._answered(call, error.response)
        except Exception as error:  # noqa: BLE001  parsers may raise any exception for malformed answers
            return self._failure(call, errors.lost_code(error), str(error))

    async def _wait_for_token(self, call: _Call) -> None:
        if call.service == "ec2":  # other services' limits are far above a pool's needs
            await wait_for_token(self._bucket(call))

    def _bucket(self, call: _Call) -> Bucket:
        name, bucket = errors.bucket_for(call.action, filtered=bool(call.parameters))
        return self._buckets.setdefault(name, bucket)

    async def _pause(self, call: _Call, failure: Failure, *, lasted_s: float, lag_s: float) -> float | None:
        """Return the seconds to wait before the next try; None: do not retry."""
        if failure.code in EXPIRED and not call.renewed and self.credentials is None:
            call.renewed = True
            await self._renew(call.session)
            return 0.0
        if failure.code.endswith("NotFound") and lasted_s < lag_s:
            return LAG_PAUSE_S[0] + self.luck() * LAG_PAUSE_S[1]
        if failure.trouble == "throttled" and call.service == "ec2":
            self._bucket(call).throttled(anyio.current_time())
        # "reads" here includes calls such as Delete and Modify, which have the same effect if they are repeated
        reads = errors.idempotent(failure.operation, token=False)
        return call.pause_s(failure.trouble, reads=reads, luck=self.luck())

    # --- failures -----------------------------------------------------------------------------------------------------

    def _failure(self, call: _Call, code: str, message: str = "", status: int = 0, skew_s: float = 0.0) -> Failure:
        market = call.parameters.get("InstanceMarketOptions") or {}
        return Failure(
            code=code,
            message=message,
            operation=call.action or _camel(call.operation),
            service=call.service,
            region=self.region,
            status=status,
            skew_s=skew_s,
            instance_type=str(call.parameters.get("InstanceType", "")),
            spot=market.get("MarketType") == "spot",
            endpoint_url=self.endpoint_url or "",
            regions=_regions(self._session) if code in errors.UNREACHED else (),
        )

    def _answered(self, call: _Call, response: Mapping[str, Any]) -> Failure:
        error, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
        code, message = str(error.get("Code", "")), str(error.get("Message", ""))
        if not code.strip("0123456789"):  # the answer had no code, so botocore used the status
            code = code if errors.trouble(code, int(code or 0)) else errors.UNREADABLE
        now, theirs = time(), date_of(metadata.get("HTTPHeaders", {}).get("date", ""))
        skew_s = 0.0 if theirs is None else now - theirs
        return self._failure(call, code, message, int(metadata.get("HTTPStatusCode", 0)), skew_s)

    async def _decoded(self, failure: Failure) -> Failure:
        """Decode EC2's description of the missing permission, if the account may call the decoder."""
        _, mark, encoded = failure.message.partition("Encoded authorization failure message:")
        if failure.code not in DENIED or not mark:
            return failure
        try:
            answer = await self.call(
                "decode_authorization_message", service="sts", timeout_s=5, EncodedMessage=encoded.strip()
            )
            decoded = json.loads(answer["DecodedMessage"])
            context = decoded["context"]
            action, resource = context["action"], context["resource"]
            why = " with an explicit deny" if decoded.get("explicitDeny") else ""
            who = context.get("principal", {}).get("arn", "")
        except (ProviderError, LookupError, TypeError, ValueError):
            return failure
        message = f"User: {who} is not authorized to perform: {action} on resource: {resource}{why}"
        return replace(failure, message=message)

    # --- clients ------------------------------------------------------------------------------------------------------

    def _new_client(self, service: str) -> Any:
        from aiobotocore.config import AioConfig

        credentials = self.credentials
        keys = (
            {
                "aws_access_key_id": credentials.key_id,
                "aws_secret_access_key": credentials.secret,
                "aws_session_token": credentials.token,
            }
            if credentials is not None
            else {}
        )
        config = AioConfig(
            connect_timeout=CONNECT_S,
            read_timeout=3600,  # each call has its own deadline
            max_pool_connections=CONNECTIONS,
            # `call` itself retries, as it knows which calls are idempotent.
            retries={"mode": "standard", "total_max_attempts": 1},
            user_agent_extra="outrider",
        )
        # Few regions serve prices, and they serve those of all regions: "Price List Query API endpoints".
        prices_at = "cn-northwest-1" if self.region.startswith("cn-") else "us-east-1"
        region = prices_at if service == "pricing" else self.region
        return self._session.create_client(
            service, region_name=region, endpoint_url=self.endpoint_url, config=config, **keys
        )

    async def _renew(self, session: Any) -> None:
        """Read the credentials again, in case the files have changed. Clients in use stay open."""
        async with self._opening:
            if self._session is session:  # otherwise, another call has already renewed the session
                self._session = await in_thread(new_session, self.profile)
                self._clients.clear()


@dataclass(slots=True)
class _Call(Tries):
    operation: str
    service: Service
    parameters: Mapping[str, Any]
    action: str = ""  # AWS's name of the operation
    session: Any = None
    failure: Failure | None = None
    answer: dict[str, Any] = field(default_factory=dict)


def page_of(token: str) -> dict[str, Any]:
    """Return the parameter for the page of a ``NextToken``; empty for the first page."""
    return {"NextToken": token} if token else {}


def _camel(operation: str) -> str:
    """Return an operation's name in camel case: ``describe_instances`` -> ``DescribeInstances``.

    Abbreviations in names become wrong (``Ssm`` for ``SSM``), which does not matter for error texts.
    """
    return "".join(word.capitalize() for word in operation.split("_"))


# --- sessions of botocore, without requests ---------------------------------------------------------------------------


def choose_region(option: str | None, environment: Mapping[str, str], configured: str | None) -> str:
    """Choose the region: the parameter, else ``AWS_REGION``, ``AWS_DEFAULT_REGION``, or the profile's region.

    Raises:
        BadRequest: None of these is set.
    """
    chosen = option or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or configured
    if not chosen:
        raise BadRequest("no AWS region is configured: give AWS(region=...), or set AWS_REGION", code="NoRegionError")
    return chosen


def new_session(profile: str | None) -> Any:
    with from_extra("AWS", "aws", "aiobotocore", "aiohttp", "botocore"):
        from aiobotocore.session import AioSession
        from botocore.exceptions import BotoCoreError
    session = AioSession(profile=profile)
    try:
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    except BotoCoreError as error:
        raise translate(Failure(code=type(error).__name__, message=str(error))) from None
    return session


@cache
def _loader(data_path: str | None) -> Any:
    """Return botocore's models of the services, read once for all sessions of this process."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def _regions(session: Any) -> tuple[str, ...]:
    partitions = session.get_component("data_loader").load_data("endpoints")["partitions"]
    return tuple(region for partition in partitions for region in partition["regions"])
