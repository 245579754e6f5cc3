"""What a host is, which Python it uses, and what its failures mean: decided without one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider import BootstrapError, Image, Secret
from outrider.engine.image import install_plan
from outrider.engine.image.bootstrap import bootstrap
from outrider.engine.image.commands import CommandResult
from outrider.engine.image.hints import hint_for, no_shell
from outrider.engine.image.install_plan import HostFacts, Prepared, Python, PythonChoice, choose_python, prepare
from outrider.engine.image.wheels import uv_target, wheel_target
from outrider.engine.node.daemon import parse_gpus as parse_devices

pytestmark = pytest.mark.anyio

PY39 = Python("3.9.2", "cpython", "/usr/bin/python3")
PY311 = Python("3.11.2", "cpython", "/usr/bin/python3.11")
PYPY = Python("3.11.9", "pypy", "/usr/bin/pypy3")


def host(*pythons: Python, **changes: Any) -> HostFacts:
    facts = {
        "system": "Linux", "machine": "x86_64", "libc": "glibc 2.36", "uid": 1000, "cache": "/home/u/.cache/outrider",
        "refused": "", "exposed": None, "free_bytes": 10**9, "present": frozenset(), "pythons": pythons,
    }  # fmt: skip
    return HostFacts(**{**facts, **changes})  # type: ignore[arg-type]


async def prepared(uv: bool = True, packages: Sequence[Sequence[str]] = (), **options: Any) -> Prepared:
    """``packages``: of each plugin."""
    made = await prepare(Image(**options), packages=packages, python="3.11.7")
    from dataclasses import replace

    return made if uv else replace(made, uv=None)


# --- the probe ------------------------------------------------------------------------------------------------------


def probed(*arguments: str, **environment: str) -> bytes:
    argv = install_plan.probe_arguments("3.11", *(arguments or ("",)))
    env = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(argv, input=install_plan.PROBE_SCRIPT, env=env, capture_output=True, check=True).stdout


def test_the_probe_finds_what_is_there(tmp_path: Path) -> None:
    found = install_plan.parse_probe(b"noise of a login\n" + probed(HOME=str(tmp_path)))
    assert found.system == "Linux"
    assert found.machine == os.uname().machine
    assert found.cache == str(tmp_path / ".cache" / "outrider")
    assert found.refused == ""
    assert (found.free_bytes or 0) > 0
    assert found.pythons[0].minor == "3.11"


def test_the_cache_is_where_the_host_says(tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s a "place" of $HOME'
    assert install_plan.parse_probe(probed(HOME="/nowhere", OUTRIDER_CACHE=str(odd))).cache == str(odd)
    assert install_plan.parse_probe(probed(HOME="/nowhere", XDG_CACHE_HOME=str(tmp_path))).cache == str(
        tmp_path / "outrider"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"\x1b]0;gpu1\x07", b""), (b"", b"bye\n"), (b"Welcome\nend\n", b"end of session\n"), (b"%", b"logout")],
)
def test_what_a_login_prints_around_the_probe_is_skipped(tmp_path: Path, before: bytes, after: bytes) -> None:
    argv = install_plan.probe_arguments("3.11", sys.executable)
    env = os.environ | {"OUTRIDER_CACHE": str(tmp_path)}
    output = subprocess.run(argv, input=install_plan.PROBE_SCRIPT, env=env, stdout=-1, check=True).stdout
    assert install_plan.parse_probe(before + output + after) == install_plan.parse_probe(output)


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "step"),
    [
        (b"This account is currently not available.\n", b"", 1, "login shell"),
        (b"", b"/usr/sbin/nologin", 1, "login shell"),
        (b"Welcome\n", b"", 0, "forced command"),
        (b"", b"only git commands are allowed: not allowed\n", 128, "forced command"),
        (b"", b"", 1, "~/.bashrc"),
        (b"", b"", 0, "~/.bashrc"),
        (b"outrider-probe 1\n", b"sh: fork: Cannot allocate memory", 2, ""),
    ],
)
def test_login_that_runs_no_shell_has_its_next_step(stdout: bytes, stderr: bytes, status: int, step: str) -> None:
    hint = no_shell(stdout, stderr, status)
    assert step in hint
    assert bool(step) == bool(hint)


def test_incomplete_probe_output_is_refused() -> None:
    for output in (b"", b"This account is currently not available.\n", b"outrider-probe 1\nsystem Linux x86_64\n"):
        with pytest.raises(ValueError, match="did not run to its end"):
            install_plan.parse_probe(output)


def test_a_probe_that_says_what_no_host_is_changes_no_decision() -> None:
    found = install_plan.parse_probe(
        b"outrider-probe 1\nlibc glibc two\npython 3 cpython /bin/x\npython 3.11.1 cpython\nend\n"
    )
    assert (found.libc, found.pythons) == ("other", ())
    for line in (b"user me", b"exposed 0"):
        with pytest.raises(ValueError, match=r"invalid literal|not enough values"):
            install_plan.parse_probe(b"outrider-probe 1\n" + line + b"\nend\n")


def test_each_python_is_asked_for_the_packages_of_plugins(tmp_path: Path) -> None:
    argv = install_plan.probe_arguments("3.11", sys.executable, ["cloudpickle", "no-such-package", "typing-extensions"])
    env = os.environ | {"OUTRIDER_CACHE": str(tmp_path)}
    done = subprocess.run(argv, input=install_plan.PROBE_SCRIPT, env=env, stdout=-1, check=True)
    (python,) = install_plan.parse_probe(done.stdout).pythons
    assert (python.is_requested, python.packages) == (True, {"cloudpickle", "typing-extensions"})


# --- which Python ---------------------------------------------------------------------------------------------------


async def test_the_hosts_own_python_is_used_where_it_fits() -> None:
    assert choose_python(await prepared(), host(PY311, PY39)) == PythonChoice(PY311, PY311.path, environment=False)


async def test_packages_make_an_environment_of_it(wheels: Path) -> None:
    image = await prepared(pip=["x"], pip_indexes=[str(wheels)])
    chosen = choose_python(image, host(PY311))
    assert chosen == PythonChoice(PY311, PY311.path, environment=True, requirements=image.requirements)


async def test_uv_brings_a_python_where_the_hosts_does_not_fit() -> None:
    chosen = choose_python(await prepared(), host(PY39))
    assert chosen == PythonChoice(PY39, "3.11", environment=True)
    assert choose_python(await prepared(), host()) == PythonChoice(None, "3.11", environment=True)
    exactly = choose_python(await prepared(python="3.11.9"), host(PY311))
    assert exactly == PythonChoice(PY311, "3.11.9", environment=True)


@pytest.mark.parametrize(
    ("pythons", "why"),
    [((), "it has no python3"), ((PY39,), "its Python is 3.9.2"), ((PYPY,), "its Python is pypy 3.11.9")],
)
async def test_host_without_a_fitting_python_is_an_error_with_a_next_step(pythons: Any, why: str) -> None:
    with pytest.raises(BootstrapError, match=why) as caught:
        choose_python(await prepared(uv=False), host(*pythons))
    assert "nstall Python 3.11 there" in caught.value.hint or "install 3.11 there" in caught.value.hint
    assert "pip install uv" in caught.value.hint
    assert (caught.value.phase, caught.value.systematic) == ("python", False)


TORCH = "torch==2.13.0"


def text(choice: PythonChoice) -> str | None:
    return None if choice.requirements is None else choice.requirements.text


async def test_packages_of_plugins_are_installed_beside_what_the_host_has() -> None:
    image = await prepared(packages=[[TORCH], ["keras==3.0"]])
    chosen = choose_python(image, host(PY311._replace(packages=frozenset({"keras"}))))
    assert (chosen.environment, chosen.isolated, text(chosen)) == (True, False, f"{TORCH}\n")
    whole = PY311._replace(packages=frozenset({"keras", "torch"}))
    assert choose_python(image, host(whole)) == PythonChoice(whole, whole.path, environment=False)
    assert text(choose_python(image, host(PY39))) == f"{TORCH}\nkeras==3.0\n"


async def test_an_images_own_packages_are_an_environment_that_sees_no_others() -> None:
    image = await prepared(packages=[[TORCH], ["keras==3.0"]], pip=["x", "Torch>=2"])
    there = PY311._replace(packages=frozenset({"keras", "torch"}))
    chosen = choose_python(image, host(there))
    assert (chosen.environment, chosen.isolated, text(chosen)) == (True, True, "x\nTorch>=2\nkeras==3.0\n")


async def test_a_named_interpreter_gets_the_packages_of_plugins_that_it_lacks() -> None:
    named = Python("3.11.4", "cpython", "/opt/python3", is_requested=True, packages=frozenset({"torch"}))
    image = await prepared(python="/opt/python3", packages=[[TORCH]])
    assert choose_python(image, host(named)) == PythonChoice(named, named.path, environment=False, isolated=False)
    lacking = named._replace(packages=frozenset())
    assert text(choose_python(image, host(lacking))) == f"{TORCH}\n"
    with pytest.raises(BootstrapError, match=r"/opt/python3 lacks packages that a plugin needs: torch==2\.13\.0"):
        choose_python(await prepared(uv=False, python="/opt/python3", packages=[[TORCH]]), host(lacking))


async def test_requirements_with_hashes_name_everything(tmp_path: Path) -> None:
    (tmp_path / "hashed.txt").write_text(f"x==1 --hash=sha256:{'0' * 64}\n")
    image = await prepared(packages=[[TORCH]], requirements=tmp_path / "hashed.txt")
    assert "torch" not in (text(choose_python(image, host(PY311))) or "torch")


async def test_a_named_interpreter_is_that_one_or_an_error() -> None:
    image = await prepared(python="/opt/python3")
    named = Python("3.11.4", "cpython", "/opt/python3", is_requested=True)
    assert choose_python(image, host(named)) == PythonChoice(named, named.path, environment=False, isolated=False)
    older = Python("3.10.4", "cpython", "/opt/python3", is_requested=True)
    with pytest.raises(BootstrapError, match=r"its Python is 3\.10\.4") as caught:
        choose_python(image, host(older))
    assert caught.value.hint == "name a Python 3.11 there in Image(python=...), or leave python out"
    with pytest.raises(BootstrapError, match=r"'/opt/python3'\) is not a Python there"):
        choose_python(image, host(PY311))
    with pytest.raises(BootstrapError, match=r"its Python is 3\.12\.0"):
        choose_python(image, host(named._replace(version="3.12.0")))


# --- the plan -------------------------------------------------------------------------------------------------------


async def test_environments_differ_by_what_they_are_made_of(wheels: Path) -> None:
    def digest(made: Prepared, there: HostFacts) -> str:
        found = install_plan.environment(made, there, choose_python(made, there), "uv/0/uv")
        assert found is not None
        return str(found["digest"])

    base = await prepared(pip=["x"])
    assert digest(base, host(PY311)) == digest(await prepared(pip=["x"]), host(PY311, PY39))
    others = [
        digest(await prepared(pip=["y"]), host(PY311)),
        digest(await prepared(pip=["x"], pip_indexes=["https://host/simple"]), host(PY311)),
        digest(base, host(PY311._replace(version="3.11.9"))),
        digest(base, host(PY311._replace(path="/opt/python3.11"))),
        digest(base, host(PY311, libc="glibc 2.28")),
        digest(base, host(PY311, machine="aarch64")),
    ]
    assert len({digest(base, host(PY311)), *others}) == 7


@pytest.mark.parametrize("password", ["s3kr#t99", "s3kr?t99", "s3kr[t99", "s3kr@t99"])
def test_a_password_that_should_have_been_quoted_is_hidden_all_the_same(password: str) -> None:
    assert password in install_plan._passwords(f"https://ci:{password}@host/simple")


async def test_passwords_are_in_uvs_environment_and_hidden_everywhere() -> None:
    made = await prepared(
        pip=["x"], pip_indexes=[Secret("https://me:canary%2F1@host/simple")], env={"TOKEN": Secret("canary-token")}
    )
    there = host(PY311)
    environment = install_plan.environment(made, there, choose_python(made, there), "uv/0/uv")
    assert environment is not None
    assert environment.pop("uv_env")["UV_INDEX"] == "https://me:canary%2F1@host/simple"
    assert "canary" not in json.dumps(environment)
    assert {"https://me:canary%2F1@host/simple", "canary%2F1", "canary/1", "canary-token"} <= set(made.hidden)


def test_platforms_as_uv_names_them() -> None:
    assert wheel_target("x86_64", "glibc 2.36") == "x86_64-manylinux_2_36"
    assert wheel_target("aarch64", "glibc 2.99") == "aarch64-manylinux_2_40"
    assert wheel_target("x86_64", "other") == "x86_64-unknown-linux-musl"
    assert uv_target("x86_64", "glibc 2.36") == "x86_64-manylinux_2_17"
    assert uv_target("x86_64", "other") == "x86_64-unknown-linux-musl"


# --- what it means --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "output", "next_step"),
    [
        ("packages", "error: Failed to write: No space left on device (os error 28)", "free space on that disk"),
        ("run", "cp: error writing 'x': No space left on device", "free space on that disk"),
        ("apt", "E: Unable to locate package ffmpge", "check the names in Image(apt=...)"),
        ("apt", "E: Could not get lock /var/lib/dpkg/lock-frontend", "another installer runs"),
        ("apt", "W: Temporary failure resolving 'deb.debian.org'", "Debian mirror"),
        ("packages", "Because x was not found in the package registry", "check the names and versions"),
        ("packages", "  cause: HTTP status client error (401 Unauthorized)", "give the index its password"),
        ("packages", "  cause: operation timed out", "the index does not answer"),
        ("packages", "  cause: dns error", "Image(offline=True)"),
        ("packages", "error: command '/usr/bin/gcc' failed", "build-essential"),
        ("executor", "ModuleNotFoundError: No module named 'asyncio'", "install the package python3"),
        ("run", "E: Unable to locate package x", "run the command there by hand"),
        ("upload", "tar: not found", "whether tar and gzip are there"),
        ("volumes", "a dead mount at /data cannot be taken away: target is busy", "choose another mount="),
        ("volumes", "another pool has been busy with /data for minutes", "what that pool waits for"),
        ("volumes", "/data is /etc there, and that is among the system's own folders", "name another"),
    ],
)
def test_output_of_programs_becomes_a_next_step(phase: str, output: str, next_step: str) -> None:
    assert next_step in hint_for(phase, ["before", output, "after"], exit_status=1).text


def test_timeout_and_kill_have_advice_too() -> None:
    assert "bootstrap_timeout" in hint_for("packages", ["Resolved 3 packages"], timed_out=True).text
    assert "bootstrap_timeout" in hint_for("run", [], timed_out=True).text
    assert "memory" in hint_for("run", [], exit_status=137).text
    assert "memory" in hint_for("executor", ["the installer ended with signal KILL"]).text


# --- hosts that one does not have at hand ---------------------------------------------------------------------------


class Scripted:
    """Implements `CommandRunner` for a host that answers as it is told to."""

    def __init__(self, *answers: tuple[str, CommandResult | Exception | None]) -> None:
        self.answers = answers

    async def run(self, argv: Any, *, stdin: Any = b"", output: Any = None) -> CommandResult:
        for part, answer in self.answers:
            if part in " ".join(argv):
                if answer is None:
                    await asyncio.Event().wait()
                if isinstance(answer, Exception):
                    raise answer
                return answer  # type: ignore[return-value]
        raise AssertionError(f"nobody expected {argv}")


def answers(text: str, status: int | None = 0, errors: str = "") -> CommandResult:
    return CommandResult(status, None, text.encode(), errors.encode())


NO_PYTHON = "outrider-probe 1\nsystem Linux x86_64\nlibc glibc 2.36\nuser 0\ncache /c\nfree 9999999\nend\n"


async def failure(shell: Scripted, **options: Any) -> BootstrapError:
    made = await prepare(Image(**options))
    with pytest.raises(BootstrapError) as caught:
        await bootstrap(shell, made, pool="p", machine="m", node=0, address=None, lease_s=9)
    return caught.value


async def test_a_host_without_python_that_uv_cannot_bring_one_to() -> None:
    refused = answers("", 2, "error: Failed to download cpython\n  cause: dns error")
    error = await failure(Scripted(("sh -s", answers(NO_PYTHON)), ("python install", refused), ("sh -c", answers(""))))
    assert error.phase == "python"
    assert error.hint.startswith("install Python 3.11 there, or in the image of a container")
    assert error.command == "uv python install --no-bin 3.11"
    assert "dns error" in error.log[-1]


async def test_a_host_that_is_no_linux() -> None:
    error = await failure(Scripted(("sh -s", answers(NO_PYTHON.replace("Linux x86_64", "Darwin arm64")))))
    assert "the host's system is Darwin" in str(error)


async def test_a_user_without_a_shell() -> None:
    error = await failure(Scripted(("sh -s", answers("This account is currently not available.\n", 1))))
    assert error.phase == "probe"
    assert error.log == ("This account is currently not available.",)


async def test_a_host_without_tar() -> None:
    error = await failure(Scripted(("sh -s", answers(NO_PYTHON)), ("sh -c", answers("", 127, "sh: tar: not found"))))
    assert error.phase == "upload"
    assert "tar and gzip" in error.hint


async def test_a_host_that_does_not_answer_the_probe() -> None:
    error = await failure(Scripted(("sh -s", None)), bootstrap_timeout=0.2)
    assert error.phase == "probe"
    assert "it took longer than 0.2 s" in str(error)


async def test_a_connection_that_dies_is_no_fault_of_the_image() -> None:
    with pytest.raises(ConnectionError):
        await bootstrap(
            Scripted(("sh -s", ConnectionResetError("lost"))),
            await prepare(Image()), pool="p", machine="m", node=0, address=None, lease_s=9,
        )  # fmt: skip


def test_gpus_are_read_as_cuda_shows_them() -> None:
    table = "0, GPU-aa, NVIDIA H200, 143771\nsome warning\n1, GPU-bb, NVIDIA GB10, [N/A]\n"
    assert parse_devices(table) == [("H200", 140.4), ("GB10", 0.0)]
    assert parse_devices(table, "1") == [("GB10", 0.0)]
    assert parse_devices(table, "GPU-b,7,0") == [("GB10", 0.0)]
    assert parse_devices(table, "") == []
