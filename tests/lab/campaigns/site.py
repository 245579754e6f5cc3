"""What a life has: hosts, a cloud that has them as machines, a proxy before it, and clients in their processes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lives import clients, collection
from netlab import Lab

from outrider.testing import EC2, Behaviour

from .proxy import Proxy
from .ward import Ward
from .wish import Wish

if TYPE_CHECKING:
    from outrider.testing.clouds.aws.instances import Instance

LAB = Path(__file__).parents[1]
REPOSITORY = LAB.parents[1]
LIVING = ("pending", "running", "stopping", "stopped", "shutting-down")
Client = clients.Client[Wish]


class Site:
    """Use `opened`."""

    def __init__(self, cloud: EC2, hypervisor: Ward, proxy: Proxy, folder: Path) -> None:
        self.cloud, self.hypervisor, self.proxy, self.folder = cloud, hypervisor, proxy, folder
        self.state = folder / "state"
        self.clients: list[Client] = []

    def env(self, *, key: str) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": self.proxy.url,
            "AWS_REGION": self.cloud.region,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "COLUMNS": "250",
            "OUTRIDER_STATE": str(self.state),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": f"{LAB}:{REPOSITORY / '.shim'}",
        }

    def start(self, wish: Wish, *, before: Sequence[str] = ()) -> Client:
        """``before``: a command that runs it, as ``unshare``."""
        key = f"AKIA{len(self.clients)}"
        log = self.folder / f"{key}.log"
        client = Client("campaigns.client", wish, key=key, env=self.env(key=key), before=before, log=log)
        self.clients.append(client)
        return client

    def gc(self, *options: str, before: Sequence[str] = ()) -> collection.Collected:
        """``outrider gc`` with these options."""
        return collection.gc(*options, env=self.env(key="AKIAGC"), before=before)

    def machines(self, client: Client) -> list[Instance]:
        """Those that it asked for, whatever has become of them and of their tags."""
        tokens = {token for token, (key, _) in self.proxy.asked_for.items() if key == client.key}
        return [each for each in self.cloud.instances() if self.proxy.made.get(each.id) in tokens]

    def running(self, client: Client) -> list[Instance]:
        return [each for each in self.machines(client) if each.state in LIVING]

    def boto(self) -> Any:
        """Somebody else's client of EC2, to close, past the proxy."""
        import boto3  # type: ignore[import-untyped]

        return boto3.client(
            "ec2",
            endpoint_url=self.cloud.endpoint_url,
            region_name=self.cloud.region,
            aws_access_key_id="AKIASTRANGER",
            aws_secret_access_key="any",
        )

    def strangers(self, pool: str, *, owner: str) -> set[str]:
        """A machine and a security group of somebody else that carry such tags; the ids of all that came."""
        before = {each.id for each in self.cloud.left()}
        ec2 = self.boto()
        tags = [{"Key": "outrider:pool", "Value": pool}, {"Key": "outrider:owner", "Value": owner}]
        image = ec2.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"][0]["ImageId"]
        ec2.create_security_group(
            GroupName=f"theirs-{pool}",
            Description="theirs",
            VpcId=ec2.describe_vpcs()["Vpcs"][0]["VpcId"],
            TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
        )
        ec2.run_instances(
            ImageId=image,
            InstanceType="m7i.large",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        ec2.close()
        return {each.id for each in self.cloud.left()} - before


@contextmanager
def opened(seed: str, behaviour: Mapping[str, Any]) -> Iterator[Site]:
    """``behaviour``: of `outrider.testing.Behaviour`. No process and no host is left when it returns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-life-")))
        lab = stack.enter_context(Lab(visible=(REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))))
        hypervisor = Ward(lab)
        stack.callback(hypervisor.close)
        known = Behaviour(vpc_cidr=str(lab.network.subnet), **behaviour)
        cloud = stack.enter_context(EC2(known, hypervisor=hypervisor))
        site = Site(cloud, hypervisor, stack.enter_context(Proxy(cloud.endpoint_url, seed=seed)), folder)
        stack.callback(_ended, site)
        yield site


def _ended(site: Site) -> None:
    for client in site.clients:
        client.kill()
        client.end(10.0)
