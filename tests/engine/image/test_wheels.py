"""Packages for hosts without a way out: resolved here for their platform, fetched once, checked."""

from __future__ import annotations

import asyncio
import hashlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from outrider import BootstrapError, Image, Secret
from outrider.engine.image import requirements
from outrider.engine.image import wheels as wheels_
from outrider.engine.image.requirements import Uv
from outrider.engine.image.wheels import Selection, WheelCache

pytestmark = pytest.mark.anyio

TARGET = "x86_64-manylinux_2_36"


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return tmp_path / "cache"


async def select(wheel_cache: WheelCache | None = None, target: str = TARGET, **options: Any) -> Selection:
    uv = Uv.if_installed()
    assert uv is not None
    wanted = await requirements.read(Image(**options), uv)
    assert wanted is not None
    return await (wheel_cache or WheelCache()).select(uv, wanted, target, "3.11")


async def test_a_folder_of_wheels_is_used_in_place(make_wheel: Any, wheels: Path) -> None:
    make_wheel("top", requires=["below"])
    below = make_wheel("below", "1.5")
    found = await select(pip=["top"], pip_indexes=[str(wheels)])
    assert [wheel.name for wheel in found.wheels] == ["below-1.5-py3-none-any.whl", "top-1.0-py3-none-any.whl"]
    assert found.wheels[0].path == below
    assert found.requirements.splitlines()[0] == f"below==1.5 --hash=sha256:{found.wheels[0].sha256}"
    assert found.wheels[0].size_bytes == below.stat().st_size


async def test_each_platform_gets_its_own(make_wheel: Any, wheels: Path) -> None:
    for machine in ("x86_64", "aarch64"):
        make_wheel("native", tag=f"cp311-cp311-manylinux_2_28_{machine}")
    wheel_cache = WheelCache()
    for machine in ("x86_64", "aarch64"):
        found = await select(wheel_cache, f"{machine}-manylinux_2_36", pip=["native"], pip_indexes=[str(wheels)])
        assert [wheel.name for wheel in found.wheels] == [f"native-1.0-cp311-cp311-manylinux_2_28_{machine}.whl"]
    with pytest.raises(BootstrapError) as caught:
        await select(wheel_cache, "x86_64-manylinux_2_17", pip=["native"], pip_indexes=[str(wheels)])
    assert caught.value.systematic
    assert "check the names and versions" in caught.value.hint


async def test_a_platform_is_resolved_once_for_all_of_its_nodes(
    make_wheel: Any, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel("once")
    wheel_cache, real, calls = WheelCache(), wheels_._select, 0

    async def counted(*arguments: Any) -> Selection:
        nonlocal calls
        calls += 1
        return await real(*arguments)

    monkeypatch.setattr(wheels_, "_select", counted)
    both = await asyncio.gather(*(select(wheel_cache, pip=["once"], pip_indexes=[str(wheels)]) for _ in range(3)))
    assert both[0] == both[1] == both[2]
    assert calls == 1


async def test_a_wheel_is_fetched_once(make_wheel: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_wheel("far").read_bytes()
    monkeypatch.setenv("UV_DEFAULT_INDEX", serve().url)
    (wheel,) = (await select(pip=["far"])).wheels
    assert wheel.path.read_bytes() == data
    monkeypatch.setattr(wheels_, "_download", lambda *_: pytest.fail("fetched again"))
    assert (await select(pip=["far"])).wheels == (wheel,)


async def test_an_index_with_a_password_gets_it(make_wheel: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel("private")
    index = serve(password="canary%2F0123")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    index.password = "canary/0123"
    url = f"http://me:canary%2F0123@127.0.0.1:{index.server_port}/simple"
    (wheel,) = (await select(pip=["private"], pip_indexes=[Secret(url)])).wheels
    assert wheel.path.exists()
    with pytest.raises(BootstrapError) as caught:
        await select(pip=["private==2"], pip_indexes=[Secret(url)])
    assert "canary" not in f"{caught.value}{caught.value.log}{caught.value.command}"


async def test_file_with_another_digest_is_refused(
    make_wheel: Any, serve: Any, monkeypatch: pytest.MonkeyPatch, fresh_cache: Path
) -> None:
    wheel = make_wheel("changing")
    index = serve()
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    monkeypatch.setattr(wheels_, "sha256", lambda path: "0" * 64)  # as if it had changed on the way
    with pytest.raises(BootstrapError, match="not the file that the index says it is"):
        await select(pip=["changing"])
    assert not [path for path in fresh_cache.rglob("*") if path.is_file()]
    assert wheel.exists()


async def test_an_index_that_fails_half_way_is_asked_again(
    make_wheel: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel("flaky")
    index = serve()
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    real, left = wheels_._downloaded, [OSError("reset"), OSError("reset")]

    def fails(*arguments: Any) -> None:
        if left:
            raise left.pop()
        real(*arguments)

    monkeypatch.setattr(wheels_, "_downloaded", fails)
    assert len((await select(pip=["flaky"])).wheels) == 1
    left.extend([OSError("gone")] * 3)
    make_wheel("flaky", "2.0")
    with pytest.raises(BootstrapError, match="could not be fetched to this computer: gone") as caught:
        await select(pip=["flaky==2.0"])
    assert "check this computer's network" in caught.value.hint


async def test_a_cancelled_download_does_not_go_on(
    make_wheel: Any, serve: Any, monkeypatch: pytest.MonkeyPatch, fresh_cache: Path
) -> None:
    """Its thread would keep the program from ending until the last byte is here."""
    make_wheel("endless")
    monkeypatch.setenv("UV_DEFAULT_INDEX", serve().url)
    loop, began = asyncio.get_running_loop(), asyncio.Event()
    is_cancelled, ended = threading.Event(), threading.Event()
    reads: list[bool] = []

    class Endless(io.RawIOBase):
        def read1(self, size: int) -> bytes:
            loop.call_soon_threadsafe(began.set)
            if reads:
                is_cancelled.wait(60)
            reads.append(is_cancelled.is_set())
            return b"x" if len(reads) < 100 else b""

        read = read1  # type: ignore[assignment]

        def close(self) -> None:
            ended.set()

    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Endless())
    fetching = asyncio.ensure_future(select(pip=["endless"]))
    await began.wait()
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    is_cancelled.set()
    assert await asyncio.to_thread(ended.wait, 60)
    assert reads.count(True) <= 1


def test_incomplete_wheel_is_refused_and_not_cached(
    wheels: Path, make_wheel: Any, serve: Any, monkeypatch: pytest.MonkeyPatch, fresh_cache: Path
) -> None:
    """A requirement may name a file without its hash."""
    wheel, index = make_wheel("half"), serve()
    whole, url = wheel.read_bytes(), f"{index.url.removesuffix('/simple')}/files/{wheel.name}"
    answers = [len(whole) // 2] * 3

    def cut(handler: Any, data: bytes, kind: str) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[: answers.pop()] if answers else data)

    monkeypatch.setattr(index.RequestHandlerClass, "_answer", cut)
    with pytest.raises(BootstrapError, match="bytes of it are missing"):
        wheels_._fetched(wheel.name, url, None, [], threading.Event())
    assert wheels_._fetched(wheel.name, url, None, [], threading.Event()).path.read_bytes() == whole


def test_two_that_fetch_the_same_do_not_disturb_each_other(
    make_wheel: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, index = make_wheel("same"), serve()
    whole, url = wheel.read_bytes(), f"{index.url.removesuffix('/simple')}/files/{wheel.name}"
    both = threading.Barrier(2, timeout=60)

    def answer(handler: Any, data: bytes, kind: str) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[: len(data) // 2])
        both.wait()  # each has written half of it
        handler.wfile.write(data[len(data) // 2 :])

    monkeypatch.setattr(index.RequestHandlerClass, "_answer", answer)
    expected = hashlib.sha256(whole).hexdigest()
    with ThreadPoolExecutor(2) as threads:
        fetching = [
            threads.submit(wheels_._fetched, wheel.name, url, expected, [], threading.Event()) for _ in range(2)
        ]
        assert [each.result(60).path.read_bytes() for each in fetching] == [whole, whole]


def test_a_damaged_wheel_in_the_cache_is_fetched_again(make_wheel: Any, serve: Any) -> None:
    wheel, index = make_wheel("damaged"), serve()
    whole, url = wheel.read_bytes(), f"{index.url.removesuffix('/simple')}/files/{wheel.name}"
    expected = hashlib.sha256(whole).hexdigest()
    kept = wheels_._fetched(wheel.name, url, expected, [], threading.Event()).path
    kept.write_bytes(b"\0" * len(whole))
    assert wheels_._fetched(wheel.name, url, expected, [], threading.Event()).path.read_bytes() == whole


@pytest.mark.parametrize("name", ["..%2F..%2Fevil-1.0-py3-none-any.whl", "%2Ftmp%2Fevil-1.0-py3-none-any.whl"])
def test_a_file_name_that_an_index_made_up_leads_nowhere(name: str, fresh_cache: Path) -> None:
    with pytest.raises(BootstrapError, match="is not the name of a wheel"):
        wheels_._named(f"https://index/files/{name}")


async def test_a_wheel_of_this_computer_is_sent(make_wheel: Any, tmp_path: Path) -> None:
    wheel = make_wheel("ours")
    found = await select(pip=[str(wheel)])
    assert [(each.name, each.path.read_bytes()) for each in found.wheels] == [(wheel.name, wheel.read_bytes())]
    assert found.requirements.startswith("ours==1.0 --hash=")


async def test_passwords_come_from_the_url_the_index_or_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine third login me password three\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    indexes = [Secret("https://me:two@second/simple"), "https://open/simple"]
    of = lambda url: wheels_._credentials(url, indexes)  # noqa: E731
    assert of("https://me:one@first/x.whl") == "me:one"
    assert of("https://second/x.whl") == "me:two"
    assert of("https://third/x.whl") == "me:three"
    assert of("https://fourth/x.whl") == ""


async def test_no_password_goes_over_http_that_was_given_for_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index may name files by http; the network reads what is sent there."""
    (tmp_path / ".netrc").write_text("machine first login me password net\nmachine plain login me password net\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    indexes = ["https://user:s3cret@first/simple", "http://user:known@second/simple", "http://plain/simple"]
    of = lambda url: wheels_._credentials(url, indexes)  # noqa: E731
    assert of("http://first/x.whl") == ""
    assert of("https://first/x.whl") == "user:s3cret"
    assert of("http://second/x.whl") == of("https://second/x.whl") == "user:known"  # by http in the user's own words
    assert of("http://plain/x.whl") == "me:net"


async def test_uv_for_another_platform_comes_from_its_wheel(make_wheel: Any, wheels: Path) -> None:
    uv = Uv.if_installed()
    assert uv is not None
    assert (await WheelCache().uv_for(uv, wheels_.here())).path == uv.path
    wheel = make_wheel("uv")
    import zipfile

    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("uv-1.0.data/scripts/uv", b"binary")
    unpacked = wheels_._unpacked_uv(wheels_.Wheel(wheel.name, "0", wheel))
    assert unpacked.read_bytes() == b"binary"
    assert unpacked.parent == wheels
