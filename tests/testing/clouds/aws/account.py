"""Somebody who uses a test cloud."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.config import Config

from outrider.testing import EC2

if TYPE_CHECKING:
    import boto3

Client = Any  # botocore makes them at run time
UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"


class Account:
    """A cloud, and somebody who uses it."""

    def __init__(self, cloud: EC2, session: boto3.session.Session) -> None:
        self.cloud, self._session = cloud, session
        self._clients: list[Client] = []
        self._images: dict[str, str] = {}
        self.ec2 = self.client("ec2")

    def client(self, service: str, region: str = "us-east-1", key: str = "AKIATEST", **config: Any) -> Client:
        client = self._session.client(
            service,
            endpoint_url=self.cloud.endpoint_url,
            region_name=region,
            aws_access_key_id=key,
            aws_secret_access_key="secret",
            config=Config(**{"retries": {"total_max_attempts": 1}, "read_timeout": 60, **config}),
        )
        self._clients.append(client)
        return client

    def image(self, architecture: str = "amd64") -> str:
        if architecture not in self._images:
            answer = self.client("ssm").get_parameter(Name=UBUNTU.format(architecture))
            self._images[architecture] = answer["Parameter"]["Value"]
        return self._images[architecture]

    def template(self, name: str = "template", **data: Any) -> str:
        said = {"ImageId": self.image(), "InstanceType": "m7i.large", **data}
        made = self.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=said)
        return made["LaunchTemplate"]["LaunchTemplateId"]

    def run(self, count: int = 1, **more: Any) -> list[str]:
        said = {"ImageId": self.image(), "InstanceType": "m7i.large", "MinCount": count, "MaxCount": count}
        return [each["InstanceId"] for each in self.ec2.run_instances(**said | more)["Instances"]]

    def run_spot(self, count: int = 1, **more: Any) -> list[str]:
        return self.run(count, InstanceMarketOptions={"MarketType": "spot"}, **more)

    def fleet(self, count: int, *overrides: dict[str, Any], market: str = "spot", **more: Any) -> dict[str, Any]:
        template = more.pop("template", None) or self.template(f"template-{self.cloud.calls['CreateLaunchTemplate']}")
        config = {
            "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": "$Latest"},
            "Overrides": list(overrides),
        }
        said = {
            "Type": "instant",
            "LaunchTemplateConfigs": [config],
            "TargetCapacitySpecification": {"TotalTargetCapacity": count, "DefaultTargetCapacityType": market},
        }
        return self.ec2.create_fleet(**said | more)

    def described(self, *ids: str, **more: Any) -> list[dict[str, Any]]:
        answer = self.ec2.describe_instances(InstanceIds=list(ids), **more)
        return [each for reservation in answer["Reservations"] for each in reservation["Instances"]]

    def states(self, *ids: str) -> list[str]:
        return [each["State"]["Name"] for each in self.described(*ids)]

    def close(self) -> None:
        for client in self._clients:
            client.close()


def taken(response: dict[str, Any]) -> int:
    """Machines that a fleet got."""
    return sum(len(each["InstanceIds"]) for each in response["Instances"])
