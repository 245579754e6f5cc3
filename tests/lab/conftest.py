"""What the lab's tests share: hosts. Where none can be made, every test here is skipped and says why."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest

from outrider import SSH, Pool, events
from outrider.actors import stragglers

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
sys.path.insert(0, str(HERE))  # for `netlab`: it is no test, and the tests may run without being installed

from netlab import Host, Lab, LabError, debian, missing  # noqa: E402 - found through the line above

if TYPE_CHECKING:
    from cloud import LabHypervisor
    from cluster import Cluster

    from outrider import AWS, GCP
    from outrider.testing import EC2
    from outrider.testing.clouds.gcp.front import GCE

    Hosts = Callable[..., list[Host]]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lab: runs on hosts in network namespaces; see tests/lab/README.md")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacks = missing()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("lab")
            if lacks:
                item.add_marker(pytest.mark.skip(reason=f"no lab on this machine: {'; '.join(lacks)}"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A network of its own for each test."""
    with Lab(visible=(REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))) as lab:
        yield lab


@pytest.fixture
def hosts(lab: Lab) -> Hosts:
    """``hosts(n, ...)``: that many on this machine's own root, so that they have its Python and its packages."""
    return lab.create_many


@pytest.fixture
def cluster(lab: Lab) -> Callable[..., Cluster]:
    """``cluster(nodes=2, ...)``: hosts with a real Slurm, as `Site` describes them; see `cluster.Cluster`."""
    from cluster import Cluster, Site, missing

    def made(**options: Any) -> Cluster:
        site = Site(**options)
        if lacks := missing(accounting=site.accounting):
            pytest.skip(f"no cluster on this machine: {'; '.join(lacks)}")
        return Cluster(lab, site)

    return made


@pytest.fixture(scope="session")
def debian_root() -> Path:
    try:
        return debian()
    except (LabError, TimeoutError) as error:
        pytest.skip(f"no bare Debian root on this machine: {error}")


@pytest.fixture
def bare_hosts(lab: Lab, debian_root: Path) -> Hosts:
    """``bare_hosts(n, ...)``: that many with Debian's Python and sshd, and nothing else."""
    return partial(lab.create_many, lower=debian_root)


@pytest.fixture
def client_key(lab: Lab) -> Path:
    """The private key that the hosts let in; the public one is beside it."""
    return lab.key


@pytest.fixture
def known_hosts(lab: Lab) -> Callable[[], str]:
    """The text of a ``known_hosts`` file for the hosts that there are when it is called."""
    return lambda: lab.known_hosts


@pytest.fixture
def connect(lab: Lab) -> Callable[..., Any]:
    """``async with connect(host, **asyncssh options)``: as root, with the lab's key, the host's key pinned."""

    def opened(host: Host, **options: Any) -> Any:
        known = asyncssh.import_known_hosts(host.known_hosts)
        usual = {"username": "root", "client_keys": [str(lab.key)], "known_hosts": known, "config": None}
        return asyncssh.connect(host.address, host.port, **{**usual, "agent_path": None, **options})

    return opened


@pytest.fixture
def ssh(lab: Lab, tmp_path: Path) -> Callable[..., SSH]:
    """``ssh(hosts, **options)``: a provider of these hosts, with the lab's key and known_hosts."""

    def provider(hosts: Sequence[Host], **options: Any) -> SSH:
        file = tmp_path / "known_hosts"
        file.write_text(lab.known_hosts)
        given = [f"{host.address}:{host.port}" for host in hosts]
        return SSH(given, **{"user": "root", "key": lab.key, "known_hosts": file, **options})

    return provider


@pytest.fixture
def hypervisor(lab: Lab) -> Iterator[LabHypervisor]:
    """What boots hosts as a cloud's machines."""
    from cloud import LabHypervisor

    try:
        made = LabHypervisor(lab)
    except LabError as error:
        pytest.skip(f"no cloud on this machine: {error}")
    yield made
    made.close()


@pytest.fixture
def cloud(lab: Lab, hypervisor: LabHypervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EC2]:
    """EC2 with hosts for machines. The environment leads to it: ``AWS()`` needs no parameters."""
    from outrider.testing import EC2, Behaviour

    with EC2(Behaviour(vpc_cidr=str(lab.network.subnet)), hypervisor=hypervisor) as cloud:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in {
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": cloud.endpoint_url,
            "AWS_REGION": cloud.region,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "OUTRIDER_STATE": str(tmp_path / "state"),
        }.items():
            monkeypatch.setenv(name, value)
        yield cloud


@pytest.fixture
def aws(cloud: EC2) -> Callable[..., AWS]:
    """``aws(**options)``: this cloud, at its private addresses."""
    from outrider import AWS

    return lambda **options: AWS(**{"address": "private", **options})


@pytest.fixture
def gce(lab: Lab, hypervisor: LabHypervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GCE]:
    """Compute Engine with hosts for machines. The environment leads to it, but for ``GCP(endpoint_url=...)``."""
    from outrider.testing.clouds.gcp.front import GCE

    with GCE(hypervisor=hypervisor, subnet=str(lab.network.subnet)) as gce:
        for name, value in {
            "CLOUDSDK_COMPUTE_REGION": "us-central1",
            "GOOGLE_APPLICATION_CREDENTIALS": str(gce.credentials(tmp_path)),
            "NO_GCE_CHECK": "true",
            "OUTRIDER_STATE": str(tmp_path / "state"),
        }.items():
            monkeypatch.setenv(name, value)
        yield gce


@pytest.fixture
def gcp(gce: GCE) -> Callable[..., GCP]:
    """``gcp(**options)``: this cloud, at its private addresses."""
    from outrider import GCP

    return lambda **options: GCP(**{"address": "private", "endpoint_url": gce.endpoint_url, **options})


@pytest.fixture
def collected(cloud: EC2) -> Callable[[], Awaitable[None]]:
    """``await collected()``: what ``outrider gc --apply`` does where the environment leads to; nothing may be left."""
    command = "import sys; from outrider.engine.cli.main import main; sys.exit(main())"

    async def collect() -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", command, "gc", "--apply"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 240)  # for 150 s a lost launch may yet appear
        assert process.returncode == 0, said.decode()

    return collect


@pytest.fixture
def watch() -> Callable[[Pool], Awaitable[list[events.Event]]]:
    """``seen = await watch(pool)``: a list that grows by every event of the pool."""

    async def watched(pool: Pool) -> list[events.Event]:
        seen: list[events.Event] = []

        async def collect() -> None:
            async for event in pool.events():
                seen.append(event)  # noqa: PERF401 - as it comes

        task = asyncio.create_task(collect())
        running.append(task)
        await asyncio.sleep(0)  # it listens from here on
        return seen

    running: list[asyncio.Task[None]] = []
    return watched


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may answer ten seconds after the others, as on a busy computer, and no other one is asked for."""
    monkeypatch.setattr(stragglers, "GRACE_S", 150.0)
