"""The part of the cloud that moto implements: networks, security groups, key pairs, roles, S3 and others.

moto's backends belong to this process, so there is one cloud at a time, which starts with empty backends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from ....lazy_dataclass import dataclass
from .behaviour import VPC_CIDR
from .protocol import EC2Error

if TYPE_CHECKING:
    from moto.ec2.models import EC2Backend

ACCOUNT = "123456789012"
_taken = threading.Lock()


@dataclass(frozen=True, slots=True)
class Subnet:
    id: str
    zone: str
    vpc: str
    cidr: str
    public: bool
    default: bool


class Moto:
    """moto with empty backends during a `with` block.

    Raises:
        ImportError: moto's server is not installed.
        RuntimeError: This process already has a cloud.
    """

    def __init__(self, seed: int = 0, *, default_vpc: str | None = VPC_CIDR) -> None:
        """``default_vpc``: the CIDR of the default VPC; None: there is no default VPC."""
        self._seed, self._default_vpc = seed, default_vpc
        self._regions: dict[str, EC2Backend] = {}
        self.lock = threading.RLock()  # moto's EC2 is not thread-safe

    def __enter__(self) -> Moto:
        try:
            from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        except ImportError as error:
            raise ImportError(
                f"The test cloud needs moto's server, and {error.name} is missing: pip install 'outrider[testing]'."
            ) from error
        if not _taken.acquire(blocking=False):
            raise RuntimeError("This process has a test cloud already: leave its block before the next one begins.")
        try:
            self._reset()
            self.app: Callable[..., Iterable[bytes]] = DomainDispatcherApplication(create_backend_app)
        except BaseException:  # also on KeyboardInterrupt, so that the next test cloud does not wait for this one
            _taken.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._reset()
        finally:
            _taken.release()

    def _reset(self) -> None:
        from moto.core.base_backend import BackendDict
        from moto.core.model_instances import reset_model_data
        from moto.moto_api._internal import mock_random

        with _without_images():
            BackendDict.reset()
        reset_model_data()
        mock_random.seed(self._seed)
        self._regions.clear()

    def region(self, name: str) -> EC2Backend:
        """Return moto's EC2 backend of a region.

        Raises:
            KeyError: The region does not exist.
        """
        with self.lock:
            if name not in self._regions:
                from moto.ec2.models import ec2_backends

                with _without_images():
                    self._regions[name] = backend = ec2_backends[ACCOUNT][name]
                if self._default_vpc != VPC_CIDR:
                    _remove_vpc(backend)
                    if self._default_vpc is not None:
                        _make_vpc(backend, self._default_vpc)
            return self._regions[name]

    def subnets(self, region: str) -> list[Subnet]:
        with self.lock:
            return [_subnet(each) for below in self.region(region).subnets.values() for each in below.values()]

    def subnet(self, region: str, subnet_id: str) -> Subnet:
        for each in self.subnets(region):
            if each.id == subnet_id:
                return each
        raise EC2Error("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")

    def zones(self, region: str) -> list[str]:
        with self.lock:
            return [each.name for each in self.region(region).describe_availability_zones()]

    def groups(self, region: str, ids: Iterable[str], vpc: str) -> tuple[tuple[str, str], ...]:
        """Return (id, name) of each group; without ids, of the VPC's default group.

        Raises:
            EC2Error: A group does not exist, or belongs to another VPC.
        """
        with self.lock:
            backend = self.region(region)
            wanted = list(ids)
            if not wanted:
                default = backend.get_default_security_group(vpc)
                return ((default.id, default.name),) if default else ()
            groups = []
            for each in wanted:
                group = backend.get_security_group_from_id(each)
                if group is None:
                    raise EC2Error("InvalidGroup.NotFound", f"The security group '{each}' does not exist")
                if group.vpc_id != vpc:
                    words = f"Security group {each} and subnet belong to different networks."
                    raise EC2Error("InvalidParameter", words)
                groups.append((group.id, group.name))
            return tuple(groups)

    def tags(self, region: str) -> list[tuple[str, str, str, str]]:
        """Return (id, kind, key, value) of each tag on resources in moto."""
        with self.lock:
            listed = self.region(region).describe_tags()
            return [(tag["resource_id"], tag["resource_type"], tag["key"], tag["value"]) for tag in listed]

    def public_key(self, region: str, name: str) -> str:
        with self.lock:
            pair = self.region(region).key_pairs.get(name)
            if pair is None:
                raise EC2Error("InvalidKeyPair.NotFound", f"The key pair '{name}' does not exist")
            return pair.public_key.strip()

    def check_profile(self, name: str | None, arn: str | None) -> None:
        """Check that an instance profile exists.

        Raises:
            EC2Error: The instance profile does not exist.
        """
        from moto.iam.models import iam_backends

        profiles = iam_backends[ACCOUNT]["aws"].instance_profiles.values()
        if not any(name == each.name or arn == each.arn for each in profiles):
            field = "name" if name else "arn"
            words = f"Value ({name or arn}) for parameter iamInstanceProfile.{field} is invalid."
            raise EC2Error("InvalidParameterValue", f"{words} Invalid IAM Instance Profile {field}")

    def left(self, region: str) -> list[tuple[str, str, dict[str, str]]]:
        """Return (kind, id, tags) of groups, key pairs and addresses that were created through the API."""
        with self.lock:
            backend = self.region(region)
            groups = [each for below in backend.groups.values() for each in below.values() if each.name != "default"]
            things: list[tuple[str, str, Any]] = [("security group", each.id, each) for each in groups]
            things += [("key pair", each.key_name, each) for each in backend.key_pairs.values()]
            things += [("address", str(each.allocation_id), each) for each in backend.addresses]
            return [(kind, name, {tag["key"]: tag["value"] for tag in it.get_tags()}) for kind, name, it in things]


@contextmanager
def _without_images() -> Iterator[None]:
    """Prevent moto from loading 1300 images per region, which takes 0.5 s; this cloud has its own images."""
    switch = "MOTO_EC2_LOAD_DEFAULT_AMIS"
    before = os.environ.get(switch)
    os.environ[switch] = "false"
    try:
        yield
    finally:
        del os.environ[switch]
        if before is not None:
            os.environ[switch] = before


def _subnet(subnet: Any) -> Subnet:
    public = str(subnet.map_public_ip_on_launch).lower() == "true"
    default = str(subnet.default_for_az).lower() == "true"
    return Subnet(subnet.id, subnet.availability_zone, subnet.vpc_id, subnet.cidr_block, public, default)


def _remove_vpc(backend: EC2Backend) -> None:
    vpc = backend.default_vpc.id
    for below in list(backend.subnets.values()):
        for subnet in list(below):
            backend.delete_subnet(subnet)
    backend.delete_vpc(vpc)


def _make_vpc(backend: EC2Backend, cidr: str) -> None:
    """Create a default VPC with these addresses, and a subnet in each zone."""
    backend.default_vpc = backend.create_vpc(cidr, is_default=True)
    zones = [zone.name for zone in backend.describe_availability_zones()]
    subnets = ip_network(cidr).subnets(prefixlen_diff=(len(zones) - 1).bit_length())
    for zone, subnet in zip(zones, subnets, strict=False):
        backend.create_subnet(backend.default_vpc.id, str(subnet), availability_zone=zone)
