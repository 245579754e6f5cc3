"""What a life has: hosts, a cloud that has them as machines, a proxy before it, and clients in their processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netlab import Lab

from outrider.testing import EC2, Behaviour

from .proxy import Proxy
from .ward import Ward
from .wish import Wish

if TYPE_CHECKING:
    from outrider.providers.aws.testing.instances import Instance

LAB = Path(__file__).parents[1]
REPOSITORY = LAB.parents[1]
GC = "import sys; from outrider.engine.cli.main import main; sys.exit(main())"
GC_S = 300.0  # for 150 s a lost launch may yet appear
LIVING = ("pending", "running", "stopping", "stopped", "shutting-down")
Word = dict[str, Any]


class Late(Exception):
    """Something did not come about in time."""


def until(holds: Callable[[], object], within_s: float, what: str) -> None:
    """
    Raises:
        Late
    """
    last = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > last:
            raise Late(f"not within {within_s:g} s: {what}")
        time.sleep(0.02)


class Client:
    """A process that carries out a `Wish`; ``words`` are what it has said."""

    def __init__(self, wish: Wish, *, key: str, env: Mapping[str, str], before: Sequence[str], log: Path) -> None:
        self.wish, self.key, self.began, self.ended_at = wish, key, time.time(), 0.0
        self.words: list[Word] = []
        self.killed = False
        self._log = log
        self._new = threading.Condition()
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "campaigns.client", wish.written()],
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def said(self, what: str) -> list[Word]:
        return [word for word in self.words if word["what"] == what]

    def wait(self, what: str, within_s: float) -> bool:
        """Whether it has said that, before its end.

        Raises:
            Late: neither came about.
        """
        with self._new:
            if not self._new.wait_for(lambda: self.said(what) or self.ended_at, within_s):
                raise Late(f"{self.wish.name} did not say {what!r} within {within_s:g} s: {self.words[-2:]}")
        return bool(self.said(what))

    def go(self) -> None:
        """On, if it `waits`."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except (OSError, ValueError):  # it has ended
            pass

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """It alone, as the kernel's lack of memory would; safe to repeat."""
        if self.process.poll() is None:
            self.killed = number == signal.SIGKILL
            self.process.send_signal(number)

    def end(self, within_s: float) -> int:
        """Its exit status.

        Raises:
            Late: it has not ended; it is killed.
        """
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler writes where it stands
            self.process.wait()
            raise Late(f"{self.wish.name} has not ended within {within_s:g} s\n{self.errors()[-6000:]}") from None
        finally:
            self._reading.join()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):  # it ended before it had read its line
                    pipe.close()
        return self.process.returncode

    def errors(self) -> str:
        """What it wrote to its standard error."""
        return self._log.read_text(errors="replace")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._new:
                self.words.append(json.loads(line) if line.startswith("{") else {"what": "text", "text": line})
                self._new.notify_all()
        self.process.wait()
        with self._new:
            self.ended_at = time.time()
            self._new.notify_all()


@dataclass(frozen=True, slots=True)
class Collected:
    """How one `outrider gc` ended."""

    status: int
    text: str


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
        client = Client(wish, key=key, env=self.env(key=key), before=before, log=log)
        self.clients.append(client)
        return client

    def gc(self, *options: str, before: Sequence[str] = ()) -> Collected:
        """``outrider gc`` with these options."""
        done = subprocess.run(
            [*before, sys.executable, "-c", GC, "gc", *options],
            env={**os.environ, **self.env(key="AKIAGC")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=GC_S,
            check=False,
        )
        return Collected(done.returncode, done.stdout)

    def machines(self, client: Client) -> list[Instance]:
        """Those that it asked for, whatever has become of them and of their tags."""
        tokens = {token for token, (key, _) in self.proxy.asked_for.items() if key == client.key}
        return [each for each in self.cloud.instances() if self.proxy.made.get(each.id) in tokens]

    def running(self, client: Client) -> list[Instance]:
        return [each for each in self.machines(client) if each.state in LIVING]

    def stragglers(self, nodes: int) -> int:
        """How many machines a client may have in the place of stragglers, by the records of the runs: on a busy
        computer a node may boot so late that the pool asks for another one. That is at most every second node.
        """
        late = sum(path.read_text().count('"event":"node_late"') for path in self.state.glob("runs/*/events.jsonl"))
        return min(late, (nodes + 1) // 2)

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
