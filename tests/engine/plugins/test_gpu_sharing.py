"""MIG and MPS against recorded answers of NVIDIA's tools: programs of their names, first on the PATH, replay them.

The records are what the tools print on an H100 and an A100, from NVIDIA's guides and from public reports of their use.
The programs keep what they are told, so that instances that were made are listed, and write down how they were called.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from outrider import InstanceInfo, Local, Plugin, Pool, SpecError, Worker, compute, instance_info, plugins
from outrider.engine.api.plugin import NodeSide, Setup
from outrider.engine.plugins import mig as mig_module
from outrider.engine.plugins import nvidia
from outrider.engine.plugins.nvidia import Gpu, Profile, Slice

Place = Callable[..., InstanceInfo]

PROFILES = """\
+-------------------------------------------------------------------------------+
| GPU instance profiles:                                                        |
| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                                Free/Total   GiB              CE    JPEG  OFA  |
|===============================================================================|
|   0  MIG 1g.10gb         19     7/7        9.75       No     16     1     0   |
|                                                               1     1     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.10gb+me      20     1/1        9.75       No     16     1     0   |
|                                                               1     1     1   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.20gb         15     4/4        19.62      No     26     1     0   |
|                                                               1     1     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 2g.20gb         14     3/3        19.62      No     32     2     0   |
|                                                               2     2     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 3g.40gb          9     2/2        39.50      No     60     3     0   |
|                                                               3     3     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 4g.40gb          5     1/1        39.50      No     64     4     0   |
|                                                               4     4     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 7g.80gb          0     1/1        79.25      No     132    7     0   |
|                                                               8     7     1   |
+-------------------------------------------------------------------------------+
"""
INSTANCES = """\
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   2  MIG 2g.20gb         14        3          0:2     |
+-------------------------------------------------------+
|   2  MIG 2g.20gb         14        4          2:2     |
+-------------------------------------------------------+
|   2  MIG 3g.40gb          9        2          4:4     |
+-------------------------------------------------------+
"""
LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-f4ac0dcd-9b59-4e34-8c4c-6a3c4a1f5e0e)
"""

# What the replaying nvidia-smi says; `state` holds each GPU's mode and instances, and what is to go wrong.
SMI = """\
import json, sys
from pathlib import Path

home = Path(__file__).parent
state = json.loads((home / "state.json").read_text())
arguments = sys.argv[1:]
with (home / "calls").open("a") as calls:
    calls.write(" ".join(arguments) + "\\n")
gpu = arguments[arguments.index("-i") + 1] if "-i" in arguments else None
own = state["gpus"].get(gpu)
names = {"19": "1g.10gb", "9": "3g.40gb"}

def save():
    (home / "state.json").write_text(json.dumps(state))

def fail(text, status=1):
    print(text)
    sys.exit(status)

if arguments[0].startswith("--query-gpu"):
    for index, each in state["gpus"].items():
        print(f"{index}, {each['uuid']}, NVIDIA H100 80GB HBM3, {each['mig']}, {each['mig']}")
elif arguments == ["-L"]:
    for index, each in state["gpus"].items():
        print(f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: {each['uuid']})")
        for number, (made, profile) in enumerate(each["instances"].items()):
            print(f"  MIG {names[profile]}     Device {number:2}: (UUID: MIG-{index}-{made})")
elif "-mig" in arguments:
    wanted = {"1": "Enabled", "0": "Disabled"}[arguments[-1]]
    if not state["root"]:
        fail("Unable to change MIG mode for GPU 00000000:36:00.0: Insufficient Permissions", 4)
    if wanted == "Enabled" and state["used"]:
        print("Warning: MIG mode is in pending enable state for GPU 00000000:36:00.0:In use by another client")
        print("All done.")
    else:
        own["mig"] = wanted
        save()
        print(f"{wanted} MIG Mode for GPU 00000000:36:00.0\\nAll done.")
elif "-lgip" in arguments:
    print(PROFILES.replace("7/7", f"{7 - len(own['instances'])}/7"), end="")
elif "-lgi" in arguments:
    if not own["instances"]:
        fail("No GPU instances found: Not Found", 6)
    print(HEAD)
    for made, profile in own["instances"].items():
        print(f"|   {gpu}  MIG {names[profile]}         {profile}       {made:>2}          0:1     |")
elif "-cgi" in arguments:
    for number, profile in enumerate(arguments[arguments.index("-cgi") + 1].split(",")):
        made = str(7 + number)
        own["instances"][made] = profile
        print(f"Successfully created GPU instance ID {made:>2} on GPU  {gpu} using profile MIG"
              f" {names[profile]} (ID {profile})")
        print(f"Successfully created compute instance ID  0 on GPU  {gpu} GPU instance ID {made:>2} using profile MIG"
              f" {names[profile]} (ID  0)")
    save()
elif "-dci" in arguments or "-dgi" in arguments:
    if state["busy"]:
        state["busy"] -= 1
        save()
        fail(f"Unable to destroy compute instance ID  0 from GPU  {gpu} GPU instance ID  7: In use by another client\\n"
             "Failed to destroy compute instances: In use by another client", 19)
    for made in arguments[arguments.index("-gi") + 1].split(","):
        if "-dgi" in arguments:
            del own["instances"][made]
            print(f"Successfully destroyed GPU instance ID {made:>2} from GPU  {gpu}")
        else:
            print(f"Successfully destroyed compute instance ID  0 from GPU  {gpu} GPU instance ID {made:>2}")
    save()
else:
    fail(f"Invalid combination of input arguments: {arguments}", 2)
"""

# Like the real one: -f serves until it is told to quit; without it, a line of stdin goes to the daemon.
MPS_CONTROL = """\
import os, sys, time
from pathlib import Path

home = Path(__file__).parent
pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if "-f" in sys.argv:
    if (home / "broken").exists():
        print("Failed to initialize: insufficient permissions")
        sys.exit(1)
    (pipe / "control").write_text(str(os.getpid()))
    (home / "devices").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "-"))
    while not (pipe / "quit").exists():
        time.sleep(0.01)
    sys.exit(0)
if not (pipe / "control").exists():
    print("Cannot find MPS control daemon process")
    sys.exit(1)
line = sys.stdin.read().strip()
with (home / "calls").open("a") as calls:
    calls.write(line + "\\n")
if line.startswith("quit"):
    (pipe / "quit").touch()
else:
    print("100.0")
"""


class Tools:
    """The replaying programs, and what they were told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        head = INSTANCES.partition("|   2")[0].rstrip()
        self.write("nvidia-smi", f"PROFILES = {PROFILES!r}\nHEAD = {head!r}\n{SMI}")
        self.write("nvidia-cuda-mps-control", MPS_CONTROL)
        self.state(gpus=1)

    def write(self, name: str, code: str) -> None:
        program = self.folder / name
        program.write_text(f"#!{sys.executable} -IS\n{code}")
        program.chmod(0o755)

    def state(self, *, gpus: int, mig: str = "Disabled", root: bool = True, used: bool = False, busy: int = 0) -> None:
        each = {str(index): {"uuid": f"GPU-{index}{index}", "mig": mig, "instances": {}} for index in range(gpus)}
        self.save({"gpus": each, "root": root, "used": used, "busy": busy})

    def save(self, state: dict[str, Any]) -> None:
        (self.folder / "state.json").write_text(json.dumps(state))

    def load(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    @property
    def changes(self) -> list[str]:
        """The calls that change something."""
        calls = (self.folder / "calls").read_text().splitlines()
        return [call for call in calls if not call.startswith(("--query", "-L")) and " -lg" not in call]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(mig_module, "RETRY_S", 0.01)
    return Tools(folder)


def side(directory: Path) -> NodeSide:
    return NodeSide("p", 1, "host", "10.0.0.1", (("H100 80GB HBM3", 79.6),), directory, lambda _: None)


# --- what the tools say -----------------------------------------------------------------------------------------------


def test_recorded_tables_are_read() -> None:
    found = nvidia.profiles(PROFILES)
    assert [each.name for each in found] == [
        *("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    ]
    assert found[0] == Profile("1g.10gb", 19, 7, 7, 9.75)
    assert nvidia.instances(INSTANCES) == [3, 4, 2]
    assert nvidia.instances("No GPU instances found: Not Found\n") == []
    assert nvidia.slices(LISTING) == {
        "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77": [
            Slice("1g.5gb", "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"),
            Slice("1g.5gb", "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb"),
        ],
        "GPU-f4ac0dcd-9b59-4e34-8c4c-6a3c4a1f5e0e": [],
    }
    said = (
        "Successfully created GPU instance ID 13 on GPU  0 using profile MIG 1g.5gb (ID 19)\n"
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID 13 using profile MIG 1g.5gb (ID  0)\n"
        "Successfully created GPU instance ID  7 on GPU  0 using profile MIG 1g.5gb (ID 19)\n"
    )
    assert nvidia.created(said) == [13, 7]


def test_a_node_divides_only_what_it_sees(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.state(gpus=4)
    assert [gpu.index for gpu in nvidia.gpus()] == [0, 1, 2, 3]
    for chosen, indices in (("2,0", [2, 0]), ("GPU-11", [1]), ("1,9,2", [1]), ("", []), ("3,3", [3])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert [gpu.index for gpu in nvidia.gpus()] == indices, chosen
    assert nvidia.gpus()[0] == Gpu(3, "GPU-33", "H100 80GB HBM3", "Disabled", "Disabled")


# --- MIG --------------------------------------------------------------------------------------------------------------


def test_every_gpu_is_divided_and_made_whole_again(tools: Tools, tmp_path: Path) -> None:
    tools.state(gpus=2, busy=2)
    with plugins.mig("3g.40gb").node(side(tmp_path)) as setup:
        assert isinstance(setup, Setup)
        assert setup.env == {mig_module.DEVICES: "MIG-0-7,MIG-0-8,MIG-1-7,MIG-1-8"}
        assert setup.accelerators == (("H100 80GB HBM3 MIG 3g.40gb", 39.5),) * 4
        assert [gpu["mig"] for gpu in tools.load()["gpus"].values()] == ["Enabled"] * 2
    assert [(gpu["mig"], gpu["instances"]) for gpu in tools.load()["gpus"].values()] == [("Disabled", {})] * 2
    busy = ["mig -i 1 -dci -gi 7,8"] * 2  # while what was killed lets go
    assert tools.changes == [
        *("-i 0 -mig 1", "mig -i 0 -cgi 9,9 -C", "-i 1 -mig 1", "mig -i 1 -cgi 9,9 -C"),
        *(*busy, "mig -i 1 -dci -gi 7,8", "mig -i 1 -dgi -gi 7,8", "-i 1 -mig 0"),
        *("mig -i 0 -dci -gi 7,8", "mig -i 0 -dgi -gi 7,8", "-i 0 -mig 0"),
    ]


def test_the_mode_stays_where_it_was_on(tools: Tools, tmp_path: Path) -> None:
    tools.state(gpus=1, mig="Enabled")
    with plugins.mig("1g.10gb", count=2).node(side(tmp_path)) as setup:
        assert setup is not None
        assert setup.env == {mig_module.DEVICES: "MIG-0-7,MIG-0-8"}
    assert tools.changes == ["mig -i 0 -cgi 19,19 -C", "mig -i 0 -dci -gi 7,8", "mig -i 0 -dgi -gi 7,8"]


def test_instances_that_are_there_are_used_and_left(tools: Tools, tmp_path: Path) -> None:
    tools.state(gpus=1, mig="Enabled")
    state = tools.load()
    state["gpus"]["0"]["instances"] = {"7": "19", "8": "19", "9": "19"}
    tools.save(state)
    with plugins.mig("1g.10gb", count=2).node(side(tmp_path)) as setup:
        assert setup is not None
        assert setup.env == {mig_module.DEVICES: "MIG-0-7,MIG-0-8"}
    assert tools.changes == []
    for plugin in (plugins.mig("3g.40gb"), plugins.mig("1g.10gb", count=4)):
        with (
            pytest.raises(SpecError, match=r"divided already, into 1g\.10gb, 1g\.10gb, 1g\.10gb: that is somebody's"),
            plugin.node(side(tmp_path)),
        ):
            pass
    assert tools.changes == []


@pytest.mark.parametrize(
    ("plugin", "state", "said"),
    [
        (plugins.mig("1g.5gb"), {}, r"has no MIG profile 1g\.5gb; it has 1g\.10gb, 1g\.10gb\+me"),
        (plugins.mig("1g.10gb", count=8), {}, r"room for 7 instances of 1g\.10gb, not for 8"),
        (plugins.mig("1g.10gb"), {"mig": "[N/A]"}, "has no MIG: A30"),
        (plugins.mig("1g.10gb"), {"used": True}, "cannot be enabled on GPU 0 while something uses it.*pending"),
        (plugins.mig("1g.10gb"), {"root": False}, "Insufficient Permissions.* MIG is root's to change"),
    ],
)
def test_impossible_division_is_an_error_and_leaves_nothing(
    tools: Tools, tmp_path: Path, plugin: Any, state: dict[str, Any], said: str
) -> None:
    tools.state(gpus=1, **state)
    before = tools.load()
    with pytest.raises(SpecError, match=f"(?s){said}"), plugin.node(side(tmp_path)):
        pass
    assert tools.load() == before


def test_gpu_that_stays_in_use_is_reported(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mig_module, "BUSY_S", 0.05)
    tools.state(gpus=1, busy=10_000)
    with plugins.mig("3g.40gb").node(side(tmp_path)):
        pass
    assert "a GPU is not as it was before: nvidia-smi mig -i 0 -dci" in capfd.readouterr().err


def test_a_rank_sees_the_instance_of_its_place_and_a_task_that_of_its_slot(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = plugins.mig("3g.40gb")
    assert plugin.env(place(0)) == {}  # not divided here
    monkeypatch.setenv(mig_module.DEVICES, "MIG-a,MIG-b,MIG-c")
    ranks = [plugin.env(place(rank, nodes=2, each=3)) for rank in range(6)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in ranks] == ["MIG-a", "MIG-b", "MIG-c"] * 2
    alone = [plugin.env(replace(instance_info(), worker=worker)) for worker in range(4)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in alone] == ["MIG-a", "MIG-b", "MIG-c", "MIG-a"]


@compute
def seen() -> tuple[str | None, int, str | None, float]:
    info = instance_info()
    kind = info.accelerator
    return (
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        info.accelerators,
        None if kind is None else kind.type,
        0.0 if kind is None else kind.memory_gb,
    )


def test_on_a_pool_tasks_have_instances_and_torch_a_rank_for_each(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    with Pool(provider=Local(), worker=Worker(2), plugins=[plugins.mig("3g.40gb")], console="silent") as pool:
        assert tools.load()["gpus"]["0"]["instances"] == {"7": "9", "8": "9"}
        visible, count, kind, memory_gb = pool.run(seen())
        assert visible in {"MIG-0-7", "MIG-0-8"}
        assert (count, kind, memory_gb) == (2, "H100 80GB HBM3 MIG 3g.40gb", 39.5)
        facts = pool.broadcast(seen())
        assert facts == [("MIG-0-7", 2, "H100 80GB HBM3 MIG 3g.40gb", 39.5)]
    assert tools.load()["gpus"]["0"] == {"uuid": "GPU-00", "mig": "Disabled", "instances": {}}


@dataclass(frozen=True)
class Pairs(Plugin):
    name: ClassVar[str] = "pairs"

    def ranks_per_node(self, facts: Any) -> int:
        return 2


@compute
def instance_of_process(after: str | None = None) -> tuple[int, str]:
    while after is not None and not Path(after).exists():
        time.sleep(0.01)
    return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]


def test_no_process_is_given_a_second_instance(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA would stay with the first: here the slots are freed in either order, and ranks take the last one first."""
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    given: dict[int, set[str]] = {}
    chosen = [plugins.mig("3g.40gb"), Pairs()]
    with Pool(provider=Local(), worker=Worker(2), plugins=chosen, console="silent") as pool:
        for order in ((0, 1), (1, 0)):
            gates = [str(tmp_path / f"{order}{index}") for index in range(2)]
            tasks = [pool.submit(instance_of_process(gate)) for gate in gates]
            seen = []
            for index in order:
                Path(gates[index]).touch()
                seen.append(tasks[index].result())
            seen += (ranks := pool.broadcast(instance_of_process()))
            assert [instance for _, instance in ranks] == ["MIG-0-7", "MIG-0-8"]
            for pid, instance in seen:
                given.setdefault(pid, set()).add(instance)
    assert len(given) == 2 + 2 * 2  # tasks find the processes of their slots again
    assert all(len(instances) == 1 for instances in given.values())


def test_tasks_that_share_a_process_cannot_have_instances_of_their_own(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    worker = Worker(2, kind="thread")
    with (
        pytest.raises(SpecError, match="mig plugin sets up a whole process"),
        Pool(provider=Local(), worker=worker, plugins=[plugins.mig("3g.40gb")], console="silent") as pool,
    ):
        pool.run(seen())


def test_without_the_driver_the_pool_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for plugin in (plugins.mig("1g.10gb"), plugins.mps()):
        with (
            pytest.raises(SpecError, match="nvidia-smi is not on this node's PATH"),
            Pool(provider=Local(), plugins=[plugin], console="silent"),
        ):
            pass


def test_invalid_options_are_refused() -> None:
    for profile in ("1g", "big", 19):
        with pytest.raises(SpecError, match=r"called like '1g\.10gb'"):
            plugins.mig(profile)  # type: ignore[arg-type]
    assert plugins.mig("MIG 1g.10gb+me") == plugins.mig("1g.10gb+me")
    with pytest.raises(SpecError, match="count"):
        plugins.mig("1g.10gb", count=0)
    for percentage in (0, 101, True):
        with pytest.raises(SpecError, match="1 to 100"):
            plugins.mps(active_thread_percentage=percentage)
    with pytest.raises(SpecError, match="memory_limit"):
        plugins.mps(memory_limit="much")


# --- MPS --------------------------------------------------------------------------------------------------------------


@compute
def asked_of_the_daemon() -> tuple[dict[str, str], str]:
    variables = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
    done = subprocess.run(
        ["nvidia-cuda-mps-control"], input="get_server_list\n", capture_output=True, text=True, check=True
    )
    return variables, done.stdout


@pytest.mark.parametrize("chosen", [None, "1,0"])
def test_the_daemon_serves_the_nodes_tasks_and_ends_with_the_pool(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    tools.state(gpus=2)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    plugin = plugins.mps(active_thread_percentage=25, memory_limit="8GB")
    with Pool(provider=Local(), worker=Worker(2), plugins=[plugin], console="silent") as pool:
        variables, answer = pool.run(asked_of_the_daemon())
        assert answer == "100.0\n"
        pipe = Path(variables["CUDA_MPS_PIPE_DIRECTORY"])
        daemon = int((pipe / "control").read_text())
        assert Path(f"/proc/{daemon}").exists()
        # Its devices by their UUIDs: the clients number anew what the daemon sees.
        told = variables.get("CUDA_VISIBLE_DEVICES", "-")
        assert told == (tools.folder / "devices").read_text() == ("-" if chosen is None else "GPU-11,GPU-00")
    assert not Path(f"/proc/{daemon}").exists()
    assert not pipe.parent.exists()
    assert tools.changes[:4] == [
        "get_default_active_thread_percentage",
        "set_default_active_thread_percentage 25",
        "set_default_device_pinned_mem_limit 0 8G",
        "set_default_device_pinned_mem_limit 1 8G",
    ]
    assert tools.changes[-1].startswith("quit")


def test_a_daemon_that_does_not_come_up_is_the_pools_error(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    (tools.folder / "broken").touch()
    with (
        pytest.raises(SpecError, match="does not come up on this node: Failed to initialize: insufficient permissions"),
        Pool(provider=Local(), plugins=[plugins.mps()], console="silent"),
    ):
        pass
