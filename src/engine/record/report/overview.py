"""The top of a report: how the run ended, its key figures, and its failures. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from ....actors import events as ev
from ....lazy_dataclass import dataclass
from ...api.quantities import cents, count, seconds
from .contents import Contents, first_failed
from .markup import facts_list, fold, line, text

State = Literal["running", "ended", "failed", "stopped", "killed", "unknown"]
WORDS: dict[State, str] = {
    "running": "running",
    "ended": "ended well",
    "failed": "failed",
    "stopped": "was stopped",
    "killed": "its program was killed",
    "unknown": "of another computer",
}
STOPPED_CODES = (129, 130, 143)  # exit codes of a program ended by a closed terminal (SIGHUP), Ctrl-C and SIGTERM
MOST_OTHERS = 20


class Failed(NamedTuple):
    """A group of equal failures of calls.

    ``where``: the function and its rank or node. ``error``: the error as one line. ``times``: how often it occurred.
    """

    where: str
    error: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a run.

    ``first``: the call that failed first. ``traceback``: of the rank that failed first, or else of the program's error.
    """

    headline: str
    traceback: str
    first: Failed | None
    others: Sequence[Failed]


def state_of(contents: Contents) -> State:
    if not contents.run.ended:
        return {"alive": "running", "dead": "killed"}.get(contents.owner or "", "unknown")  # type: ignore[return-value]
    code = contents.run.status.get("exit")
    return "ended" if code == 0 else "stopped" if code in STOPPED_CODES else "failed"


def failure_of(contents: Contents) -> Failure | None:
    """Return the failure of the run; None: no failure was reported."""
    failed = [event for event in contents.events if isinstance(event, ev.JobFailed)]
    error = contents.result.get("error")
    error = error if isinstance(error, dict) else {}
    if not failed and not error:
        return None
    first = first_failed(contents.result)
    failures = _grouped(failed)
    if first:
        rank = first.get("rank")
        function = next((event.function for event in failed if rank in event.ranks), "the broadcast")
        where = f"{function} on rank {rank}, node {first.get('node')}"
        head = Failed(where, _error(first))
        others = [each for each in failures if each.where.partition(" on ")[2] != where.partition(" on ")[2]]
        return Failure(str(error.get("message", "")), str(first.get("traceback", "")), head, others)
    ended = _error(error) if error else ""
    return Failure(ended, str(error.get("traceback", "")), failures[0] if failures else None, failures[1:])


def summary(contents: Contents, state: State) -> str:
    """Return two or three sentences that describe the run."""
    status, events = contents.run.status, contents.events
    most = status.get("most_nodes") or 0
    provider = str(status.get("provider") or "")
    took = seconds(contents.ended - contents.began)
    where = {"local": "this computer", "ssh": "hosts reached by SSH"}.get(
        provider, provider.upper() or "no provider yet"
    )
    verb = {"running": "Has been running for", "killed": "Ran for at least"}.get(state, "Ran for")
    sentences = [f"{verb} {took} on {count(most, 'node')} ({where})"]
    lost = sorted({event.node for event in events if isinstance(event, ev.NodeLost)})
    generations = sum(isinstance(event, ev.GenerationStarted) for event in events)
    broadcasts = sum(isinstance(event, ev.BroadcastSubmitted) for event in events)
    if lost:
        shown = f" (node{'s' if len(lost) > 1 else ''} {_listed(lost)})" if len(lost) <= 12 else ""
        sentences.append(f"{count(len(lost), 'node')} {'was' if len(lost) == 1 else 'were'} lost{shown}")
    if broadcasts:
        sentences.append(f"{count(broadcasts, 'broadcast')} took {count(generations, 'generation')}")
    return ". ".join(sentences) + "."


def figures(contents: Contents, state: State) -> list[tuple[str, str, str]]:
    """Return the key figures of the run: (name, value, note)."""
    status, events = contents.run.status, contents.events
    used = {event.node for event in events if isinstance(event, ev.NodeLaunching | ev.NodeReady)}
    lost = {event.node for event in events if isinstance(event, ev.NodeLost)}
    calls = contents.result.get("calls")
    counted = [each for each in calls.values() if isinstance(each, dict)] if isinstance(calls, dict) else []
    spent = contents.run.spent_usd(contents.now if state == "running" else None) or 0.0
    code = status.get("exit")
    nodes = f"{status.get('nodes', 0)} now" if state == "running" else f"{len(used):,} used in all" if used else ""
    result = [
        ("Took" if state != "running" else "So far", seconds(contents.ended - contents.began), ""),
        ("Nodes", f"{status.get('most_nodes', 0):,}", nodes),
        ("Lost", f"{len(lost):,}", "nodes"),
        ("Generations", f"{sum(isinstance(event, ev.GenerationStarted) for event in events):,}", "of broadcasts"),
        ("Cost", cents(spent), "USD"),
        ("Exit code", "-" if code is None else str(code), str(status.get("error") or "")),
    ]
    if counted:
        total, failed = (sum(int(each.get(name, 0)) for each in counted) for name in ("calls", "failed"))
        result.insert(4, ("Calls", f"{total:,}", f"{failed:,} failed" if failed else "none failed"))
    return result


def head(contents: Contents) -> str:
    """Return the top of the page as HTML."""
    state = state_of(contents)
    about, run = contents.about, contents.run
    when = datetime.fromtimestamp(contents.began, UTC)
    rows = "".join(
        f"<div><dt>{text(name)}</dt><dd><b>{text(value)}</b>{note and f' <small>{line(note)}</small>'}</dd></div>"
        for name, value, note in figures(contents, state)
    )
    command = shown_command(about.get("argv"))
    shown = f'<p class="command"><code>{line(command)}</code></p>' if command else ""
    return (
        f'<p class="eyebrow"><time datetime="{when:%Y-%m-%dT%H:%M:%SZ}">{when:%d %B %Y, %H:%M:%S} UTC</time>'
        f' <span class="mono">{text(run.id)}</span></p>'
        f'<div class="title"><h1>{text(run.name)}</h1>'
        f'<span class="state s-{state}"><i aria-hidden="true"></i>{text(WORDS[state])}</span></div>'
        f'<p class="lead">{text(summary(contents, state))}{_as_of(contents, state)}</p>'
        f'{shown}<dl class="figures">{rows}</dl>{_failure(contents)}'
    )


def shown_command(words: object) -> str:
    """Return the command line of a program, with only the file name of the interpreter, not its path."""
    if not isinstance(words, list) or not words:
        return ""
    return " ".join([str(words[0]).rpartition("/")[2], *map(str, words[1:])])


def _as_of(contents: Contents, state: State) -> str:
    if state == "running":
        now = datetime.fromtimestamp(contents.now, UTC)
        return f" The run goes on: this page shows it as of {now:%H:%M:%S} UTC."
    if state == "killed":
        return " Its program was killed before it could end the run: what it had not written is not here."
    return ""


def _failure(contents: Contents) -> str:
    failure = failure_of(contents)
    if failure is None:
        return ""
    first = failure.first
    title = f"{text(first.where)}" if first else "The program"
    error = first.error if first else failure.headline
    more = sum(each.times for each in failure.others)
    others = ""
    if more:
        rows = "".join(
            f"<li><b>{line(each.where)}</b> {line(each.error)}</li>" for each in failure.others[:MOST_OTHERS]
        )
        left = len(failure.others) - MOST_OTHERS
        rows += f"<li>and {left:,} more</li>" if left > 0 else ""
        ranks = "1 other failure followed" if more == 1 else f"{more:,} other failures followed"
        others = fold(ranks, f"<ul>{rows}</ul>", kind="quiet")
    trace = f'<pre class="trace" tabindex="0">{text(failure.traceback.rstrip())}</pre>' if failure.traceback else ""
    return (
        '<section class="failure" aria-labelledby="failure"><h2 id="failure">What failed first</h2>'
        f'<p class="error"><span>{title}</span> <code>{line(error)}</code></p>{trace}{others}</section>'
    )


def _grouped(failed: Sequence[ev.JobFailed]) -> list[Failed]:
    return list(_failures(failed))


def _failures(failed: Sequence[ev.JobFailed]) -> Iterator[Failed]:
    for event in failed:
        ranks = f"rank{'s' if len(event.ranks) > 1 else ''} {_listed(event.ranks)}" if event.ranks else ""
        on = f"{ranks}, node {event.node}" if len(event.ranks) == 1 else ranks or f"node {event.node}"
        yield Failed(f"{event.function} on {on}", event.error, max(1, len(event.ranks)))


def _error(error: Mapping[str, object]) -> str:
    message = " ".join(str(error.get("message") or "").split())
    return f"{error.get('type', 'error')}: {message}" if message else str(error.get("type", "error"))


def _listed(numbers: Sequence[int]) -> str:
    """Format numbers as text, with consecutive numbers joined: 0, 2-3."""
    groups: list[list[int]] = []
    for number in sorted(numbers):
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in groups)


def program_facts(contents: Contents) -> str:
    """Return HTML with the facts about the program, its computer and its user."""
    about = contents.about
    owner = about.get("owner") if isinstance(about.get("owner"), dict) else {}
    assert isinstance(owner, dict)
    git = about.get("git") if isinstance(about.get("git"), dict) else None
    pairs = [
        ("Folder", about.get("cwd")),
        ("By", f"{owner.get('user')} on {owner.get('host')}" if owner.get("user") else None),
        ("Pool", contents.run.status.get("pool")),
        ("Provider", contents.run.status.get("provider")),
        ("Python", about.get("python")),
        ("Platform", about.get("platform")),
    ]
    shown = [(name, f"<span>{line(value)}</span>") for name, value in pairs if value]
    if git is not None:
        changed = " with changes, in git.diff" if git.get("changed") else ""
        branch = f" on {git.get('branch')}" if git.get("branch") else ""
        shown.insert(1, ("Git", f"<code>{line(str(git.get('commit'))[:12])}</code>{line(branch + changed)}"))
    return facts_list(shown)
