"""The write-ahead journal, which outlives a client. It has each pool's owner, and a record of each creation, written
before the provider is asked to create anything.

JOURNAL-1: when `Journal.intend` returns, the intent (the record of the creation) is on the disk, so whatever the
following call creates can be found again.
JOURNAL-2: a pool's lock is free exactly when its owner is dead: the kernel releases the lock, however the owner ended.
JOURNAL-3: for each place (such as a region, an account or a host), the journal keeps its records of a pool until
`Journal.settled` records that nothing of the pool is left there.

There are two kinds of files. ``pools/NAME`` has one pool's lock, owner and places, and the keys for re-attaching;
``journal.db`` (SQLite) has the intents. If the database is lost, tokens and ids are lost but no pool, because the tags
in the clouds identify every resource. All calls block until the disk is flushed. All calls are safe for concurrent
threads and processes of one computer.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from ...lazy_dataclass import dataclass
from ..errors import BadRequest, JournalError
from .paths import state_root
from .pool_lock import (
    Lock,
    Owner,
    Place,
    flocked,
    flush,
    hosts_of,
    make_directory,
    owner_of,
    read,
    write,
    write_whole,
)
from .resource_ownership import Claim

T = TypeVar("T")

VERSION = 1  # the version of the database's tables
BUSY_S = 30.0  # seconds to wait for another process's transaction
NEWEST = 1000  # a higher version number comes from damage, not from a newer Outrider
SPOILED = (  # codes that show damage. SQLITE_ERROR does so, too: the statements are right, so the schema must be wrong.
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
)  # fmt: skip
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
TABLES = """
CREATE TABLE IF NOT EXISTS intents (
    pool TEXT NOT NULL, token TEXT NOT NULL, kind TEXT NOT NULL, place TEXT NOT NULL, facts TEXT NOT NULL,
    at REAL NOT NULL, ids TEXT, PRIMARY KEY (pool, token)
) WITHOUT ROWID
"""

INSERT = "INSERT OR IGNORE INTO intents VALUES (?, ?, ?, ?, ?, ?, NULL)"
SELECT = "SELECT pool, kind, token, place, facts, at, ids FROM intents WHERE ? IS NULL OR pool = ? ORDER BY at"

Standing = Literal["alive", "dead", "elsewhere"]


class _Unreadable(sqlite3.DatabaseError):
    """A row or a version number is damaged. SQLite itself does not detect this: it checks only its own structures."""


class PoolOwned(BadRequest):
    """The pool already has an owner: a living program, or (``dead``) a program that died and left its machines.
    ``owner``: the program's name, if known.
    """

    def __init__(self, message: str, *, owner: Owner | None = None, dead: bool = False) -> None:
        super().__init__(message)
        self.owner = owner
        self.dead = dead


@dataclass(frozen=True, slots=True)
class Intent:
    """The record of a creation, written before its request. ``ids``: the ids of what was created; None: the outcome is
    unknown.
    """

    pool: str
    kind: str
    token: str  # identifies the call to the provider, also when the call is repeated
    place: Place
    facts: Mapping[str, str] = field(default_factory=dict)
    at: float = 0.0  # unix time of the record
    ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A pool of which something may be left. ``elsewhere``: its owner is on another computer, and may be alive
    there.
    """

    pool: str
    # The provider's name. Empty: the pool's files are gone, and only its intents (records of creations) are left.
    provider: str
    places: tuple[Place, ...]
    owner: Owner | None
    standing: Standing
    intents: tuple[Intent, ...] = ()
    hosts: tuple[str, ...] = ()  # names of the computers of all owners that the pool has had, including this one

    def claim(self, place: Place, also: Sequence[Intent] = ()) -> Claim:
        """Return the `Claim` that decides which resources in a place (such as a region) are the pool's own.

        ``also``: further intents (records of creations) that the pool's owner has in memory.
        """
        return Claim.of(self.pool, [*(each for each in self.intents if each.place == place), *also], self.hosts)


class Journal:
    """The journal of one user's pools on this computer. Creating this object is cheap; it keeps no file open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pools = root / "pools"
        self.database = root / "journal.db"

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None) -> Journal:
        """Open the journal in ``path``, or else in ``$OUTRIDER_STATE``, ``$XDG_STATE_HOME/outrider`` or
        ``~/.local/state/outrider``, the first that is set.

        Raises:
            JournalError: The folder cannot be written, or is not private.
        """
        journal = cls(state_root(path))
        with journal._explained_errors():
            make_directory(journal.root)
            make_directory(journal.pools)
            journal._run(lambda _: None)
        return journal

    # --- owning ---------------------------------------------------------------------------------------------------

    def own(self, pool: str, provider: str, place: Place | None = None, *, adopt: bool = False) -> Ownership:
        """Make this process the owner of the pool in a place (such as a region, an account or a host), until
        `Ownership.close`. This process may own the pool in further places too.

        ``adopt``: True also takes a pool whose client has died. The pool's record then has the dead client's intents
        (records of creations), and `Ownership.kept` returns the dead client's keys.

        Raises:
            PoolOwned: The pool has an owner.
            JournalError: The journal cannot be written.
        """
        if not NAME.fullmatch(pool):
            raise BadRequest(f"{pool!r} is no pool's name: letters, digits, '.', '_' and '-', at most 63 of them")
        with self._explained_errors():
            lock = self._take(pool)
            try:
                self._claim(lock, pool, provider, place, adopt=adopt)
            except BaseException:
                lock.give_back()
                raise
        return Ownership(self, pool, place, lock)

    def _claim(self, lock: Lock, pool: str, provider: str, place: Place | None, *, adopt: bool) -> None:
        written = read(lock.directory)
        places = [] if written is None else list(written["places"])
        if lock.users == 1 and not adopt and (places or self._intents(pool)):
            owner = owner_of(written)
            whose = f" by {owner}" if owner is not None else ""
            raise PoolOwned(
                f"the pool {pool} was left{whose}, which is dead: take it over with Pool.attach({pool!r}, ...), or "
                "remove it with `outrider gc --apply`",
                owner=owner,
                dead=True,
            )
        if place is not None:
            if dict(place) in lock.places:
                raise PoolOwned(f"the pool {pool} is open in this program already: give it another name")
            lock.places.append(dict(place))
            if dict(place) not in places:
                places.append(dict(place))
        write(lock.directory, provider, places, Owner.this(lock.directory), before=written)

    def _take(self, pool: str) -> Lock:
        lock = Lock.take(self.pools / pool)
        if lock is None:
            owner = owner_of(read(self.pools / pool))
            who = str(owner) if owner is not None else "another process"
            raise PoolOwned(f"the pool {pool} is in use by {who}: give yours another name", owner=owner)
        return lock

    # --- creations --------------------------------------------------------------------------------------------------

    def intend(self, pool: str, kind: str, token: str, place: Place, facts: Mapping[str, str] | None = None) -> Intent:
        """Record an intent: a note that the next call to the provider creates something. If the token is recorded
        already, its record stays as it is.

        Raises:
            JournalError: The intent could not be recorded, so create nothing.
        """
        intent = Intent(pool, kind, token, dict(place), dict(facts or {}), time.time())
        with self._explained_errors():
            self._run(lambda database: database.execute(INSERT, _row(intent)))
        return intent

    def happened(self, intent: Intent, ids: Sequence[str]) -> Intent:
        """Add the ids of the created resources to an intent (the record of a creation). An empty list is also an
        outcome: nothing was created.
        """
        with self._explained_errors():
            known = self._run(lambda database: _add_ids(database, intent, ids))
        return replace(intent, ids=known)

    def settled(self, pool: str, place: Place | None = None) -> None:
        """Record that nothing of the pool is left in ``place`` (such as a region), as the provider has confirmed. None:
        in all places.

        When no place is left, the journal forgets the pool and its keys: at once, or when the pool's owner closes it.

        Raises:
            PoolOwned: Another living process owns the pool.
            JournalError: The journal cannot be written.
        """
        with self._explained_errors("what is gone could not be struck out", "nothing of it is left in its cloud"):
            lock = self._take(pool)
            try:
                self._run(lambda database: _forget(database, pool, place))
                written = read(lock.directory)
                if written is not None:
                    left = [each for each in written["places"] if place is not None and each != dict(place)]
                    owner = owner_of(written) or Owner.this(lock.directory)
                    write(lock.directory, written["provider"], left, owner, before=written)
                self._leave(lock, pool)
            except BaseException:
                lock.give_back()
                raise

    def _leave(self, lock: Lock, pool: str) -> None:
        """Release the pool's lock. If nothing else in this process uses the lock, and no machines or other resources of
        the pool are recorded any more, remove the pool's files.
        """
        try:
            if lock.users == 1:
                written = read(lock.directory)
                if not (written and written["places"]) and not self._intents(pool):
                    lock.discard()
        finally:
            lock.give_back()

    def kept(self, pool: str, name: str) -> Path | None:
        """Return the file that the pool's owner stores under ``name``, for other programs of the same user; None: there
        is no such file.
        """
        path = self.pools / pool / _named(name)
        return path if NAME.fullmatch(pool) and path.is_file() else None

    # --- queries ----------------------------------------------------------------------------------------------------

    def records(self) -> list[PoolRecord]:
        """Return the records of all pools of which something may be left, in the order of their names."""
        with self._explained_errors():
            intents: dict[str, list[Intent]] = {}
            for intent in self._intents():
                intents.setdefault(intent.pool, []).append(intent)
            names = {each.name for each in self.pools.iterdir() if NAME.fullmatch(each.name)}
            return [self._record(name, intents.get(name, [])) for name in sorted(names | set(intents))]

    def record(self, pool: str) -> PoolRecord | None:
        """Return the record of a pool; None: the pool is unknown, or nothing of it is left."""
        return next((each for each in self.records() if each.pool == pool), None)

    def orphans(self) -> list[PoolRecord]:
        """Return the records of the pools whose owner ran on this computer and is dead."""
        return [each for each in self.records() if each.standing == "dead"]

    def _record(self, pool: str, intents: Sequence[Intent]) -> PoolRecord:
        written = read(self.pools / pool)
        owner = owner_of(written)
        places: list[Place] = [] if written is None else list(written["places"])
        for intent in intents:
            if intent.place not in places:
                places.append(intent.place)
        standing: Standing = "alive" if Lock.is_taken(self.pools / pool) else "dead"
        if standing == "dead" and owner is not None and not owner.near(self.pools / pool):
            standing = "elsewhere"
        provider = "" if written is None else str(written["provider"])
        return PoolRecord(pool, provider, tuple(places), owner, standing, tuple(intents), hosts_of(written))

    def _intents(self, pool: str | None = None) -> list[Intent]:
        return self._run(lambda database: _intents_in(database, pool))

    # --- the database ---------------------------------------------------------------------------------------------

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` with a new database connection, which no other thread and no forked process uses."""
        try:
            with closing(self._connection()) as database:
                return work(database)
        except _SIGNS_OF_DAMAGE as error:
            if not _is_spoiled(error):
                raise
            self._set_aside(error)
        with closing(self._connection()) as database:
            return work(database)

    def _set_aside(self, damage: Exception) -> None:
        with flocked(self.root / "journal.lock"):
            try:
                with closing(sqlite3.connect(self.database, timeout=BUSY_S)) as database:
                    if database.execute("PRAGMA quick_check(1)").fetchone() == ("ok",):
                        _intents_in(database)
                        return  # the database is fine: another process has already renamed the damaged file
            except _SIGNS_OF_DAMAGE as error:
                if not _is_spoiled(error):
                    raise
            aside = self.database.with_name(f"journal.db.spoiled-{time.time_ns()}")
            for suffix in ("-wal", "-shm", ""):
                with suppress(FileNotFoundError):
                    Path(f"{self.database}{suffix}").rename(f"{aside}{suffix}")
        warnings.warn(
            f"{self.database} is damaged ({damage}) and was set aside as {aside.name}: "
            "`outrider gc` finds by their tags what it knew",
            RuntimeWarning,
            stacklevel=2,
        )

    def _connection(self) -> sqlite3.Connection:
        if not self.database.exists():
            with flocked(self.root / "journal.lock"):
                os.close(os.open(self.database, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
                flush(self.root)
        database = sqlite3.connect(self.database, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if not 0 <= version <= NEWEST:
                raise _Unreadable(f"its version is {version}")
            if version > VERSION:
                raise JournalError(f"{self.database} is of a newer Outrider: use that one, or another $OUTRIDER_STATE")
            if version < VERSION:
                with flocked(self.root / "journal.lock"):  # changing the journal mode needs exclusive access
                    database.execute("PRAGMA journal_mode=WAL")
                    database.execute(TABLES)
                    database.execute(f"PRAGMA user_version={VERSION}")
            # In WAL mode, SQLite's default does not flush the disk at a commit.
            database.execute("PRAGMA synchronous=FULL")
            database.execute("SELECT 1 FROM intents LIMIT 1")
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def _explained_errors(
        self, what: str = "what is created could not be written down", so: str = "nothing is"
    ) -> Iterator[None]:
        """Turn errors of the disk and of SQLite into a `JournalError` that names the next step."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise JournalError(
                f"{what} in {self.root}, {'so ' if so == 'nothing is' else ''}{so} ({error}): "
                "make room there, or name a directory on a local disk by $OUTRIDER_STATE"
            ) from error


class Ownership:
    """A pool that this process owns. Release it by leaving this context manager, or by `close`."""

    def __init__(self, journal: Journal, pool: str, place: Place | None, lock: Lock) -> None:
        self.journal, self.pool, self.place = journal, pool, place
        self._lock = lock
        self._closed = False

    def keep(self, name: str, text: str) -> None:
        """Store a text for a later re-attach, such as a key, in a file of mode 0600. The file is removed with the pool.

        Raises:
            JournalError: The file cannot be written.
        """
        with self.journal._explained_errors():
            write_whole(self._lock.directory / _named(name), text)

    def kept(self, name: str) -> str | None:
        """Return the text that this process, or the pool's former owner, has stored under ``name``; None: no
        such text.
        """
        try:
            return (self._lock.directory / _named(name)).read_text()
        except OSError:
            return None

    def close(self) -> None:
        """Release the pool. Further calls do nothing. The journal keeps the records of creations whose resources may
        still exist; these then have no owner.
        """
        if not self._closed:
            self._closed = True
            if self.place is not None:
                self._lock.places.remove(dict(self.place))
            with suppress(JournalError), self.journal._explained_errors():  # if this fails, `outrider gc` does it later
                self.journal._leave(self._lock, self.pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _named(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name under which something can be kept")
    return f"{name}.key"


def _intents_in(database: sqlite3.Connection, pool: str | None = None) -> list[Intent]:
    """Return the intents (records of creations) of ``pool``, or of every pool if ``pool`` is None."""
    database.text_factory = bytes.decode  # sqlite3's default reports text that is not UTF-8 without an error code
    try:
        rows = database.execute(SELECT, (pool, pool)).fetchall()
    except UnicodeDecodeError as error:
        raise _Unreadable(f"a text is not UTF-8: {error}") from error
    return [_intent(row) for row in rows]


def _intent(row: Sequence[object]) -> Intent:
    pool, kind, token, place, facts, at, ids = row
    if not (isinstance(pool, str) and isinstance(kind, str) and isinstance(token, str) and isinstance(at, float)):
        raise _Unreadable("a column of intents holds a value of another type")
    return Intent(pool, kind, token, _mapping(place), _mapping(facts), at, None if ids is None else _strings(ids))


def _mapping(text: object) -> dict[str, str]:
    value = _parsed(text)
    if not (isinstance(value, dict) and all(isinstance(each, str) for each in value.values())):
        raise _Unreadable(f"a column of intents holds {value!r:.80} in place of names and texts")
    return value


def _strings(text: object) -> tuple[str, ...]:
    value = _parsed(text)
    if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise _Unreadable(f"a column of intents holds {value!r:.80} in place of a list of texts")
    return tuple(value)


def _parsed(text: object) -> Any:
    if not isinstance(text, str):
        raise _Unreadable(f"a column of intents holds {text!r:.80} in place of JSON")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"a column of intents is not the JSON that was written: {error}") from error


def _add_ids(database: sqlite3.Connection, intent: Intent, ids: Sequence[str]) -> tuple[str, ...]:
    which = (intent.pool, intent.token)
    database.execute("BEGIN IMMEDIATE")
    # Insert the intent (the record of a creation) if it is missing: after `intend` inserted it, the database may have
    # been damaged and replaced by a new one.
    database.execute(INSERT, _row(intent))
    row = database.execute("SELECT ids FROM intents WHERE pool = ? AND token = ?", which).fetchone()
    if row is None:
        raise _Unreadable("an intent that was inserted is not found by its key")
    (stored,) = row
    known = tuple(dict.fromkeys([*(() if stored is None else _strings(stored)), *ids]))
    database.execute("UPDATE intents SET ids = ? WHERE pool = ? AND token = ?", (json.dumps(known), *which))
    database.execute("COMMIT")
    return known


def _forget(database: sqlite3.Connection, pool: str, place: Place | None) -> None:
    if place is None:
        database.execute("DELETE FROM intents WHERE pool = ?", (pool,))
    else:
        database.execute("DELETE FROM intents WHERE pool = ? AND place = ?", (pool, _canonical(place)))


def _row(intent: Intent) -> tuple[str, str, str, str, str, float]:
    return (intent.pool, intent.token, intent.kind, _canonical(intent.place), _canonical(intent.facts), intent.at)


def _canonical(facts: Mapping[str, str]) -> str:
    return json.dumps(dict(facts), sort_keys=True)


# UnicodeDecodeError occurs when SQLite quotes a damaged schema in an error message: sqlite3 cannot decode the message.
_SIGNS_OF_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)


def _is_spoiled(error: Exception) -> bool:
    return (
        isinstance(error, _Unreadable | UnicodeDecodeError) or getattr(error, "sqlite_errorcode", 0) & 0xFF in SPOILED
    )
