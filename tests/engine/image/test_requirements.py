"""Requirements, files of them and locks become one text."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outrider import Image, Secret, SpecError
from outrider.engine.image import requirements
from outrider.engine.image.cache import client_cache
from outrider.engine.image.requirements import Requirements, Uv

pytestmark = pytest.mark.anyio


async def read(**options: Any) -> Requirements:
    found = await requirements.read(Image(**options), Uv.if_installed())
    assert found is not None
    return found


async def test_an_image_without_packages_needs_none() -> None:
    assert await requirements.read(Image(), None) is None


async def test_a_file_is_read_with_all_that_it_refers_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "canary-0123")
    (tmp_path / "sub").mkdir()
    (tmp_path / "main.txt").write_text(
        "# a comment\n-r sub/more.txt  # another\n--constraint=sub/limits.txt\nnumpy>=2, \\\n    <3\n"
        "private @ https://me:${A_TOKEN}@host/private#egg=private\n\n--pre\n"
    )
    (tmp_path / "sub" / "more.txt").write_text("six\n-r ../main.txt\n-c limits.txt\n")
    (tmp_path / "sub" / "limits.txt").write_text("six<2\n")
    found = await read(pip=["idna"], requirements=tmp_path / "main.txt")
    assert found.text.splitlines() == [
        "idna", "six", "numpy>=2,      <3",
        "private @ https://me:${A_TOKEN}@host/private#egg=private", "--pre",
    ]  # fmt: skip
    assert found.constraints == "six<2\n"
    assert found.variables == {"A_TOKEN": "canary-0123"}
    assert not found.is_local


async def test_packages_of_plugins_have_the_versions_that_constraints_allow(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("numpy\n-c limits.txt\n")
    (tmp_path / "limits.txt").write_text("Torch==2.3\njax<1\n")
    image = Image(requirements=str(tmp_path / "r.txt"))
    found = await requirements.read(image, None, [["torch==2.4"], ["jax[cuda12]==0.4"], ["keras==3"], ["numpy==2"]])
    assert found is not None
    assert found.of_plugins == ("torch", "jax[cuda12]", "keras==3")


HUGGING_FACE = ["transformers==5.1", "accelerate==1.2 ; python_version > '3'", "huggingface-hub==1.0", "tokens>=3"]


@pytest.mark.parametrize("decided", ["pip", "constraint"])
async def test_where_the_image_decides_on_one_of_a_plugins_packages_the_others_go_with_it(
    tmp_path: Path, decided: str
) -> None:
    """transformers asks for a range of huggingface-hub: the version that is here may not go with the image's."""
    (tmp_path / "limits.txt").write_text("huggingface-hub==0.20\n")
    (tmp_path / "r.txt").write_text("x\n-c limits.txt\n")
    wanted = {"pip": ["huggingface_hub==0.20"]} if decided == "pip" else {"requirements": str(tmp_path / "r.txt")}
    of_plugins = [["torch==2.4"], HUGGING_FACE, ["huggingface-hub==1.0"]]
    found = await requirements.read(Image(**wanted), None, of_plugins)
    assert found is not None
    hub = () if decided == "pip" else ("huggingface-hub",)
    free = ("transformers", "accelerate; python_version > '3'", *hub, "tokens>=3")
    assert found.of_plugins == ("torch==2.4", *free)


async def test_plugins_have_the_versions_that_are_here_where_the_image_decides_on_none_of_theirs() -> None:
    found = await requirements.read(Image(pip=["numpy==2"]), None, [["torch==2.4"], HUGGING_FACE])
    assert found is not None
    assert found.of_plugins == ("torch==2.4", *HUGGING_FACE)


@pytest.mark.parametrize(
    ("named", "of_plugin"),
    [("tensorflow==2.16", "tensorflow-cpu==2.18"), ("tensorflow-cpu==2.16", "tensorflow[and-cuda]==2.18")],
)
async def test_a_plugin_puts_no_other_build_over_the_images_own(named: str, of_plugin: str) -> None:
    found = await requirements.read(Image(pip=[named]), None, [[of_plugin]])
    assert found is not None
    assert (found.text, found.of_plugins) == (f"{named}\n", ())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-e .", r"Image\(includes=\[...\]\)"),
        ("--editable ./pkg", r"Image\(includes=\[...\]\)"),
        ("./pkg", r"Image\(includes=\[...\]\)"),
        ("pkg @ file:///src/pkg", r"Image\(includes=\[...\]\)"),
        ("./missing-1.0-py3-none-any.whl", "there is no "),
        ("x @ https://${NOT_SET_AT_ALL}/x", "NOT_SET_AT_ALL"),
        ("-r missing.txt", "cannot be read"),
    ],
)
async def test_requirements_that_cannot_be_sent_are_refused(tmp_path: Path, line: str, why: str) -> None:
    (tmp_path / "r.txt").write_text(line)
    with pytest.raises(SpecError, match=why):
        await read(requirements=tmp_path / "r.txt")


async def test_wheels_and_folders_of_this_computer_make_it_local(make_wheel: Any, wheels: Path, tmp_path: Path) -> None:
    wheel = make_wheel("ours")
    (tmp_path / "r.txt").write_text(f"wheels/{wheel.name} ; python_version > '3'\n-f wheels\n")
    found = await read(requirements=tmp_path / "r.txt")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    kept = client_cache() / "wheels" / digest / wheel.name
    assert found.text == f"ours @ {kept.as_uri()} ; python_version > '3'\n"
    assert (found.wheels, found.folders, found.only_folders) == ((digest,), (wheels,), False)
    assert found.listed == ((wheel.name, wheel.stat().st_size),)
    assert found.is_local


async def test_indexes_are_urls_or_folders(wheels: Path) -> None:
    secret = Secret("https://me:canary-0123@host/simple")
    found = await read(pip=["x"], pip_indexes=[secret, wheels.as_uri()])
    assert (found.urls, found.folders, found.only_folders) == ((secret,), (wheels,), False)
    assert (await read(pip=["x"], pip_indexes=[str(wheels)])).only_folders
    with pytest.raises(SpecError, match="neither a URL nor a folder"):
        await read(pip=["x"], pip_indexes=["nowhere"])


async def test_identity_of_environments(make_wheel: Any, wheels: Path) -> None:
    def identity(**changes: Any) -> str:
        return repr(
            Requirements(**{"text": "x\n", "urls": (Secret("https://me:one@host/simple"),), **changes}).identity()
        )

    base = identity()
    assert "one" not in base
    assert identity(urls=(Secret("https://me:two@host/simple"),)) == base  # a new password is not another environment
    assert identity(urls=("https://host/other",)) != base
    assert identity(text="y\n") != base
    before = (await read(pip=["x"], pip_indexes=[str(wheels)])).identity()
    make_wheel("new")
    assert (await read(pip=["x"], pip_indexes=[str(wheels)])).identity() != before


async def test_a_uv_lock_is_exactly_what_is_installed(make_wheel: Any, wheels: Path, tmp_path: Path) -> None:
    make_wheel("direct", requires=["indirect"])
    exact = make_wheel("indirect")
    make_wheel("developing")
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "project"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["direct"]\n'
        '[dependency-groups]\ndev = ["developing"]\n'
        f'[[tool.uv.index]]\nname = "wheels"\nurl = "{wheels}"\nformat = "flat"\ndefault = true\n'
    )
    uv = Uv.if_installed()
    assert uv is not None
    subprocess.run([uv.path, "lock", "--quiet", "--directory", project], check=True)
    make_wheel("indirect", "2.0")  # newer than the lock
    found = await read(lock=project)
    digest = hashlib.sha256(exact.read_bytes()).hexdigest()
    assert [line.split()[0] for line in found.text.splitlines()] == ["direct==1.0", "indirect==1.0"]
    assert f"--hash=sha256:{digest}" in found.text
    assert found.folders == (wheels,)


async def test_a_pylock_is_read(tmp_path: Path) -> None:
    lock = tmp_path / "pylock.toml"
    lock.write_text(
        'lock-version = "1.0"\ncreated-by = "test"\n'
        '[[packages]]\nname = "a"\nversion = "1.0"\nmarker = "os_name == \'posix\'"\nindex = "https://host/simple"\n'
        'wheels = [{ url = "https://host/a.whl", hashes = { sha256 = "aa" } }]\n'
        '[[packages]]\nname = "b"\nvcs = { type = "git", url = "https://host/b.git", commit-id = "c0ffee" }\n'
    )
    found = await read(lock=lock)
    assert found.text.splitlines() == [
        "a==1.0 ; os_name == 'posix' --hash=sha256:aa",
        "b @ git+https://host/b.git@c0ffee",
    ]
    assert found.urls == ("https://host/simple",)
    known = Secret("https://me:canary-0123@host/simple/")
    assert (await read(lock=lock, pip_indexes=[known])).urls == (known,)


@pytest.mark.parametrize(
    ("text", "why"),
    [("not toml [", "not a lock"), ('[[packages]]\nname = "a"\ndirectory = {path = "."}', "by includes=")],
)
async def test_a_lock_that_cannot_be_sent_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "pylock.toml").write_text(text)
    with pytest.raises(SpecError, match=why):
        await read(lock=tmp_path / "pylock.toml")


async def test_a_wheel_of_this_computer_stays_what_it_was_for_the_pools_later_machines(make_wheel: Any) -> None:
    wheel = make_wheel("ours")
    whole = wheel.read_bytes()
    wanted = await read(pip=[str(wheel)])
    before = wanted.identity()
    wheel.unlink()
    assert wanted.identity() == before
    kept = Path(wanted.text.partition("file://")[2].strip())
    assert (kept.name, kept.read_bytes()) == (wheel.name, whole)
    wheel.write_bytes(whole + b"!")
    assert (await read(pip=[str(wheel)])).identity() != before
