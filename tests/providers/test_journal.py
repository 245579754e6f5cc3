"""What a dead client leaves can be found again; what lives, or is settled, is left alone."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.providers.errors import BadRequest, JournalError, ProviderError
from outrider.providers.shared import pool_lock
from outrider.providers.shared.journal import Journal, PoolOwned

EAST = {"region": "us-east-1", "endpoint": ""}
WEST = {"region": "us-west-2", "endpoint": ""}


@pytest.fixture
def book(tmp_path: Path) -> Journal:
    return Journal.open(tmp_path / "state")


@contextmanager
def another_owner(book: Journal, pool: str = "p", *, intent: bool = True) -> Iterator[int]:
    """A process that owns the pool and does nothing, until the block ends."""
    code = (
        "import sys; from outrider.providers.shared.journal import Journal\n"
        f"book = Journal.open({str(book.root)!r}); owned = book.own({pool!r}, 'aws', {EAST!r})\n"
        "owned.keep('client_key', 'secret')\n"
        + (f"book.intend({pool!r}, 'instances', 'token', {EAST!r})\n" if intent else "")
        + "print('owned', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"owned\n"
            yield process.pid
        finally:
            process.send_signal(signal.SIGKILL)


def abandon(book: Journal, pool: str = "p") -> None:
    with another_owner(book, pool):
        pass


# --- intents ----------------------------------------------------------------------------------------------------------


def test_an_intent_is_there_before_anything_happened(book: Journal) -> None:
    with book.own("p", "aws", EAST):
        intent = book.intend("p", "instances", "t1", EAST, {"count": "4"})
        (record,) = Journal.open(book.root).records()
    assert record.intents == (intent,)
    assert (intent.ids, intent.facts) == (None, {"count": "4"})


def test_what_happened_is_added_up(book: Journal) -> None:
    with book.own("p", "aws", EAST):
        intent = book.intend("p", "instances", "t1", EAST)
        book.happened(intent, ["i-1", "i-2"])
        assert book.happened(intent, ["i-2", "i-3"]).ids == ("i-1", "i-2", "i-3")
        assert book.happened(book.intend("p", "instances", "t2", EAST), []).ids == ()
        (record,) = book.records()
    assert {each.token: each.ids for each in record.intents} == {"t1": ("i-1", "i-2", "i-3"), "t2": ()}


def test_the_same_token_is_the_same_intent(book: Journal) -> None:
    with book.own("p", "aws", EAST):
        first = book.intend("p", "instances", "t1", EAST)
        book.happened(first, ["i-1"])
        book.intend("p", "instances", "t1", EAST)
        (record,) = book.records()
    assert [each.ids for each in record.intents] == [("i-1",)]


def test_what_happened_is_kept_though_its_intent_is_lost(book: Journal) -> None:
    with book.own("p", "aws", EAST):
        intent = book.intend("p", "instances", "t1", EAST)
        book.database.unlink()
        book.happened(intent, ["i-1"])
        (record,) = book.records()
    assert [each.ids for each in record.intents] == [("i-1",)]


# --- owners -----------------------------------------------------------------------------------------------------------


def test_a_living_owner_is_nobodys_orphan(book: Journal) -> None:
    with another_owner(book) as pid:
        assert book.orphans() == []
        (record,) = book.records()
        assert record.standing == "alive"
        assert record.owner is not None
        assert record.owner.pid == pid
        with pytest.raises(PoolOwned, match=rf"in use by process {pid} of") as refused:
            book.own("p", "aws", EAST)
        assert not refused.value.dead
        with pytest.raises(PoolOwned):
            book.settled("p")


def test_a_killed_owner_leaves_an_orphan(book: Journal) -> None:
    abandon(book)
    (orphan,) = book.orphans()
    assert (orphan.pool, orphan.provider, orphan.places) == ("p", "aws", (EAST,))
    assert [intent.token for intent in orphan.intents] == ["token"]


def test_a_pool_without_intents_is_an_orphan_too(book: Journal) -> None:
    with another_owner(book, intent=False):
        pass
    assert [each.places for each in book.orphans()] == [(EAST,)]


def test_a_dead_owners_pool_is_taken_over_only_on_purpose(book: Journal) -> None:
    abandon(book)
    with pytest.raises(PoolOwned, match=r"Pool\.attach\('p'") as refused:
        book.own("p", "aws", EAST)
    assert refused.value.dead
    with book.own("p", "aws", adopt=True) as adopted:
        assert adopted.kept("client_key") == "secret"
        with book.own("p", "aws", EAST):  # the fleet's own, inside
            assert book.orphans() == []
    assert [each.pool for each in book.orphans()] == ["p"]


def test_an_owner_on_another_computer_may_be_alive(book: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_lock, "_file_system", lambda path: "nfs4")
    monkeypatch.setattr(pool_lock, "machine", lambda: "this system")
    abandon(book)
    file = book.pools / "p" / "pool"
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "owner": {**said["owner"], "machine": "this system"}}))
    assert [each.standing for each in book.records()] == ["dead"]
    monkeypatch.setattr(pool_lock, "_boot", lambda: "another boot")
    assert [each.standing for each in book.records()] == ["elsewhere"]  # whose name is the same
    assert book.orphans() == []
    later = replace(pool_lock.Computer.this(), up_since=time.time() + 3600)
    monkeypatch.setattr(pool_lock.Computer, "this", lambda: later)
    assert [each.standing for each in book.records()] == ["dead"]  # this computer, after a reboot
    monkeypatch.setattr(pool_lock.Computer, "this", lambda: replace(later, machine="another system"))
    assert [each.standing for each in book.records()] == ["elsewhere"]


HERE = pool_lock.Computer("localhost", "this boot", "this system", up_since=1000.0)
OWNER = pool_lock.Owner("me", "localhost", 7, "", "this boot", 2000.0, machine="this system")


@pytest.mark.parametrize(
    ("owner", "same"),
    [
        (OWNER, True),
        (replace(OWNER, host="another-name", machine=""), True),  # the kernel tells
        (replace(OWNER, boot="another boot"), False),  # at a time at which this computer was in its present boot
        (replace(OWNER, boot="another boot", since=500.0), True),  # before a reboot
        (replace(OWNER, boot="another boot", since=500.0, host="another-name"), False),  # of one image perhaps
        (replace(OWNER, boot="another boot", since=500.0, machine="another system"), False),
        (replace(OWNER, boot="another boot", since=500.0, machine=""), False),  # a name is no proof
        (replace(OWNER, boot="", machine=""), True),
        (replace(OWNER, boot="", machine="", host="another-name"), False),
    ],
)
def test_an_owners_computer_is_known_by_its_boot_and_system_and_not_by_its_name(
    owner: pool_lock.Owner, same: bool
) -> None:
    assert owner.was_on(HERE) is same


@pytest.mark.parametrize(("written", "known"), [("0" * 32, True), ("uninitialized", False), ("", False)])
def test_a_system_without_an_id_has_none(written: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: f"{written}\n")
    assert bool(pool_lock.machine()) is known
    assert not known or written not in pool_lock.machine()


def test_a_lock_on_a_disk_of_this_computer_is_believed_whatever_that_is_called(
    book: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    abandon(book)
    monkeypatch.setattr(pool_lock, "_boot", lambda: "another boot")
    monkeypatch.setattr(pool_lock, "_file_system", lambda path: "ext4")
    assert [each.standing for each in book.records()] == ["dead"]
    shutil.copytree(book.root, tmp_path / "copied")  # as a cache or a backup is, from a computer where it may live
    assert [each.standing for each in Journal.open(tmp_path / "copied").records()] == ["elsewhere"]


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ("/dev/a / ext4 rw 0 0\nhome:/ {path} nfs4 rw 0 0", "nfs4"),
        ("home:/ / nfs4 rw 0 0\nx {path} xfs rw 0 0", "xfs"),
        ("", ""),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(
    mounts: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = mounts.format(path=tmp_path.parent.resolve())
    monkeypatch.setattr(Path, "read_text", lambda path: told)
    assert pool_lock._file_system(tmp_path) == kind


def test_what_the_computers_of_all_owners_were_called_is_kept(book: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("first", "second", "first"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        book.own("p", "aws", EAST, adopt=True).close()
    (record,) = book.records()
    assert record.hosts == ("first", "second")
    book.own("p", "aws", WEST, adopt=True).close()
    book.settled("p", WEST)
    (record,) = book.records()
    assert record.hosts == ("first", "second")


def test_a_forked_child_holds_no_lock(book: Journal) -> None:
    read, write = os.pipe()
    code = (
        "import os, sys; from outrider.providers.shared.journal import Journal\n"
        f"owned = Journal.open({str(book.root)!r}).own('p', 'aws', {EAST!r})\n"
        "here, there = os.pipe()\n"
        f"if os.fork() == 0: os.write(there, b'.'); os.read({read}, 1); os._exit(0)\n"
        "os.read(here, 1); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, pass_fds=(read,))
    try:
        assert [each.pool for each in book.orphans()] == ["p"]
    finally:
        os.close(write)
        os.close(read)


def test_one_pool_may_be_in_several_places(book: Journal) -> None:
    with book.own("p", "aws", EAST) as east, book.own("p", "aws", WEST) as west:
        assert book.records()[0].places == (EAST, WEST)
        with pytest.raises(PoolOwned, match="in this program already"):
            book.own("p", "aws", WEST)
        book.intend("p", "instances", "east", EAST)
        book.intend("p", "instances", "west", WEST)
        book.settled("p", EAST)
        east.close()
        (record,) = book.records()
        assert record.places == (WEST,)
        assert [each.token for each in record.intents] == ["west"]
        book.settled("p", WEST)
        west.close()
    assert book.records() == []


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_settled_pool_leaves_nothing(book: Journal) -> None:
    with book.own("p", "aws", EAST) as owned:
        owned.keep("client_key", "secret")
        book.intend("p", "instances", "t1", EAST)
        book.settled("p", EAST)
        assert owned.kept("client_key") == "secret"  # until it is left
    assert list(book.pools.iterdir()) == []
    assert book.records() == []


def test_a_pool_that_is_not_settled_stays(book: Journal) -> None:
    owned = book.own("p", "aws", EAST)
    book.intend("p", "instances", "t1", EAST)
    owned.close()
    owned.close()
    assert [each.pool for each in book.orphans()] == ["p"]
    book.settled("p")
    assert book.records() == []


def test_intents_without_a_pools_files_are_an_orphan(book: Journal) -> None:
    book.intend("p", "instances", "t1", EAST)
    (orphan,) = book.orphans()
    assert (orphan.provider, orphan.owner, orphan.places) == ("", None, (EAST,))


# --- disks ------------------------------------------------------------------------------------------------------------


def test_only_the_user_may_look(book: Journal) -> None:
    with book.own("p", "aws", EAST) as owned:
        owned.keep("client_key", "secret")
        book.intend("p", "instances", "t1", EAST)
        for path in (book.root, *book.root.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_every_commit_is_flushed(book: Journal) -> None:
    assert book._run(lambda database: database.execute("PRAGMA journal_mode").fetchone()) == ("wal",)
    assert book._run(lambda database: database.execute("PRAGMA synchronous").fetchone()) == (2,)


def test_a_directory_that_cannot_be_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"\$OUTRIDER_STATE") as refused:
        Journal.open(tmp_path / "file" / "state")
    assert isinstance(refused.value, ProviderError)


def test_a_full_disk_refuses_before_anything_is_created(book: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with book.own("p", "aws", EAST):
        monkeypatch.setattr(sqlite3, "connect", full)
        with pytest.raises(JournalError, match="No space left"):
            book.intend("p", "instances", "t1", EAST)
        monkeypatch.undo()
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(JournalError, match="make room there"):
            book.own("other", "aws", EAST)
        monkeypatch.undo()
        assert [each.pool for each in book.records() if each.standing == "alive"] == ["p"]


@pytest.mark.parametrize("junk", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4080])
def test_a_damaged_database_is_set_aside(book: Journal, junk: bytes) -> None:
    owned = book.own("p", "aws", EAST)
    book.intend("p", "instances", "t1", EAST)
    book.database.write_bytes(junk)
    with pytest.warns(RuntimeWarning, match="set aside"):
        (record,) = book.records()
    assert (record.places, record.intents) == ((EAST,), ())  # the pool itself is not forgotten
    book.intend("p", "instances", "t2", EAST)
    owned.close()
    assert list(book.root.glob("journal.db.spoiled-*"))
    assert [each.token for each in book.orphans()[0].intents] == ["t2"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("place", "NULL"),
        ("facts", "NULL"),
        ("place", "'[1'"),
        ("facts", "'[]'"),
        ("facts", "'{\"a\": 1}'"),
        ("place", "x'7b7d'"),
        ("kind", "CAST(x'ff' AS TEXT)"),
        ("at", "'now'"),
        ("ids", "'{}'"),
        ("ids", "'[1]'"),
        ("ids", "5"),
    ],
)
@pytest.mark.parametrize("read", [True, False], ids=["records", "happened"])
def test_a_row_that_cannot_be_read_is_damage_as_well(book: Journal, column: str, value: str, read: bool) -> None:
    with book.own("p", "aws", EAST):
        intent = book.intend("p", "instances", "t1", EAST)
        book.happened(intent, ["i-1"])
        with closing(sqlite3.connect(book.database)) as database:
            columns = "pool TEXT, token TEXT, kind, place, facts, at, ids, PRIMARY KEY (pool, token)"
            for statement in (
                f"CREATE TABLE spoiled ({columns}) WITHOUT ROWID",
                "INSERT INTO spoiled SELECT * FROM intents",
                f"UPDATE spoiled SET {column} = {value}",
                "DROP TABLE intents",
                "ALTER TABLE spoiled RENAME TO intents",
            ):
                database.execute(statement)
            database.commit()
        if read or column != "ids":
            with pytest.warns(RuntimeWarning, match="set aside"):
                (record,) = book.records()
            assert (record.places, record.intents) == ((EAST,), ())
        else:
            with pytest.warns(RuntimeWarning, match="set aside"):
                assert book.happened(intent, ["i-2"]).ids == ("i-2",)
        assert len(list(book.root.glob("journal.db.spoiled-*"))) == 1
        assert book.intend("p", "instances", "t3", EAST) in book.records()[0].intents


def test_bytes_that_are_overwritten_anywhere_are_told_or_harmless(book: Journal) -> None:
    """Among the places are SQLite's header, its schema, the texts of rows and free space."""
    own_and_intend(book, 5)
    sound = book.database.read_bytes()
    dice, damaged = random.Random(1), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(200):
            spot = dice.randrange(len(sound))
            book.database.write_bytes(sound[:spot] + dice.randbytes(400) + sound[spot + 400 :])
            for suffix in ("-wal", "-shm"):
                Path(f"{book.database}{suffix}").unlink(missing_ok=True)
            again = Journal.open(book.root)
            assert {each.pool for each in again.records()} <= {"p"}
            damaged += len(list(book.root.glob("journal.db.spoiled-*[0-9]")))
            for aside in book.root.glob("journal.db.spoiled-*"):
                aside.unlink()
    assert damaged > 20


def own_and_intend(book: Journal, count: int) -> None:
    with book.own("p", "aws", EAST) as owned:
        for number in range(count):
            book.intend("p", "instances", f"token-{number}", EAST)
        owned.keep("client_key", "secret")
        with closing(sqlite3.connect(book.database)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def test_a_damaged_pool_file_loses_no_pool(book: Journal) -> None:
    abandon(book)
    (book.pools / "p" / "pool").write_text("{")
    (orphan,) = book.orphans()
    assert (orphan.owner, orphan.places) == (None, (EAST,))


def test_a_newer_journal_is_not_touched(book: Journal) -> None:
    with sqlite3.connect(book.database) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(JournalError, match="newer Outrider"):
        Journal.open(book.root)


@pytest.mark.parametrize("pool", ["", "../p", "a/b", ".hidden", "a" * 64, "a b", "a\n"])
def test_a_name_cannot_leave_the_directory(book: Journal, pool: str) -> None:
    with pytest.raises(BadRequest, match="no pool's name"):
        book.own(pool, "aws", EAST)


def test_the_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "named"))
    assert Journal.open().root == tmp_path / "named"
    monkeypatch.delenv("OUTRIDER_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert Journal.open().root == tmp_path / "xdg" / "outrider"


# --- many at once -----------------------------------------------------------------------------------------------------


def test_many_threads_lose_nothing(book: Journal) -> None:
    def work(name: str) -> None:
        with book.own(name, "aws", EAST):
            for number in range(5):
                book.happened(book.intend(name, "instances", f"{number}", EAST), [f"{name}-{number}"])

    threads = [threading.Thread(target=work, args=(f"p{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {record.pool: len(record.intents) for record in book.orphans()} == {f"p{number}": 5 for number in range(8)}


def test_many_processes_start_at_once(tmp_path: Path) -> None:
    """The first ones make the database together, and the last to close it takes its log away."""
    code = (
        "import sys; from outrider.providers.shared.journal import Journal\n"
        f"book = Journal.open({str(tmp_path / 'state')!r})\n"
        "with book.own(sys.argv[1], 'aws', {'region': 'r'}):\n"
        "    for n in range(10): book.happened(book.intend(sys.argv[1], 'instances', str(n), {'region': 'r'}), ['i'])"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, f"p{number}"]) for number in range(6)]
    assert [process.wait() for process in running] == [0] * 6
    records = Journal.open(tmp_path / "state").orphans()
    assert [len(record.intents) for record in records] == [10] * 6


def test_only_one_of_many_gets_a_pool(book: Journal) -> None:
    code = (
        "import sys; from outrider.providers.shared.journal import Journal, PoolOwned\n"
        "try:\n"
        f"    owned = Journal.open({str(book.root)!r}).own('p', 'aws', {EAST!r})\n"
        "except PoolOwned:\n"
        "    print('refused')\n"
        "else:\n"
        "    print('owned', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    running = [subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) for _ in range(4)]
    said = sorted(process.stdout.readline() for process in running if process.stdout)
    for process in running:
        process.communicate()
    assert said == [b"owned\n", b"refused\n", b"refused\n", b"refused\n"]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_client_killed_at_any_line_is_found_again(tmp_path: Path, seed: int) -> None:
    """JOURNAL-1, JOURNAL-2 and JOURNAL-3, by real processes and SIGKILL."""
    driver = Path(__file__).with_name("killed_journal.py")
    done = subprocess.run(
        [sys.executable, driver, tmp_path, str(seed), "50"], check=True, capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert told["killed"] >= 40
    assert told["after_creating"] >= 5


MUTANTS = {
    "JOURNAL-1": """
intend, happened = Journal.intend, Journal.happened
def late(book, intent, ids):
    intend(book, intent.pool, intent.kind, intent.token, intent.place, intent.facts)
    return happened(book, intent, ids)
Journal.intend, Journal.happened = lambda book, *fields: journal.Intent(*fields), late
""",
    "JOURNAL-2": """
take = journal.Lock.take
journal.Lock.take = lambda directory: None if directory.exists() else take(directory)
""",
    "JOURNAL-3": """
happened = Journal.happened
def forgets(book, intent, ids):
    book._run(lambda database: journal._forget(database, intent.pool, None))
    return intent
Journal.happened = forgets
""",
}


@pytest.mark.parametrize("invariant", MUTANTS)
def test_the_invariant_falls_without_its_guard(invariant: str, tmp_path: Path) -> None:
    start = "from killed_journal import Journal, Path, journal, main\n"
    run = f"main(Path({str(tmp_path)!r}), 1, 20)"
    done = subprocess.run(
        [sys.executable, "-c", start + MUTANTS[invariant] + run],
        cwd=Path(__file__).parent,
        check=False,
        capture_output=True,
        text=True,
    )
    wrong = {"JOURNAL-1": "nobody knows of", "JOURNAL-2": "PoolOwned", "JOURNAL-3": "nobody knows of"}
    assert wrong[invariant] in done.stdout + done.stderr


def test_settling_waits_for_the_word(book: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """JOURNAL-3: closing alone forgets nothing, however full the disk is then."""
    owned = book.own("p", "aws", EAST)
    book.intend("p", "instances", "t1", EAST)
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
    owned.close()
    monkeypatch.undo()
    assert [each.pool for each in book.orphans()] == ["p"]
