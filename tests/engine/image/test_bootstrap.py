"""A host gets an image: real processes, a home of their own, real installs."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import BootstrapError, Image, Secret
from outrider.engine.image import bootstrap as bootstrap_
from outrider.engine.image.bootstrap import bootstrap
from outrider.engine.image.commands import CommandResult
from outrider.engine.image.install_plan import HostFacts, prepare
from outrider.engine.image.installer.executor import socket_path_of
from outrider.engine.image.outrider_archive import packed

pytestmark = pytest.mark.anyio


def processes_of(home: Path) -> list[str]:
    """Command lines of all that runs with this home."""
    mark, found = f"HOME={home}".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


# --- a host that has a Python --------------------------------------------------------------------------------------


async def test_a_host_with_a_python_becomes_a_node(shell: Any, bring: Any) -> None:
    node = await bring(Image(), shell)
    path = Path(node.made.executor_socket)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert bring.done == ["probe", "upload", "executor"]
    assert node.greet()["python"] == ".".join(map(str, sys.version_info[:2]))
    assert node.run(lambda: __import__("outrider").__file__).startswith(node.made.runtime)


async def test_its_executor_renews_the_hosts_own_lease(shell: Any, bring: Any, tmp_path: Path) -> None:
    lease = tmp_path / "the lease"
    lease.touch()
    node = await bring(Image(), shell, lease_file=str(lease))
    os.utime(lease, (0, 0))
    node.greet()
    assert lease.stat().st_mtime > 0


async def test_the_second_time_nothing_is_sent(shell: Any, bring: Any) -> None:
    await bring(Image(), shell)
    shell.commands.clear()
    await bring(Image(), shell)
    assert bring.done == ["probe", "executor"]
    assert [argv[-1] for argv in shell.commands[1:]] == ["install"]


async def test_nothing_but_the_cache_is_left(shell: Any, bring: Any) -> None:
    node = await bring(Image(), shell)
    node.greet()
    node.stop()
    assert [path.name for path in shell.home.iterdir()] == [".cache"]
    assert list((shell.cache / "pools").iterdir()) == []
    assert processes_of(shell.home) == []


async def test_output_of_a_login_shell_is_skipped(shell: Any, bring: Any) -> None:
    shell.banner = b'Welcome to this host!\n{"is":"news"}\n'
    assert (await bring(Image(), shell)).greet()


async def test_a_title_without_a_newline_is_no_part_of_a_frame(shell: Any, bring: Any) -> None:
    shell.banner = b"\x1b]0;gpu1\x07"
    assert (await bring(Image(), shell)).greet()


@pytest.mark.parametrize(
    "output",
    [
        b"Welcome to this host!\n/pythons/3.11/bin/python3.11\n",
        b"\x1b]0;gpu1\x07/cache/pythons/3.11/bin/python3.11\nbye\n",
        b"/cache/pythons/3.11/bin/python3.11\r\nlogout",
    ],
)
async def test_what_a_login_prints_is_no_part_of_a_pythons_path(output: bytes) -> None:
    class Chatty:
        async def run(self, argv: Any, **_: Any) -> CommandResult:
            return CommandResult(0, None, output, b"")

    work = bootstrap_._Bootstrap(Chatty(), await prepare(Image()), lambda _: None)
    host = HostFacts("Linux", "x86_64", "glibc 2.36", 0, "/cache", "", None, None, frozenset(), ())
    found = await work._fetch_python(host, "3.11", "uv/digest")
    assert found.removeprefix("/cache") == "/pythons/3.11/bin/python3.11"


def test_unpacking_leaves_alone_what_another_host_unpacks_under_the_same_process_id(tmp_path: Path) -> None:
    """Hosts that were set up alike share a home, and count their processes alike."""
    before = 'mkdir -p "$1/.$2.$$"; touch "$1/.$2.$$/half"; exec sh -c "$0" upload "$1" "$2"'
    data = packed({"file": b"whole"})
    subprocess.run(["sh", "-c", before, bootstrap_._UNPACK, tmp_path / "runtime", "digest"], input=data, check=True)
    (other,) = (tmp_path / "runtime").glob(".digest.*")
    assert (other / "half").exists()
    assert (tmp_path / "runtime" / "digest" / "file").read_bytes() == b"whole"


async def test_a_long_home_has_its_socket_elsewhere(tmp_path: Path, bring: Any, shell: Any) -> None:
    long = type(shell)(tmp_path / ("long" * 25))
    node = await bring(Image(), long)
    assert len(node.made.executor_socket) < 104
    assert stat.S_IMODE(Path(node.made.executor_socket).parent.stat().st_mode) == 0o700
    node.greet()
    node.stop()
    assert not Path(node.made.executor_socket).parent.exists()


async def test_a_socket_elsewhere_goes_when_the_executor_does_not_start(tmp_path: Path, bring: Any, shell: Any) -> None:
    long = type(shell)(tmp_path / ("long" * 25))
    directory = long.cache / "pools" / "pool-same~0"
    directory.mkdir(parents=True)
    (directory / "work").touch()  # where the executor wants a folder
    with pytest.raises(BootstrapError) as caught:
        await bring(Image(), long, name="same")
    assert caught.value.phase == "executor"
    assert not socket_path_of(directory).parent.exists()


async def test_another_try_that_fails_leaves_a_running_executor_alone(
    shell: Any, bring: Any, wheels: Path, make_wheel: Any
) -> None:
    make_wheel("other")
    node = await bring(Image(), shell, name="same")
    node.greet()
    with pytest.raises(BootstrapError):
        await bring(Image(pip=["missing"], pip_indexes=[str(wheels)]), shell, name="same")
    assert Path(node.made.executor_socket).exists()
    assert node.run(lambda: sorted(__import__("os").listdir("..")))


async def test_a_lost_connection_can_be_followed_by_another_try(shell: Any, bring: Any) -> None:
    shell.loses = lambda argv: "install" in argv  # all was done, and nobody heard of it
    with pytest.raises(ConnectionError):
        await bring(Image(), shell, name="same")
    shell.loses = lambda argv: False
    before = processes_of(shell.home)
    await bring(Image(), shell, name="same")
    assert bring.done == ["probe"]
    assert sorted(processes_of(shell.home)) == sorted(before)


async def test_tasks_see_the_node_as_it_is(shell: Any, bring: Any) -> None:
    node = await bring(Image(python=sys.executable), shell)
    facts = node.greet(ASKED="yes")
    assert node.run(lambda: (os.environ["ASKED"], os.environ["HOME"])) == ("yes", str(shell.home))
    assert set(facts["packages"]) >= {"numpy"}  # of this very Python


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "ours"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("VALUE = 1\n")
    (folder / "deep" / "__init__.py").write_text("from .. import VALUE\n")
    (folder / "deep" / 'it\'s "odd" $HOME.txt').write_text("text")
    (folder / "tool").write_text("#!/bin/sh\necho worked\n")
    (folder / "tool").chmod(0o755)
    return folder


async def test_tasks_import_what_is_included(shell: Any, bring: Any, project: Path) -> None:
    node = await bring(Image(includes=[project]), shell)
    node.greet()
    assert node.run(lambda: __import__("ours.deep").deep.VALUE) == 1
    assert (
        node.run(lambda: __import__("subprocess").check_output([__import__("ours").__path__[0] + "/tool"]))
        == b"worked\n"
    )
    in_a_child = [sys.executable, "-c", "import ours, outrider; print(ours.VALUE)"]
    assert node.run(lambda: __import__("subprocess").check_output(in_a_child)) == b"1\n"


async def test_an_edit_sends_one_file_and_a_deleted_one_vanishes(shell: Any, bring: Any, project: Path) -> None:
    image = Image(includes=[project])
    await bring(image, shell)
    assert bring.lines[0].startswith("received 4 of 4 files")
    (project / "__init__.py").write_text("VALUE = 2\n")
    (project / "tool").unlink()
    node = await bring(image, shell)
    assert bring.lines[0].startswith("received 1 of 3 files")
    node.greet()
    assert node.run(lambda: __import__("ours").VALUE) == 2
    assert node.run(lambda: sorted(p.name for p in Path(__import__("ours").__path__[0]).iterdir())) == [
        "__init__.py",
        "__pycache__",
        "deep",
    ]
    await bring(image, shell)
    assert not [line for line in bring.lines if line.startswith("received")]


async def test_later_machines_get_what_the_first_ones_got_whatever_was_edited_since(
    shell: Any, bring: Any, project: Path
) -> None:
    (project / "large.bin").write_bytes(large := os.urandom(9 << 20))
    prepared = await prepare(Image(includes=[project]))
    (project / "__init__.py").write_text("VALUE = 2\n")
    (project / "tool").unlink()
    (project / "large.bin").write_bytes(b"")
    node = await bring(prepared, shell)
    node.greet()
    assert node.run(lambda: __import__("ours").VALUE) == 1
    folder = Path(node.run(lambda: __import__("ours").__path__[0]))
    assert subprocess.check_output([folder / "tool"]) == b"worked\n"
    assert (folder / "large.bin").read_bytes() == large


async def test_a_damaged_file_in_a_hosts_cache_is_sent_again(shell: Any, bring: Any, project: Path) -> None:
    image = Image(includes=[project])
    await bring(image, shell)
    (damaged,) = (path for path in (shell.cache / "files").iterdir() if path.read_text().startswith("VALUE"))
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    node = await bring(image, shell)
    assert bring.lines[0].startswith("received 1 of 4 files")
    node.greet()
    assert node.run(lambda: __import__("ours").VALUE) == 1


# --- packages -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("uv_itself")
async def test_packages_of_a_local_folder_are_installed_once(
    shell: Any, bring: Any, make_wheel: Any, wheels: Path
) -> None:
    make_wheel("outer", requires=["inner>=2"])
    make_wheel("inner", "2.5")
    image = Image(pip=["outer"], pip_indexes=[str(wheels)])
    node = await bring(image, shell)
    assert bring.done == ["probe", "upload", "python", "packages", "executor"]
    node.greet()
    assert node.run(lambda: (__import__("outer").VERSION, __import__("inner").VERSION)) == ("1.0", "2.5")
    assert node.run(lambda: __import__("sys").prefix).startswith(str(shell.cache / "envs"))
    assert node.run(lambda: __import__("shutil").which("python")) == node.made.python

    again = await bring(image, shell)
    assert bring.done == ["probe", "executor"]
    assert again.made.python == node.made.python

    make_wheel("inner", "2.6")
    await bring(image, shell)
    assert [line for line in bring.lines if line.startswith("received")] == [
        f"received 1 of 2 files, {(wheels / 'inner-2.6-py3-none-any.whl').stat().st_size} bytes"
    ]


async def test_two_pools_that_want_the_same_make_it_once(shell: Any, bring: Any, make_wheel: Any, wheels: Path) -> None:
    make_wheel("shared")
    prepared = await prepare(Image(pip=["shared"], pip_indexes=[str(wheels)]))
    phases: list[list[Any]] = [[], []]

    async def one(number: int) -> None:
        await bootstrap(
            shell,
            prepared,
            pool=f"p{number}",
            machine="0",
            node=0,
            address=None,
            lease_s=1.0,
            progress=phases[number].append,
        )

    await asyncio.gather(one(0), one(1))
    made = [[phase.name for phase in told if phase.state == "finished"].count("packages") for told in phases]
    assert sorted(made) == [0, 1]


async def test_an_interrupted_environment_is_no_environment(
    shell: Any, bring: Any, make_wheel: Any, wheels: Path
) -> None:
    make_wheel("whole")
    image = Image(pip=["whole"], pip_indexes=[str(wheels)])
    node = await bring(image, shell)
    place = Path(node.made.python).parents[1]
    half = place.with_suffix(".new")
    shutil.copytree(place, half, symlinks=True)
    shutil.rmtree(place)
    (half / "lib").rename(half / "broken")
    again = await bring(image, shell)
    again.greet()
    assert again.run(lambda: __import__("whole").VERSION) == "1.0"
    assert not half.exists()


async def test_a_host_without_a_way_out_gets_its_packages_from_here(  # noqa: PLR0917
    shell: Any, bring: Any, make_wheel: Any, serve: Any, closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel("far")
    index = serve()
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    shell.environment["UV_DEFAULT_INDEX"] = f"http://127.0.0.1:{closed}/simple"
    node = await bring(Image(pip=["far==1.0"]), shell)
    assert "this host does not reach the package index: packages come from the client" in bring.lines
    node.greet()
    assert node.run(lambda: __import__("far").VERSION) == "1.0"


async def test_a_host_with_a_way_out_fetches_them_itself(shell: Any, bring: Any, make_wheel: Any, serve: Any) -> None:
    make_wheel("near")
    index = serve()
    shell.environment["UV_DEFAULT_INDEX"] = index.url
    node = await bring(Image(pip=["near"]), shell)
    assert sorted(set(index.asked), reverse=True) == ["/simple/near/", "/files/near-1.0-py3-none-any.whl"]
    assert not [line for line in bring.lines if line.startswith("received")]
    node.greet()
    assert node.run(lambda: __import__("near").VERSION) == "1.0"


async def test_a_given_interpreter_keeps_its_packages(shell: Any, bring: Any, make_wheel: Any, wheels: Path) -> None:
    make_wheel("added")
    plain = await bring(Image(python=sys.executable), shell)
    assert plain.made.python == sys.executable
    node = await bring(Image(python=sys.executable, pip=["added"], pip_indexes=[str(wheels)]), shell)
    node.greet()
    added, numpy = node.run(lambda: (__import__("added").VERSION, __import__("numpy").__file__))
    assert added == "1.0"
    assert numpy.startswith(sys.prefix)  # also where that is a virtual environment, and below it is another numpy


async def test_packages_of_plugins_are_there_and_what_the_interpreter_has_is_not_fetched(
    shell: Any, bring: Any, make_wheel: Any, wheels: Path
) -> None:
    make_wheel("brought")
    image = Image(python=sys.executable, pip_indexes=[str(wheels)])
    plain = await bring(await prepare(image, packages=[["numpy==0.1"]]), shell)
    assert plain.made.python == sys.executable
    node = await bring(await prepare(image, packages=[["numpy==0.1"], ["brought==1.0"]]), shell)
    node.greet()
    brought, numpy = node.run(lambda: (__import__("brought").VERSION, __import__("numpy").__file__))
    assert brought == "1.0"
    assert numpy.startswith(sys.prefix)


async def test_packages_that_the_user_has_there_are_not_fetched_and_are_seen_beside_those_that_are(
    shell: Any, bring: Any, make_wheel: Any, wheels: Path
) -> None:
    """As `pip install --user` installs them. They are the interpreter's for a login, and so for tasks."""
    python, minor = os.path.realpath(sys.executable), "{}.{}".format(*sys.version_info)
    mine = make_wheel("mine", "2.0")
    zipfile.ZipFile(mine).extractall(shell.home / f".local/lib/python{minor}/site-packages")
    mine.unlink()
    make_wheel("brought")
    image = Image(python=python, pip_indexes=[str(wheels)])
    plain = await bring(await prepare(image, packages=[["mine==0.1"]]), shell)
    assert plain.made.python == python
    plain.greet()
    assert plain.run(lambda: __import__("mine").VERSION) == "2.0"
    node = await bring(await prepare(image, packages=[["mine==0.1"], ["brought==1.0"]]), shell)
    node.greet()
    assert node.run(lambda: (__import__("brought").VERSION, __import__("mine").VERSION)) == ("1.0", "2.0")


# --- commands -------------------------------------------------------------------------------------------------------


async def test_commands_run_in_order_with_the_images_environment(shell: Any, bring: Any, project: Path) -> None:
    image = Image(
        includes=[project],
        env={"GREETING": "hello", "TOKEN": Secret("canary-0123456789")},
        run=['echo "$GREETING" "$TOKEN"; pwd >where', ["ours/tool"], "cat where"],
    )
    await bring(image, shell)
    assert bring.lines[1:4] == ["hello ****", "worked", str(shell.cache / "pools" / "pool-1~0" / "includes")]


async def test_failed_command_is_reported_with_the_end_of_its_output(shell: Any, bring: Any) -> None:
    with pytest.raises(BootstrapError) as caught:
        await bring(Image(run=["for i in $(seq 100); do echo line $i; done; exit 3"]), shell)
    error = caught.value
    assert (error.phase, error.exit_status) == ("run", 3)
    assert error.command == "for i in $(seq 100); do echo line $i; done; exit 3"
    assert error.log[-1] == "line 100"
    assert len(error.log) == 20
    assert "Next: run the command there by hand" in str(error)
    assert "| line 100" in str(error)
    assert error.at("gpu1", 3).node == 3
    assert str(error.at("gpu1", 3)).startswith("node 3 (gpu1): ")


async def test_a_command_may_leave_something_running(shell: Any, bring: Any) -> None:
    node = await bring(Image(run=["echo before; sleep 1000 & echo $! >sleeper"]), shell)
    node.greet()
    sleeper = int((shell.cache / "pools" / "pool-1~0" / "includes" / "sleeper").read_text())
    os.kill(sleeper, 9)
    assert bring.lines[0] == "before"


# --- what goes wrong --------------------------------------------------------------------------------------------------


async def test_a_package_that_does_not_exist(shell: Any, bring: Any, wheels: Path) -> None:
    with pytest.raises(BootstrapError) as caught:
        await bring(Image(pip=["no-such-thing"], pip_indexes=[str(wheels)]), shell)
    error = caught.value
    assert error.phase == "packages"
    assert error.systematic  # another machine would not help
    assert "check the names and versions of the packages" in error.hint
    assert any("no-such-thing" in line for line in error.log)
    assert [path.suffix for path in (shell.cache / "envs").iterdir()] == [".lock"]
    assert processes_of(shell.home) == []


async def test_a_package_that_does_not_exist_for_a_host_that_looks_itself(shell: Any, bring: Any, serve: Any) -> None:
    shell.environment["UV_DEFAULT_INDEX"] = serve().url
    with pytest.raises(BootstrapError) as caught:
        await bring(Image(pip=["no-such-thing"]), shell)
    assert caught.value.phase == "packages"
    assert caught.value.exit_status == 1
    assert (caught.value.command or "").startswith("uv pip install ")
    assert caught.value.systematic


@pytest.fixture
def closed() -> Iterator[int]:
    """A port at which nobody listens, and which nobody else is given meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


@pytest.fixture
def hanging() -> Iterator[str]:
    """An index that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


async def test_an_index_that_hangs_ends_at_uvs_patience(shell: Any, bring: Any, hanging: str) -> None:
    shell.environment |= {"UV_DEFAULT_INDEX": hanging, "UV_HTTP_TIMEOUT": "1", "UV_HTTP_RETRIES": "0"}
    with pytest.raises(BootstrapError) as caught:
        await bring(Image(pip=["anything"]), shell)
    assert caught.value.phase == "packages"
    assert "the index does not answer" in caught.value.hint


async def test_an_index_that_hangs_ends_at_the_images_timeout(
    shell: Any, bring: Any, hanging: str, make_wheel: Any
) -> None:
    await bring(Image(pip=["warm"], pip_indexes=[str(make_wheel("warm").parent)]), shell)
    bring.nodes[0].greet()
    bring.nodes[0].stop()
    shell.environment |= {"UV_DEFAULT_INDEX": hanging}
    for timeout_s in (7, 70):  # a busy computer may not have come so far within the first
        with pytest.raises(BootstrapError, match=r"Image\(bootstrap_timeout=\.\.\.\)") as caught:
            await bring(Image(pip=["anything"], bootstrap_timeout=timeout_s), shell)
        if caught.value.phase == "packages":
            break
    assert caught.value.phase == "packages"
    assert f"it took longer than {timeout_s} s" in str(caught.value)
    assert processes_of(shell.home) == []


async def test_hanging_command_is_reported_with_its_output(shell: Any, bring: Any) -> None:
    await bring(Image(), shell)
    bring.nodes[0].greet()
    bring.nodes[0].stop()
    for timeout_s in (5, 50):  # a busy computer may not have come so far within the first
        with pytest.raises(BootstrapError) as caught:
            await bring(Image(run=["echo waiting for nobody; sleep 1000"], bootstrap_timeout=timeout_s), shell)
        if caught.value.log:
            break
    assert caught.value.phase == "run"
    assert caught.value.log == ("waiting for nobody",)
    assert processes_of(shell.home) == []


async def test_a_cancelled_bootstrap_ends_everything_on_the_host(shell: Any) -> None:
    prepared = await prepare(Image(run=["trap '' TERM; (setsid sleep 1000 &); echo started; sleep 1000"]))
    started = asyncio.Event()

    def told(phase: Any) -> None:
        if phase.text == "started":
            started.set()

    running = asyncio.ensure_future(
        bootstrap(shell, prepared, pool="p", machine="0", node=0, address=None, lease_s=20, progress=told)
    )
    await started.wait()
    # One that is just becoming `sleep` has no words for a moment.
    while len([line for line in processes_of(shell.home) if "sleep 1000" in line]) < 2:
        await asyncio.sleep(0.01)
    installer = os.pidfd_open(shell.pids[-1])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(select.select, [installer], [], [], 60)
    os.close(installer)
    assert processes_of(shell.home) == []
    assert list((shell.cache / "pools").iterdir()) == []


async def test_a_killed_bootstrap_is_an_error_and_the_next_one_works(shell: Any, bring: Any) -> None:
    """By the kernel, for memory, say: its command goes on, and its successor ends what is in its way."""
    image = Image(run=["test -e ../../../second || kill -9 $PPID; echo through"])
    with pytest.raises(BootstrapError) as caught:
        await bring(image, shell, name="same")
    assert "the installer ended with" in str(caught.value)
    assert "memory" in caught.value.hint
    (shell.cache / "second").touch()
    await bring(image, shell, name="same")
    assert "through" in bring.lines


async def test_a_client_that_comes_back_ends_its_earlier_try(shell: Any, bring: Any) -> None:
    prepared = await prepare(Image(run=["echo started; sleep 1000"]))
    started = asyncio.Event()
    earlier = asyncio.ensure_future(
        bootstrap(shell, prepared, pool="pool", machine="same", node=0, address=None, lease_s=20,
                  progress=lambda phase: started.set() if phase.text == "started" else None)
    )  # fmt: skip
    await started.wait()
    await bring(Image(), shell, name="same")
    with pytest.raises(BootstrapError, match="ended by signal"):
        await earlier


@pytest.mark.usefixtures("uv_itself")  # which does not fit
async def test_a_disk_that_is_full(tmp_path: Path, shell: Any, bring: Any, make_wheel: Any, wheels: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can make a small disk")
    try:
        small = type(shell)(disk / "home")
        await bring(Image(), small)
        large = tmp_path / "large"
        large.mkdir()
        (large / "data.bin").write_bytes(os.urandom(11 << 20))
        with pytest.raises(BootstrapError) as caught:
            await bring(Image(includes=[large]), small)
        assert caught.value.phase == "files"
        assert "free space on that disk" in caught.value.hint
        make_wheel("anything")
        with pytest.raises(BootstrapError) as caught:
            await bring(Image(pip=["anything"], pip_indexes=[str(wheels)]), small)
        assert caught.value.phase == "upload"
        assert "free space on that disk" in caught.value.hint
        for node in bring.nodes:
            node.greet()
            node.stop()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_a_cache_that_cannot_be_written(tmp_path: Path, shell: Any, bring: Any) -> None:
    (tmp_path / "file").touch()
    shell.environment["OUTRIDER_CACHE"] = str(tmp_path / "file" / "cache")
    with pytest.raises(BootstrapError) as caught:
        await bring(Image(), shell)
    assert caught.value.phase == "probe"
    assert "OUTRIDER_CACHE" in caught.value.hint
