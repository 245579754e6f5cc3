"""`Pool.fetch`, `Pool.push` and ``Pool(keep=)``: transfers of files from and to the nodes' work folders.

On a node, a task that takes no slot reads and writes the files (see `runtime.work_files`). `IncomingFiles` validates
the files from nodes. Nodes are not trusted: an invalid message is refused before any part is written.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import pickle
import pickletools
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast

import anyio

from ...actors.interfaces import Finished, NodeId, Verdict
from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ...providers.shared.threads import in_thread
from ..api.checks import amount, count, in_parts, refuse, shown
from ..api.errors import CapacityError, NodeLost, TransferError
from ..api.printable import plain
from ..api.settings import placement, work_files
from ..api.snapshot import ABOUT_TO_LEAVE
from ..runtime.work_files import FileWriter, Part, below, grouped, parts_of, send_files, take_files
from ..serialization import program
from ..serialization.client_streams import Values
from ..serialization.payload import Received
from ..transport.link import internal_payload
from ..wire.codec import ProtocolError
from ..wire.messages import Ended, Failed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from os import PathLike
    from typing import Literal

    from ..api.calls import PendingCall
    from .open_pool import OpenPool


# Opcodes of plain values in pickle's protocol 5. Other opcodes can call code, or let a few bytes allocate any amount of
# memory.
_PLAIN = frozenset(
    "PROTO FRAME STOP MARK MEMOIZE BINGET LONG_BINGET EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "  # noqa: SIM905
    "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 SHORT_BINUNICODE BINUNICODE SHORT_BINBYTES BINBYTES".split()
)
LONGEST_NAME = 255  # bytes of one path component, the limit of Linux
# bytes of a path; the path with the local folder in front may still exceed the kernel's limit of 4096
LONGEST_PATH = 4000


@dataclass(slots=True)
class FetchLimits:
    """The number of files and of bytes that the nodes of one fetch may still send, all together."""

    files: int
    size_bytes: int

    @classmethod
    def of(cls, max_files: object, max_gb: object) -> Self:
        count("max_files", max_files)
        return cls(cast("int", max_files), in_parts(amount("max_gb", max_gb, "GB"), 1e9))


class IncomingFiles:
    """The decider (no I/O) for one node's files. Takes the node's messages in order.

    FETCH-1  no name leads out of the folder for the files, and a name is nothing but a relative path
    FETCH-2  a file has no more bytes than its announcement says
    FETCH-3  no more files, and no more bytes, are accepted than the limits allow
    FETCH-4  messages are plain: whole parts of files, one file after another
    """

    def __init__(self, sender: str, limits: FetchLimits, node: int | None = None) -> None:
        """``sender``: the node's name in error messages.

        ``node``: the node's rank for the errors' attribute; None: it has no rank.
        """
        self._sender, self._limits, self._node = sender, limits, node
        self._name = ""
        self._left_bytes = 0  # missing bytes of the current file
        self.unread: tuple[str, str] | None = None  # the first file that the node could not read, and the reason
        self.unread_count = 0

    def take(self, message: object) -> list[Part]:
        """Check a message, and return the file parts to write.

        Raises:
            TransferError: the message is invalid, or exceeds the limits.
        """
        if not isinstance(message, list):
            self._refuse(f"sent {_kind(message)} where parts of files belong")
        return [part for part in message if self._is_written(part)]

    def _is_written(self, part: object) -> bool:
        match part:
            case bytes():
                self._bytes(len(part))
            case ("file", str(name), int(size_bytes), bool()):
                self._file(name, size_bytes)
            case ("end",) if self._name:
                self._name = ""
            case ("unread", str(name), str(why)) if not self._name:
                self._count(name)
                self.unread = self.unread or (name[:LONGEST_PATH], why[:LONGEST_NAME])
                self.unread_count += 1
                return False
            case _:
                self._refuse(f"sent {_kind(part)} where a part of a file belongs")
        return True

    def _file(self, name: str, size_bytes: int) -> None:
        if self._name:
            self._refuse("began a file within another", self._name)
        if (why := objection(name)) is not None:
            self._refuse(f"named a file {name!r}, which {why}", name)
        self._count(name)
        self._limits.size_bytes -= size_bytes
        if size_bytes < 0 or self._limits.size_bytes < 0:
            story = f"there is more than max_gb= allows; {name!r} of {self._sender} would be the next."
            raise TransferError(f"{story} Fetch less, or raise it.", path=name, node=self._node)
        self._name, self._left_bytes = name, size_bytes

    def _count(self, name: str) -> None:
        self._limits.files -= 1
        if self._limits.files < 0:
            story = f"there are more files than max_files= allows; {name!r} of {self._sender} would be the next."
            raise TransferError(f"{story} Fetch less, or raise it.", path=name, node=self._node)

    def _bytes(self, count: int) -> None:
        if not self._name:
            self._refuse("sent bytes of no file")
        self._left_bytes -= count
        if self._left_bytes < 0:
            self._refuse("sent more of a file than it had announced", self._name)

    def _refuse(self, what: str, name: str = "") -> NoReturn:
        raise TransferError(f"{self._sender} {what}: nothing more is taken from it.", path=name, node=self._node)


def _kind(value: object) -> str:
    """Describe a value by its type alone: the ``repr`` of a few nested lists may take years."""
    return f"a value of type {type(value).__name__}"


def objection(name: str) -> str | None:
    """Return why this name is not allowed for a file in a local folder; None: it is allowed."""
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return "is no name of a file"
    parts = name.split("/")
    if "" in parts or "." in parts or ".." in parts:
        return "is no path below a folder"
    if plain(name) != name or "\n" in name or "\t" in name:
        return "has control characters"
    if len(encoded) > LONGEST_PATH or any(len(os.fsencode(each)) > LONGEST_NAME for each in parts):
        return "is too long"
    return None


def plain_value(data: Any) -> object:
    """Unpickle numbers, strings, bytes, lists and tuples.

    A pickle with any other opcode is refused before it is loaded.

    Raises:
        pickle.UnpicklingError, and any other error that broken pickles cause.
    """
    plain_data = bytes(data)
    for opcode, _, _ in pickletools.genops(plain_data):
        if opcode.name not in _PLAIN:
            raise pickle.UnpicklingError(f"{opcode.name} in a part of a file")
    return pickle.loads(plain_data)


T = TypeVar("T")
MAX_FILES, MAX_GB = 100_000, 100.0
# time limit for ``keep=`` after the block was cancelled or interrupted, because the program is about to end
KEEP_S = 20.0


class Place:
    """A node whose files are transferred.

    ``rank``: the node's rank at the start of the transfer; None: the node is about to leave the pool.
    """

    def __init__(self, core: OpenPool, node: NodeId, rank: int | None) -> None:
        self.node, self.rank = node, rank
        self.name = f"node {rank}" if rank is not None else f"the leaving node with id {node}"
        link = core.connector.link(node)
        if link is None:
            raise self._lost()
        self._link = link

    async def run(
        self, call: PendingCall, what: str, *, output: Values | None = None, during: Awaitable[None] | None = None
    ) -> None:
        """Run a task that takes no slot, and ``during`` at the same time.

        End the task if ``during`` fails, or on cancellation.

        Raises:
            NodeLost
            TransferError: the task failed.
        """
        over: asyncio.Future[Finished | None] = asyncio.get_running_loop().create_future()

        def ended(report: Finished | None) -> None:
            if output is not None:
                output.end()
            for feed in payload.inputs:
                feed.stop()
            if not over.done():
                over.set_result(report)

        payload = internal_payload(call, program.build(call.function), name=what, output=output)
        attempt = self._link.run_beside(payload, ended)
        self._link.in_use += 1
        try:
            if during is not None:
                await during
            report = await over
        finally:
            self._link.in_use -= 1
            if not over.done():
                self._link.kill(attempt)
        self._check(report, what)

    def _check(self, report: Finished | None, what: str) -> None:
        if report is None:
            raise self._lost()
        if report.verdict is Verdict.RETURNED:
            return
        outcome = report.outcome
        # the task's error is not unpickled, because its pickle comes from an untrusted node
        if report.verdict is Verdict.RAISED:
            failed = cast("tuple[Failed, object]", outcome)[0]
            story, full = f"{failed.kind}: {failed.message}", f"Errno {errno.ENOSPC}]" in failed.message
        else:
            story, full = f"its process ended by {cast('Ended', outcome).cause}", False
        raise TransferError(f"{what} on {self.name} failed ({plain(story)}).", node=self.rank, full=full)

    def _lost(self) -> NodeLost:
        whose = self.name if self.rank is None else f"the node of rank {self.rank}"
        story = f"{whose} was lost before its files had been transferred."
        return NodeLost(story, task="files", node=int(self.node), rank=self.rank or 0)


# --- from the nodes ---------------------------------------------------------------------------------------------------


def fetch_folder(owners: dict[Path, int], to: Path, rank: int | None, node: int) -> Path:
    """Return the local folder for a node's files, named by the node's rank or id.

    ``owners``: maps each folder that has files of a node to that node.

    FETCH-5: files of two nodes never share a path, neither in one fetch nor in several fetches of a pool.
    """
    if rank is not None:
        folder = to / f"node-{rank}"
        if owners.setdefault(folder, node) == node:
            return folder
    return to / f"node-id-{node}"


class Fetch(NamedTuple):
    """One call of `Pool.fetch`.

    ``to``: the local folder. ``strip``: a prefix of names on the node, removed from the local names.
    """

    pattern: str
    to: Path
    limits: FetchLimits
    strip: str = ""

    @classmethod
    def of(cls, pattern: str, to: str | PathLike[str], *, max_files: int, max_gb: float) -> Self:
        return cls(work_files("fetch", pattern), _absolute(to), FetchLimits.of(max_files, max_gb))

    async def run(self, places: Sequence[Place], owners: dict[Path, int]) -> list[Path]:
        """Fetch the files of these nodes, and return their local paths. ``owners``: as in `fetch_folder`."""
        fetched = await _each(_fetch_from(place, self, owners) for place in places)
        return [path for paths in fetched for path in paths]


async def fetch(core: OpenPool, request: Fetch, on: int | Literal["head"] | None) -> list[Path]:
    """Implement `Pool.fetch`."""
    gone = "Files leave with their nodes: fetch them before, or keep them by Pool(keep=...)."
    return await request.run(_some_places(core, on, f"nothing can be fetched. {gone}", leaving=True), core.fetch_owners)


async def _fetch_from(place: Place, request: Fetch, owners: dict[Path, int]) -> list[Path]:
    output, incoming = _PlainValues(), IncomingFiles(place.name, request.limits, place.rank)
    writer: FileWriter | None = None

    async def receive() -> None:
        nonlocal writer
        async for received in output:
            try:
                value = plain_value(received.data)
            except Exception as error:
                story = f"{place.name} sent what is no part of a file: nothing more is taken from it."
                raise TransferError(story, node=place.rank) from error
            parts = incoming.take(value)
            if writer is None and parts:
                writer = FileWriter(fetch_folder(owners, request.to, place.rank, place.node), strip=request.strip)
            if writer is not None:
                await in_thread(_write, writer, parts)

    try:
        await place.run(send_files(request.pattern), f"fetch of {request.pattern!r}", output=output, during=receive())
    finally:
        if writer is not None:
            await in_thread(writer.close)
    if incoming.unread:
        (name, why), others = incoming.unread, incoming.unread_count - 1
        more = f", and {others} more" if others else ""
        raise TransferError(
            f"{name} of {place.name} could not be read there ({why}){more}; all other files have been fetched.",
            path=name,
            node=place.rank,
        )
    return [] if writer is None else writer.written


def _write(writer: FileWriter, parts: Sequence[Part]) -> None:
    try:
        for part in parts:
            writer.write(part)
    except OSError as error:
        path, full = str(writer.path), error.errno in {errno.ENOSPC, errno.EDQUOT}
        mend = "free some space, or fetch to another disk with to=." if full else "see what stands in the way there."
        raise TransferError(f"{path} could not be written ({error.strerror}): {mend}", path=path, full=full) from error


class _PlainValues(Values):
    def push(self, item: Received | Awaitable[Received], grant: Callable[[int], None]) -> None:
        """Accept an item with file contents.

        An item in a blob, which could have any size, is a protocol violation: the node is dropped.
        """
        if not isinstance(item, Received):
            cast("asyncio.Task[Received]", item).cancel()
            raise ProtocolError("a part of a file in a blob")
        super().push(item, grant)


# --- to the nodes -----------------------------------------------------------------------------------------------------


async def push(core: OpenPool, path: str | PathLike[str], to: str, on: int | Literal["head"] | None) -> None:
    """Implement `Pool.push`."""
    source, folder = _absolute(path), work_files("push(to=)", to)
    if not _is_there(source) or not source.name:
        refuse(f"push takes a file or a folder, and {str(path)!r} is none here.")
    later = "Nodes that join later do not get it either: send what all need by Image(includes=[...])."
    ready = _some_places(core, on, f"nothing can be pushed. {later}")
    await _each(_push_to(place, source, folder) for place in ready)


async def _push_to(place: Place, path: Path, to: str) -> None:
    unread: list[OSError] = []

    def items() -> Iterator[list[Part]]:
        try:
            yield from grouped(_parts_below(path))
        except OSError as error:
            unread.append(error)
            raise

    call = take_files(to, items())
    try:
        await place.run(call, f"push of {path.name!r}")
    except TransferError as error:
        if not unread:
            raise
        at = str(unread[0].filename or path)
        raise TransferError(f"{at} cannot be read here ({unread[0].strerror}).", path=at) from error


def _parts_below(path: Path) -> Iterator[Part]:
    names = [path.name] if path.is_file() else (os.path.relpath(each, path.parent) for each in below(path))
    for name in names:
        for part in parts_of(name, path.parent / name):
            if part[0] == "unread":
                raise PermissionError(errno.EACCES, str(part[2]), str(path.parent / name))
            yield part


# --- at the end of a pool -------------------------------------------------------------------------------------------


async def keep(core: OpenPool, folder: str, block_error: BaseException | None) -> None:
    """Fetch a folder of every node at the end of the pool's block, also after a cancellation.

    If the program is about to end, because of ``block_error`` or a cancellation, the fetch takes at most `KEEP_S`. A
    pool that has failed has no nodes, so nothing is fetched.

    Raises:
        TransferError, NodeLost: only if the block has no error; else a note is added to the block's error.
        asyncio.CancelledError: this call was cancelled; raised at the end.
    """
    if not core.takes_jobs:
        return
    try:
        await _keep(core, folder, block_error)
    except (NodeLost, TransferError) as lacking:
        if block_error is None:
            raise
        block_error.add_note(f"Pool(keep=): {lacking}")


async def _keep(core: OpenPool, folder: str, block_error: BaseException | None) -> None:
    hurried = isinstance(block_error, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
    request = Fetch(folder, core.began_in / folder, FetchLimits.of(MAX_FILES, MAX_GB), f"{folder.rstrip('/')}/")
    loop = asyncio.get_running_loop()
    keeping = loop.create_task(request.run(places(core, leaving=True), core.fetch_owners))
    until, cancelled = loop.time() + KEEP_S if hurried else math.inf, None
    with anyio.CancelScope(shield=True):
        while not keeping.done():
            left_s = until - loop.time()
            if left_s <= 0:
                keeping.cancel()
            try:
                await asyncio.wait([keeping], timeout=left_s if 0 < left_s < math.inf else None)
            except asyncio.CancelledError as error:
                cancelled, until = cancelled or error, min(until, loop.time() + KEEP_S)
    if cancelled is not None:
        raise cancelled
    if keeping.cancelled():
        story = f"not all of keep={folder!r} came within {KEEP_S:g} s, and the program was to end."
        raise TransferError(story, path=str(request.to))
    keeping.result()


# --- helpers of fetch and push ----------------------------------------------------------------------------------------


async def _each(transfers: Iterator[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all transfers to their ends, then raise the first error. On cancellation, end all transfers."""
    scopes = [(anyio.CancelScope(), each) for each in transfers]
    tasks = [asyncio.ensure_future(_within(scope, each)) for scope, each in scopes]
    try:
        await asyncio.wait(tasks) if tasks else None
    finally:
        # Cancel the scopes, not the tasks: a cancelled scope waits for a thread that is writing, and closes the file
        # after that.
        for scope, _ in scopes:
            scope.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = [error for task in tasks if (error := task.exception()) is not None]
    if not errors:
        return [task.result() for task in tasks]
    for other in errors[1:]:
        errors[0].add_note(f"and {other}")
    raise errors[0]


async def _within(scope: anyio.CancelScope, transfer: Coroutine[Any, Any, T]) -> T:
    with scope:
        return await transfer
    raise asyncio.CancelledError


def _some_places(
    core: OpenPool, on: int | Literal["head"] | None, otherwise: str, *, leaving: bool = False
) -> list[Place]:
    """Return the nodes to transfer files from or to.

    Raises:
        CapacityError: no node is ready; its message ends with ``otherwise``, the consequence for the transfer.
    """
    if chosen := places(core, on, leaving=leaving):
        return chosen
    what = f"No node of the pool is ready, and it wants {core.observer.snapshot().desired} now: {otherwise}"
    raise CapacityError(what, wanted=1, got=0)


def places(core: OpenPool, on: int | Literal["head"] | None = None, *, leaving: bool = False) -> list[Place]:
    """Return the ready nodes, or the node of rank ``on``.

    ``leaving``: without ``on``, include nodes that are leaving.
    """
    rank, nodes = placement(on, most=core.most), core.observer.snapshot().nodes
    ready = sorted((node.rank, node.node) for node in nodes if node.rank is not None)
    chosen: list[tuple[int | None, int]] = [(each, node) for each, node in ready if rank in {None, each}]
    if rank is not None and not chosen:
        raise NodeLost(f"the node of rank {rank} is not ready.", task="files", rank=rank)
    if leaving and rank is None:
        chosen += [(None, node.node) for node in nodes if node.rank is None and node.state in ABOUT_TO_LEAVE]
    return [Place(core, NodeId(node), each) for each, node in chosen]


def _is_there(path: Path) -> bool:
    """Return whether the path is a file or a folder. For pipes and devices return False: they are not transferred."""
    return os.path.isfile(path) or os.path.isdir(path)  # noqa: PTH112, PTH113 - those of Path may raise an OSError


def _absolute(path: object) -> Path:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:  # an empty path would mean the whole work folder
        refuse(f"fetch and push take paths, not {shown(path)}.")
    return Path(os.path.abspath(text))  # noqa: PTH100  without following links: a pushed one keeps its own name
