"""Whatever a node says when its files are fetched: what is written stays in its folder, and within the limits."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import SpecError, TransferError
from outrider.engine.client import file_transfer
from outrider.engine.client.file_transfer import FetchLimits, IncomingFiles, objection, plain_value
from outrider.engine.runtime.work_files import FileWriter

MOST_FILES, MOST_BYTES = 4, 40
TRAVERSALS = [
    "../x", "/etc/x", "a/../../x", "a//x", "", ".", "..", "./x", "a/", "a/./x", "x\0y", "x\ny", "x\x1b[2Jy", "x\u202ey",
    "n" * 256, "/".join("n" * 200 for _ in range(30)), "\ud800",
]  # fmt: skip
NAMES = st.sampled_from([*TRAVERSALS, "a", "a/b", "b", "a/b/c"]) | st.text(alphabet="./ab\0\n", max_size=5)
FILES = st.tuples(st.just("file"), NAMES, st.integers(-1, 60), st.booleans())
UNREAD = st.tuples(st.just("unread"), NAMES, st.text(max_size=3))
JUNK = st.none() | st.integers() | st.tuples(st.just("file"), st.integers()) | st.just(("end", 1)) | st.just(("file",))
PARTS = FILES | st.binary(max_size=30) | st.just(("end",)) | st.just(("end",)) | UNREAD | JUNK
SAID = st.lists(st.lists(PARTS, max_size=6), max_size=6)


def play(said: list[list[Any]], folder: Path) -> None:
    """Take it all, write what is to be written as `FileWriter` does, and check every invariant after each part."""
    incoming, writer = IncomingFiles("node 3", FetchLimits(MOST_FILES, MOST_BYTES), 3), FileWriter(folder / "node-3")
    begun = total = 0
    announced = 0
    try:
        for each in said:
            for part in incoming.take(each):
                match part:
                    case bytes():
                        announced -= len(part)
                        total += len(part)
                        assert announced >= 0, "FETCH-2"
                    case ("file", name, size, executable):
                        begun, announced = begun + 1, size
                        path = os.path.normpath(folder / "node-3" / name)
                        assert path.startswith(f"{folder / 'node-3'}/"), "FETCH-1"
                        assert isinstance(executable, bool), "FETCH-4"
                    case _:
                        assert part == ("end",), "FETCH-4"
                assert begun <= MOST_FILES, "FETCH-3"
                assert total <= MOST_BYTES, "FETCH-3"
                try:
                    writer.write(part)
                except OSError:  # a file in a folder's place: its client is told
                    return
                except ValueError:
                    raise AssertionError("FETCH-4") from None
    except TransferError:
        pass
    finally:
        writer.close()
        assert not [*folder.rglob("*.part")]
        assert {*folder.iterdir()} <= {folder / "node-3"}, "FETCH-1"


@settings(max_examples=60)
@given(SAID)
def test_whatever_is_said_stays_in_the_folder_and_in_its_limits(
    tmp_path_factory: pytest.TempPathFactory, said: list[list[Any]]
) -> None:
    """FETCH-1 to FETCH-4."""
    play(said, tmp_path_factory.mktemp("fetched"))


def opened(name: str, size: int = 3) -> list[Any]:
    return [("file", name, size, False)]


GUARDS: dict[str, tuple[str, Any, list[list[Any]]]] = {
    "FETCH-1": ("objection", lambda _name: None, [opened("../x")]),
    "FETCH-2": ("_bytes", lambda self, count: None, [[*opened("x"), b"four"]]),
    "FETCH-3": ("_count", lambda self, name: None, [[*opened(name, 0), ("end",)] for name in "abcde"]),
    "FETCH-4": ("_is_written", lambda self, part: True, [[("end",)]]),
}


@pytest.mark.parametrize("invariant", GUARDS)
def test_it_falls_without_its_guard(invariant: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name, without, said = GUARDS[invariant]
    play(said, tmp_path)
    monkeypatch.setattr(file_transfer if name == "objection" else IncomingFiles, name, without)
    with pytest.raises(AssertionError, match=invariant):
        play(said, tmp_path)


@pytest.mark.parametrize("name", TRAVERSALS)
def test_a_name_that_leads_elsewhere_or_is_none_is_refused(name: str) -> None:
    assert objection(name) is not None
    with pytest.raises(TransferError, match="named a file") as refused:
        IncomingFiles("node 2", FetchLimits(9, 99), 2).take(opened(name))
    assert refused.value.node == 2
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["a", "a b/c", "...", "..a", "a..", "-rf", "é\u00a0", os.fsdecode(b"\xff\xfe"), "n" * 255]
)
def test_names_that_files_can_have_are_taken(name: str) -> None:
    assert objection(name) is None


@pytest.mark.parametrize(
    "what", [os.system, Path("x"), ValueError("x"), lambda: 1], ids=lambda each: type(each).__name__
)
def test_nothing_that_runs_code_is_unpickled(what: Any) -> None:
    import cloudpickle

    with pytest.raises(pickle.UnpicklingError):
        plain_value(cloudpickle.dumps([("file", what)]))


@pytest.mark.parametrize("what", ["many", "deep", "long"])
def test_what_takes_long_to_show_is_refused_without_being_shown(what: str) -> None:
    """Of a few bytes, the text would have more than 2**80 characters, recurse too deeply or have too many digits."""
    junk: Any = 10**5000 if what == "long" else []
    for _ in range({"many": 80, "deep": 20_000, "long": 0}[what]):
        junk = [junk, junk] if what == "many" else [junk]
    for said in (junk, [junk]):
        with pytest.raises(TransferError, match="belong"):
            IncomingFiles("node 2", FetchLimits(9, 99), 2).take(said)


def test_parts_of_files_are_unpickled() -> None:
    said = [("file", "a", 3, True), b"abc", ("end",)]
    assert plain_value(pickle.dumps(said, 5)) == said


@pytest.mark.parametrize("data", [b"\x80\x04Nr\xff\xff\xff\x0f.", b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00."])
def test_a_few_bytes_that_ask_for_gigabytes_are_refused_unread(data: bytes) -> None:
    with pytest.raises((pickle.UnpicklingError, ValueError)):
        plain_value(data)


def test_of_files_that_cannot_be_read_the_first_is_kept_and_the_others_are_counted() -> None:
    incoming = IncomingFiles("node 2", FetchLimits(9, 99), 2)
    incoming.take([("unread", "n" * 99_999, "why"), ("unread", "b", "why")])
    assert incoming.unread == ("n" * 4000, "why")
    assert incoming.unread_count == 2


@pytest.mark.parametrize(("files", "gb"), [(0, 1), (True, 1), (1, 0), (1, float("inf")), (1, "much")])
def test_limits_that_cannot_mean_anything_are_refused(files: Any, gb: Any) -> None:
    with pytest.raises(SpecError):
        FetchLimits.of(files, gb)
