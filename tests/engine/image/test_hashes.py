"""A file that has none of the user's hashes is installed nowhere: not by a host, and not from this computer."""

from __future__ import annotations

import hashlib
import re
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import BootstrapError, Image, SpecError
from outrider.engine.image import requirements
from outrider.engine.image import wheels as wheels_
from outrider.engine.image.requirements import Hash, Uv, hashes_by_package, name_of
from outrider.engine.image.wheels import Selection, WheelCache

pytestmark = pytest.mark.anyio

X86, ARM = "x86_64-manylinux_2_36", "aarch64-manylinux_2_36"


@pytest.fixture(autouse=True)
def fresh_uv_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))


async def select(target: str = X86, **options: Any) -> Selection:
    uv = Uv.if_installed()
    assert uv is not None
    wanted = await requirements.read(Image(**options), uv)
    assert wanted is not None
    return await WheelCache().select(uv, wanted, target, "3.11")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def replaced(wheel: Path) -> str:
    """Another file of the same name and version takes the wheel's place; returns its SHA-256."""
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("foreign.py", "")
    return sha256(wheel)


def file(folder: Path, *lines: str) -> Path:
    path = folder / "requirements.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def pylock(folder: Path, *packages: str) -> Path:
    path = folder / "pylock.toml"
    path.write_text('lock-version = "1.0"\ncreated-by = "test"\n' + "".join(packages))
    return path


def locked(wheel: Path, name: str = "", *, algorithm: str = "sha256") -> str:
    package, version = wheel.name.split("-")[:2]
    digest = hashlib.new(algorithm, wheel.read_bytes()).hexdigest()
    return (
        f'[[packages]]\nname = "{package}"\nversion = "{version}"\n'
        f'wheels = [{{ name = "{name or wheel.name}", url = "https://host/{name or wheel.name}", '
        f'hashes = {{ {algorithm} = "{digest}" }} }}]\n'
    )


# --- what this computer fetches for hosts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [("lock", "index", X86), ("lock", "folder", ARM), ("requirements", "index", ARM), ("constraints", "folder", X86)],
    ids=lambda case: "-".join(case[:2]),
)
async def test_a_foreign_wheel_of_the_same_version_is_refused(
    make_wheel: Any, wheels: Path, serve: Any, tmp_path: Path, case: tuple[str, str, str]
) -> None:
    given_as, where, target = case
    wheel = make_wheel("top")
    right, line = sha256(wheel), f"top==1.0 --hash=sha256:{sha256(wheel)}"
    options: dict[str, Any] = {"lock": pylock(tmp_path, locked(wheel))}
    if given_as == "requirements":
        options = {"requirements": file(tmp_path, line)}
    elif given_as == "constraints":
        (tmp_path / "c.txt").write_text(line)
        options = {"requirements": file(tmp_path, "top", "-c c.txt")}
    options["pip_indexes"] = [serve().url if where == "index" else str(wheels)]
    (found,) = (await select(target, **options)).wheels
    assert found.sha256 == right
    foreign = replaced(wheel)
    with pytest.raises(BootstrapError) as caught:
        await select(target, **options)
    error = str(caught.value)
    assert caught.value.systematic
    assert caught.value.phase == "packages"
    for fact in ("found for top", wheel.name, f"sha256:{foreign}", f"sha256:{right}", "pip_indexes", "lock it again"):
        assert fact in error


async def test_of_several_builds_of_a_version_the_one_with_the_hash_is_taken(
    make_wheel: Any, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel("top")
    lock = pylock(tmp_path, locked(wheel))
    make_wheel("top", tag="2-py3-none-any")  # listed first, and not locked
    monkeypatch.setenv("UV_DEFAULT_INDEX", serve().url)
    (found,) = (await select(lock=lock)).wheels
    assert found.name == wheel.name


@pytest.mark.parametrize("has_index_hashes", [True, False])
async def test_other_algorithms_count_as_well(
    make_wheel: Any, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_index_hashes: bool
) -> None:
    wheel = make_wheel("top")
    monkeypatch.setenv("UV_DEFAULT_INDEX", serve(hashes=has_index_hashes).url)
    lock = pylock(tmp_path, locked(wheel, algorithm="sha512"))
    assert len((await select(lock=lock)).wheels) == 1
    replaced(wheel)
    with pytest.raises(BootstrapError, match=r"the image's lock or requirements have sha512:[0-9a-f]{128} for it"):
        await select(lock=lock)


def test_what_was_fetched_before_is_compared_too(make_wheel: Any, serve: Any) -> None:
    """An index without hashes has served another file earlier, when nobody asked; it is cached under this URL."""
    wheel = make_wheel("top")
    whole, right = wheel.read_bytes(), frozenset([Hash("sha256", sha256(wheel))])
    url = f"{serve().url.removesuffix('/simple')}/files/{wheel.name}"
    replaced(wheel)
    assert wheels_._fetched(wheel.name, url, None, [], threading.Event()).path.read_bytes() != whole
    wheel.write_bytes(whole)
    assert wheels_._fetched(wheel.name, url, None, [], threading.Event(), hashes=right).path.read_bytes() == whole


async def test_a_dependency_without_a_hash_is_refused_where_others_have_one(
    make_wheel: Any, wheels: Path, tmp_path: Path
) -> None:
    top = make_wheel("top", requires=["below"])
    make_wheel("below")
    named = file(tmp_path, f"top==1.0 --hash=sha256:{sha256(top)}")
    with pytest.raises(BootstrapError, match=r"below \(below-1.0-py3-none-any.whl\) has no hash") as caught:
        await select(requirements=named, pip_indexes=[str(wheels)])
    assert "--generate-hashes" in caught.value.hint


async def test_a_wheel_of_this_computer_needs_no_hash(make_wheel: Any, wheels: Path, tmp_path: Path) -> None:
    ours = make_wheel("ours", requires=["top"])
    top = make_wheel("top")
    named = file(tmp_path, f"top==1.0 --hash=sha256:{sha256(top)}")
    found = await select(pip=[str(ours)], requirements=named, pip_indexes=[str(wheels)])
    assert [wheel.name for wheel in found.wheels] == [ours.name, top.name]


# --- what a host installs -------------------------------------------------------------------------------------------


async def test_a_host_that_fetches_by_itself_refuses_a_foreign_wheel(
    shell: Any, bring: Any, make_wheel: Any, serve: Any, tmp_path: Path
) -> None:
    wheel = make_wheel("top")
    shell.environment |= {"UV_DEFAULT_INDEX": serve().url, "UV_NO_VERIFY_HASHES": "true"}
    lock = pylock(tmp_path, locked(wheel))
    foreign = replaced(wheel)
    with pytest.raises(BootstrapError, match=r"Hash mismatch for `top==1\.0`") as caught:
        await bring(Image(lock=lock), shell)
    assert foreign in str(caught.value)
    assert "other files than the lock names" in caught.value.hint


async def test_a_host_installs_nothing_that_has_no_hash_where_others_have_one(
    shell: Any, bring: Any, make_wheel: Any, serve: Any, tmp_path: Path
) -> None:
    """uv alone would install it. A lock says everything, so that nothing is added to it."""
    top = make_wheel("top", requires=["below"])
    make_wheel("below")
    shell.environment["UV_DEFAULT_INDEX"] = serve().url
    with pytest.raises(BootstrapError, match="no trusted hash was provided for: `below`") as caught:
        await bring(Image(requirements=file(tmp_path, f"top==1.0 --hash=sha256:{sha256(top)}")), shell)
    assert "every package needs" in caught.value.hint
    assert caught.value.systematic
    node = await bring(Image(lock=pylock(tmp_path, locked(top))), shell)
    node.greet()
    assert node.run(lambda: __import__("importlib.util").util.find_spec("below")) is None


# --- what users write -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "name"),
    [(["Top.Level", "a==1 --hash=sha256:00"], "top-level"), (["--require-hashes", "b==1"], "b"),
     (["a==1 --hash sha256:00", "c @ git+https://me:canary@host/c@0123"], "c")],
)  # fmt: skip
async def test_all_or_none_of_the_requirements_have_hashes(tmp_path: Path, lines: list[str], name: str) -> None:
    with pytest.raises(SpecError, match=rf": {name} has no hash, but other requirements have") as caught:
        await select(requirements=file(tmp_path, *lines))
    assert "canary" not in str(caught.value)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "A.b", "a_B", "a-b--c", "c3.14"]),
            st.sampled_from(["==1.0", "[extra]==1.0", " == 1.0 ; python_version > '3'", " @ https://host/x-1.whl"]),
            st.lists(
                st.tuples(st.sampled_from(["sha256", "sha512", "md5"]), st.from_regex("[0-9a-f]{4}", fullmatch=True))
            ),
            st.sampled_from(["=", " = ", " "]),
        )
    )
)
def test_each_hash_that_is_written_belongs_to_its_package(
    written: list[tuple[str, str, list[tuple[str, str]], str]],
) -> None:
    lines = [
        name + rest + "".join(f" \\  --hash{sign}{algorithm}:{value}" for algorithm, value in hashes)
        for name, rest, hashes, sign in written
    ]
    expected: dict[str, set[tuple[str, str]]] = {}
    for name, _, hashes, _ in written:
        if hashes:
            expected.setdefault(re.sub("[-_.]+", "-", name).lower(), set()).update(hashes)
    assert hashes_by_package(lines) == expected


def test_a_url_names_its_package_and_its_hash() -> None:
    url = "https://host/My_Package-1.0-py3-none-any.whl"
    assert name_of(f"{url} --hash=sha256:00") == name_of(f"my-package@{url}") == "my-package"
    assert hashes_by_package([f"{url}#egg=x&sha256=AB"]) == {"my-package": {Hash("sha256", "ab")}}
