"""What goes wrong on the wire and at the front: throttling, slow and broken answers, missing rights, old keys."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from outrider.testing import aws_faults as faults

from .account import Account

Open = Callable[..., Account]


def code(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    answer = error.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def test_throttled_as_often_as_said(account: Account):
    account.cloud.faults.add(faults.Throttle("DescribeInstances", times=2))
    for _ in range(2):
        with pytest.raises(ClientError) as refused:
            account.described()
        assert code(refused) == ("RequestLimitExceeded", 503)
    assert account.described() == []


def test_some_calls_are_spared_first(account: Account):
    account.cloud.faults.add(faults.Throttle("DescribeInstances", after=1))
    assert account.described() == []
    with pytest.raises(ClientError):
        account.described()
    assert account.described() == []


def test_buckets_run_dry_and_fill_again(open_account: Open):
    account = open_account(throttled=True, default_vpc=True)
    said = {"ImageId": account.image(), "InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1}
    for _ in range(5):
        account.ec2.run_instances(**said)
    with pytest.raises(ClientError, match="RequestLimitExceeded"):
        for _ in range(200):  # two a second come back meanwhile
            account.ec2.run_instances(**said)
    account.ec2.describe_instances(MaxResults=5)  # each action has a bucket of its own
    account.cloud.advance(10)
    account.ec2.run_instances(**said)


@pytest.mark.parametrize(("said", "status"), [("InternalError", 500), ("Unavailable", 503)])
def test_broken_answers(account: Account, said: str, status: int):
    account.cloud.faults.add(faults.CallRefused("RunInstances", code=said, status=status))
    with pytest.raises(ClientError) as refused:
        account.run()
    assert code(refused) == (said, status)
    assert account.cloud.instances() == []


def test_a_slow_call_has_taken_effect_before_its_answer(account: Account):
    image = account.image()
    account.cloud.faults.add(faults.Slow("RunInstances", seconds=3600))
    ids: list[str] = []
    caller = threading.Thread(target=lambda: ids.extend(account.run(ImageId=image)))
    caller.start()
    while not account.cloud.instances():
        time.sleep(0.001)
    assert caller.is_alive()
    account.cloud.advance(3601)
    caller.join(60)
    assert ids == [each.id for each in account.cloud.instances()]


def test_a_client_that_waits_no_longer(account: Account):
    account.cloud.faults.add(faults.Slow("DescribeInstances", seconds=3600))
    impatient = account.client("ec2", read_timeout=0.05)
    with pytest.raises(ReadTimeoutError):
        impatient.describe_instances()


def test_half_a_request_is_none(account: Account):
    image = account.image()
    body = f"Action=RunInstances&ImageId={image}&InstanceType=t3.micro&MinCount=1&MaxCount=1"
    head = (
        "POST / HTTP/1.1\r\nHost: ec2\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        "Authorization: AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/ec2/aws4_request\r\n"
    )
    port = int(account.cloud.endpoint_url.rpartition(":")[2])

    def sent(length: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(f"{head}Content-Length: {length}\r\n\r\n{body}".encode())
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(12)

    assert sent(len(body) + 1) == b""
    assert account.cloud.instances() == []
    assert sent(len(body)) == b"HTTP/1.1 200"
    assert len(account.cloud.instances()) == 1


def test_a_right_that_is_missing_is_named(account: Account):
    account.cloud.faults.add(faults.Unauthorized("CreateLaunchTemplate"), faults.Unauthorized("GetParameter"))
    with pytest.raises(ClientError) as refused:
        account.template(ImageId="ami-0123456789abcdef0")
    assert code(refused) == ("AccessDeniedException", 400)
    account.cloud.faults.clear(faults.Unauthorized("GetParameter"))
    with pytest.raises(ClientError, match="not authorized to perform: ec2:CreateLaunchTemplate") as refused:
        account.template()
    assert code(refused) == ("UnauthorizedOperation", 403)


def test_credentials_that_expire_and_new_ones(account: Account):
    account.cloud.faults.add(faults.ExpiredToken(key="AKIATEST"))
    with pytest.raises(ClientError) as refused:
        account.described()
    assert code(refused) == ("RequestExpired", 400)
    with pytest.raises(ClientError, match="ExpiredTokenException"):
        account.image()
    with pytest.raises(ClientError, match="ExpiredToken"):
        account.client("sts").get_caller_identity()
    assert account.client("ec2", key="AKIANEW").describe_instances()["Reservations"] == []


def test_a_clock_that_is_wrong(account: Account):
    account.cloud.faults.add(faults.ClockSkew(seconds=-900))
    with pytest.raises(ClientError, match="RequestExpired"):
        account.described()
    account.cloud.faults.clear()
    account.cloud.faults.add(faults.ClockSkew(seconds=120))
    assert account.described() == []


def test_machines_that_never_boot(account: Account):
    account.cloud.faults.add(faults.NoBoot(times=1))
    ids = account.run(2)
    account.cloud.advance(1)
    assert sorted(account.states(*ids)) == ["running", "terminated"]
    (failed,) = (each for each in account.described(*ids) if each["State"]["Name"] == "terminated")
    assert failed["StateReason"]["Code"] == "Server.InternalError"


def test_run_instances_without_capacity_goes_to_another_zone(account: Account):
    account.cloud.faults.add(faults.NoCapacity(zone="us-east-1a"))
    (one,) = account.described(*account.run())
    assert one["Placement"]["AvailabilityZone"] != "us-east-1a"
    with pytest.raises(ClientError) as refused:
        account.run(Placement={"AvailabilityZone": "us-east-1a"})
    assert code(refused) == ("InsufficientInstanceCapacity", 500)
    assert "You can currently get m7i.large capacity by" in str(refused.value)


def test_run_instances_gives_what_there_is_above_the_minimum(account: Account):
    account.cloud.faults.add(faults.NoCapacity(machines=3))
    assert len(account.run(MinCount=2, MaxCount=5)) == 3
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        account.run(MinCount=1, MaxCount=1)


def test_a_quota_by_fault(account: Account):
    account.cloud.faults.add(faults.Quota(code="L-1216C47A", vcpus=2, times=1))
    account.run()
    with pytest.raises(ClientError, match="VcpuLimitExceeded"):
        account.run()
    account.run()
