"""What Docker and Podman are told and what they say, without either."""

from __future__ import annotations

import json

import pytest

from outrider import Containers
from outrider.providers.base import AcceleratorRequest, LaunchRequest
from outrider.providers.cloud.calls import is_lost
from outrider.providers.containers.runtime import (
    error_of,
    first_process,
    no_runtime,
    objection,
    read_containers,
    run_words,
)
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, ProviderError
from outrider.providers.shared.login_host import Ended

PULL = "Error: initializing source docker://ghcr.io/x/y:1: reading manifest 1 in ghcr.io/x/y: "


@pytest.mark.parametrize(
    ("said", "kind", "lost"),
    [
        ("permission denied while trying to connect to the Docker daemon socket at unix:///x", NotAuthorized, False),
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", ProviderError, True),
        (PULL + "manifest unknown", BadRequest, False),
        (PULL + "denied: denied", NotAuthorized, False),
        (PULL + "toomanyrequests: You have reached your pull rate limit", NoCapacity, False),
        ('Error: ... pinging container registry x: Get "https://x/v2/": dial tcp: i/o timeout', ProviderError, True),
        ('Error: runc: exec: "/bin/sh": stat /bin/sh: no such file or directory', BadRequest, False),
        ("Error: unknown flag: --foo\nSee 'podman run --help'", BadRequest, False),
        ('docker: Error response from daemon: could not select device driver "" with gpu', BadRequest, False),
        ("write /var/lib/docker/tmp: no space left on device", NoCapacity, False),
        ("Error: something that nobody knows", ProviderError, False),
    ],
)
def test_a_failure_has_its_words_and_whose_fault_it_is(said: str, kind: type[ProviderError], lost: bool) -> None:
    error = error_of("podman run", Ended(125, "", said), "on gpu1")
    assert isinstance(error, kind)
    assert is_lost(error) == lost
    assert said.splitlines()[0] in str(error)
    assert "on gpu1" in str(error)


@pytest.mark.parametrize(
    ("program", "named", "server", "told"),
    [
        ("podman", "podman version 4.3.1", Ended(0, "4.3.1\n"), ""),
        ("docker", "podman version 4.3.1", Ended(0, "4.3.1\n"), ""),  # Podman under Docker's name
        (
            "docker",
            "Docker version 19.3.0",
            Ended(0, "19.3.0\n"),
            "docker 19.3.0 is too old: it must be 20.10 or newer",
        ),
        ("docker", "Docker version 28.2.2", Ended(1, "", "Cannot connect to the Docker daemon"), "Cannot connect"),
        ("docker", "Docker version 28.2.2", Ended(0, ""), "does not say its version"),
    ],
)
def test_a_runtime_is_used_or_it_is_said_why_not(program: str, named: str, server: Ended, told: str) -> None:
    why = objection(program, named, server)
    assert told in why
    assert bool(told) == bool(why)


def test_a_host_without_a_runtime_says_what_it_has() -> None:
    assert "neither Docker nor Podman on gpu1" in str(no_runtime({}, "on gpu1"))
    away = no_runtime({"docker": "Cannot connect to the Docker daemon", "podman": "podman 2.0 is too old"}, "on gpu1")
    assert isinstance(away, BadRequest)
    assert "docker: Cannot connect" in str(away)
    assert "podman: podman 2.0 is too old" in str(away)
    assert isinstance(no_runtime({"docker": "permission denied: docker.sock"}, "here"), NotAuthorized)


def test_containers_are_read_as_both_runtimes_describe_them() -> None:
    docker = {
        "Name": "/outrider-1-0",
        "Created": "2026-11-26T12:26:18.390336029Z",
        "State": {"Status": "exited", "OOMKilled": True, "ExitCode": 137},
        "Config": {"Labels": {"outrider:pool": "train"}, "Image": "python:3.12-slim"},
        "NetworkSettings": {"IPAddress": "", "Networks": {"lab": {"IPAddress": "10.1.0.2"}}},
    }
    podman = {"Name": "b", "State": {"Status": "running"}, "Config": {"Labels": None}, "NetworkSettings": {}}
    one, other = read_containers(json.dumps([docker, podman]))
    assert (one.name, one.state, one.address, one.oom) == ("outrider-1-0", "exited", "10.1.0.2", True)
    assert one.created_at == pytest.approx(1795695978.39, abs=0.01)
    assert (other.name, other.labels, other.address) == ("b", {}, "")
    assert read_containers("") == []


def words(provider: Containers, **more: object) -> list[str]:
    request = LaunchRequest(
        client_key="", nodes=1, vcpus=2, memory_gb=4.0, accelerator=AcceleratorRequest("A100"), lease_s=120.0
    )
    given: dict[str, object] = {"name": "n", "labels": {"Name": "x", "outrider:pool": "p"}, **more}
    return run_words(provider, request, **given)  # type: ignore[arg-type]  # as given


def test_limits_devices_and_options_become_words() -> None:
    provider = Containers("i:1", network=False, volumes=["/d:/d"], options={"ulimit": ["a=1", "b=2"], "init": True})
    assert words(provider, devices=(0, 3)) == [
        "--detach",
        "--rm",
        "--name=n",
        "--label=outrider:pool=p",
        "--label=outrider:devices=0,3",
        "--network=none",
        "--memory=4096m",
        "--cpus=2",
        "--shm-size=2048m",
        '--gpus="device=0,3"',
        "--volume=/d:/d",
        "--ulimit=a=1",
        "--ulimit=b=2",
        "--init",
        "--entrypoint=/bin/sh",
        "i:1",
        "-c",
        first_process(),
        "outrider",
        "/tmp/n.lease",
        "120",
        "30",
        "0",
    ]
    assert {"--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=3"} < {*words(provider, devices=(0, 3), podman=True)}
    assert not [each for each in words(Containers("i:1")) if each.startswith("--network")]
    small = run_words(Containers("i:1"), LaunchRequest(client_key="", nodes=1, memory_gb=0.5), name="n", labels={})
    assert {"--memory=512m", "--shm-size=256m"} < {*small}, "at most half of the memory"
    free = run_words(Containers("i:1"), LaunchRequest(client_key="", nodes=1), name="n", labels={})
    assert "--shm-size=8192m" in free
    assert "--network=host" in words(Containers("i:1", network="host"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"image": "two words"}, "is no image"),
        ({"hosts": "gpu1"}, "write Containers"),
        ({"hosts": ["a", "a"]}, "twice"),
        ({"hosts": ["-oProxyCommand=x"]}, "write host"),
        ({"runtime": ""}, "list of words"),
        ({"pull": "sometimes"}, "'missing'"),
        ({"per_host": 0}, "1 or more"),
        ({"network": "--privileged"}, "network"),
        ({"options": {"memory": "4g"}}, "memory_gb"),
        ({"options": {"rm": True}}, "sets itself"),
        ({"options": {"Shm Size": "4g"}}, "no long option"),
    ],
)
def test_an_option_that_can_never_work_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Containers(**options)  # type: ignore[arg-type]  # the wrong ones


def test_what_the_journal_has_leads_back_to_the_hosts() -> None:
    from outrider.providers.containers.surveyor import _provider

    provider = Containers("i:1", hosts=["me@a:22", "b"], runtime=["sudo", "-n", "docker"], config=False)
    found = _provider(provider.journal_place)
    assert (found.hosts, found.runtime) == (provider.hosts, provider.runtime)
