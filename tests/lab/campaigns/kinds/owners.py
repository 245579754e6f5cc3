"""What befalls clients and what they wrote down: they are killed, they are several, their computer is renamed."""

from __future__ import annotations

import random
import shutil
import threading
import time
from pathlib import Path

from lives.clients import until

from ..life import Kind, Life
from ..proxy import Call, CutAfter, CutBefore, Fault
from ..site import Client
from ..wish import Wish

CALLS = 30  # of a small pool, from its first to its last, and some to spare
DELAYS_S = (0.0, 0.0, 0.05, 0.2, 0.6, 1.5)
ENOUGH_S = 12.0  # in which a small pool opens, works and closes
STRANGER = "bob@elsewhere"
NAMES = (
    *("a" * 63, "a" * 64, "a.b_c-d", "-x", "x y", "ünï", "*", "x*", "a/b", "../x", "", "x\ny"),
    *("left'; rm", "[bold]x[/bold]", "A", "$HOME", "%s", "\x1b[2J", "x\0y", "nul", ".", ".."),
)


def hostname(name: str) -> tuple[str, ...]:
    """Runs a command on a computer of that name."""
    return ("unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh")


def tiny(folder: Path, options: str, *, filled: bool = False) -> tuple[str, ...]:
    """Runs a command that alone sees a file system of its own at ``folder``."""
    fill = f"; cat /dev/zero >{folder}/full 2>/dev/null" if filled else ""
    return ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o {options} none {folder}{fill}; exec "$@"', "sh")


def killed(life: Life) -> None:
    """SIGKILL at any moment or call, beside a living pool of the same name and strangers' things"""
    living = life.client(Wish(nodes=1, lease_s=30.0, rounds=2, waits=True))
    living.wait("ready", 120.0)
    before = {each.id for each in life.site.running(living)}
    life.strangers |= life.site.strangers("theirs-123456", owner=STRANGER)
    victims = [life.client(Wish(nodes=life.dice.randint(1, 2), lease_s=4.0)) for _ in range(life.dice.randint(1, 3))]
    _dies(life, victims)
    for victim in victims:
        life.end(victim)
    life.suffers()
    at_once = life.dice.random() < 0.3
    if not at_once:
        life.machines_end()
    gc = life.site.gc("--apply")
    life.expect(gc.status == 0, f"CHAOS-10: gc beside a living pool exits with {gc.status}: {gc.text}")
    there = {each.id for client in victims for each in life.site.running(client)}
    life.expect(not there, f"CHAOS-10: gc left {there}: {gc.text}")
    life.expect(before == {each.id for each in life.site.running(living)}, "CHAOS-9: a living pool lost its machines")
    living.go()
    life.end(living)


def clients(life: Life) -> None:
    """four clients of one pool name; one is killed, and a gc comes meanwhile"""
    four = [life.client(Wish(nodes=life.dice.randint(1, 2), lease_s=30.0, rounds=2, waits=True)) for _ in range(4)]
    for each in four:
        each.wait("ready", 200.0)
    victim = life.dice.choice(four)
    life.kill(victim)
    gc = life.site.gc("--apply")
    life.expect(gc.status == 0, f"CHAOS-10: gc beside living pools exits with {gc.status}: {gc.text}")
    life.expect(not life.site.running(victim), f"CHAOS-10: gc left a dead pool's machines: {gc.text}")
    for each in four:
        if each is not victim:
            there = len(life.site.running(each))
            life.expect(there == each.wish.nodes, f"CHAOS-9: {there} of {each.wish.nodes} machines are left: {gc.text}")
            each.go()


def attach(life: Life) -> None:
    """two clients attach to a dead one's pool at once: one has it, with the same machines"""
    before = _dead(life, lease_s=60.0)
    pair = [life.client(Wish(attach=True, lease_s=60.0), fits=("SpecError",)) for _ in range(2)]
    for each in pair:
        life.end(each)
    refused = [word["type"] for each in pair for word in each.said("raised")]
    life.expect(refused == ["SpecError"], f"CHAOS-9: of two that attach, these were refused: {refused}")
    _same(life, before)


def deleted(life: Life) -> None:
    """the state directory is deleted after the death: nothing is attached to, and gc has to be told where"""
    _dead(life, lease_s=4.0)
    shutil.rmtree(life.site.state)
    life.end(life.client(Wish(attach=True, lease_s=4.0), fits=("SpecError",), whole=False))
    _told_where(life)


def live_deleted(life: Life) -> None:
    """the state directory is deleted while the pool lives, and a gc comes: it works on"""
    client = life.client(Wish(waits=True, lease_s=30.0))
    client.wait("ready", 120.0)
    until(lambda: _deleted(life.site.state), 10.0, "the state directory is deleted")
    life.site.gc("--apply", "--region", life.site.cloud.region)
    there = len(life.site.running(client))
    life.expect(there == client.wish.nodes, f"CHAOS-9: {there} machines are left of a living pool")
    client.go()
    life.end(client)
    _told_where(life)


def _deleted(folder: Path) -> bool:
    """Try to delete a folder; whoever writes there meanwhile, as a living client its record, may keep it from that."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def damaged(life: Life) -> None:
    """the journal is overwritten or cut while nobody has it: attaching finds the same machines"""
    before = _dead(life, lease_s=60.0)
    journal = life.site.state / "journal.db"
    size = journal.stat().st_size
    if life.dice.random() < 0.5:
        with journal.open("r+b") as file:
            file.seek(life.dice.randrange(size))
            file.write(random.Random(life.dice.random()).randbytes(400))
    else:
        with journal.open("r+b") as file:
            file.truncate(life.dice.randrange(size))
    life.end(life.client(Wish(attach=True, lease_s=60.0)))
    _same(life, before)


def no_space(life: Life) -> None:
    """the state directory is full, or cannot be written, from the beginning: nothing is created"""
    life.site.state.mkdir()
    options, filled = life.dice.choice((("ro", False), ("size=64k", True), ("size=4k", True)))
    before = tiny(life.site.state, options, filled=filled)
    client = life.client(Wish(rounds=1), fits=("OutriderError",), whole=False, before=before)
    life.end(client)
    written = life.site.proxy.writes[client.key]
    life.expect(not written, f"CHAOS-2: {written} writes, though nothing could be written down")


def live_full(life: Life) -> None:
    """the state directory fills while the pool lives, then a machine is taken: no machine is left"""
    life.site.state.mkdir()
    wish = Wish(spot=True, rounds=20, lease_s=8.0)
    client = life.client(wish, fits=("OutriderError",), surplus=1, before=tiny(life.site.state, "size=2m"))
    if client.wait("ready", 120.0):
        full = Path(f"/proc/{client.process.pid}/root", str(life.site.state).lstrip("/"), "full")
        _fill(full)
        life.passes(0.0, 2.0)
        for each in life.site.running(client)[:1]:
            life.site.cloud.interrupt(each.id, notice_s=0.0)
    life.end(client)
    _told_where(life)


def renamed(life: Life) -> None:
    """the computer has another name at each client, and at the gc that removes what they left"""
    client = life.client(Wish(waits=True, lease_s=8.0), before=hostname("c1"))
    client.wait("ready", 120.0)
    life.kill(client)
    if life.dice.random() < 0.5:
        second = life.client(Wish(attach=True, waits=True, lease_s=8.0), before=hostname("c2"))
        second.wait("ready", 120.0)
        life.kill(second)
    if life.dice.random() < 0.5:  # a gc that cannot end the machines has taken the pool over all the same
        life.suffers(lambda call: CutBefore() if call.action == "TerminateInstances" else None)
        gc = life.site.gc("--apply", before=hostname("home"))
        left = [each.id for maker in life.site.clients for each in life.site.running(maker)]
        # on a slow computer their leases may have run out before gc came to them
        life.expect(gc.status != 0 or not left, f"CHAOS-10: gc exits with 0, and there are {left}: {gc.text}")
    life.collects = life.dice.random() < 0.5
    life.gc_before = hostname(life.dice.choice(("home", "c3", "c1")))


def copied(life: Life) -> None:
    """a stranger's things carry our dead pool's tags, as "Launch more like this" makes them"""
    _dead(life, lease_s=6.0)
    pool = life.site.machines(life.site.clients[0])[0].tags["outrider:pool"]
    if life.dice.random() < 0.5:
        life.machines_end()
    life.strangers |= life.site.strangers(pool, owner=STRANGER)


def untagged(life: Life) -> None:
    """somebody removes the tags of a living pool's machines: it keeps them, and ends them"""
    client = life.client(Wish(waits=True, lease_s=20.0, rounds=1))
    if client.wait("ready", 120.0):
        ids = [each.id for each in life.site.running(client)]
        ec2 = life.site.boto()
        ec2.delete_tags(Resources=ids, Tags=[{"Key": key} for key in ("outrider:pool", "outrider:launch")])
        ec2.close()
        time.sleep(70.0)  # a machine that nothing shows for a minute counts as gone
        there = {each.id for each in life.site.running(client)}
        life.expect(there == {*ids}, f"CHAOS-9: {ids} had no tags any more, and now there are {there}")
    client.go()
    life.end(client)


def names(life: Life) -> None:
    """a name that is odd works, or is refused before anything is created"""
    client = life.client(Wish(name=life.dice.choice(NAMES), rounds=1), fits=("SpecError",))
    life.end(client)
    written = life.site.proxy.writes[client.key]
    life.expect(not (client.said("raised") and written), f"CHAOS-2: {written} writes for a name that was refused")


def _dies(life: Life, victims: list[Client]) -> None:
    """Each at a moment, or at one of its calls: before it is made, or a little after it was carried out."""
    calls: dict[str, tuple[Client, int, bool, float]] = {}
    for victim in victims:
        if life.dice.random() < 0.4:
            threading.Timer(life.dice.uniform(0.0, ENOUGH_S), victim.kill).start()
        else:
            number, before = life.dice.randint(1, CALLS), life.dice.random() < 0.3
            calls[victim.key] = victim, number, before, life.dice.choice(DELAYS_S)

    def rule(call: Call) -> Fault | None:
        if call.client not in calls or call.serial != calls[call.client][1]:
            return None
        victim, _, before, delay_s = calls[call.client]
        if delay_s and not before:
            threading.Timer(delay_s, victim.kill).start()
            return None
        victim.kill()
        return CutBefore() if before else CutAfter()

    life.suffers(rule)


def _dead(life: Life, *, lease_s: float) -> set[str]:
    """A client that was killed when it had its machines; these."""
    client = life.client(Wish(waits=True, lease_s=lease_s))
    client.wait("ready", 120.0)
    life.kill(client)
    return {each.id for each in life.site.running(client)}


def _same(life: Life, before: set[str]) -> None:
    now = {each.id for each in life.site.cloud.instances()}
    life.expect(now == before, f"CHAOS-9: {before} were attached to, and then there were {now}")


def _told_where(life: Life) -> None:
    """The journal is gone: only who names the place and answers for it can remove what is there."""
    life.gc = ("--apply", "--foreign", "--region", life.site.cloud.region)


def _fill(file: Path) -> None:
    """To the last byte."""
    try:
        with file.open("wb", buffering=0) as zeros:
            while True:
                zeros.write(bytes(4096))
    except OSError:
        pass


KINDS = (
    Kind("killed", killed),
    Kind("clients", clients),
    Kind("attach", attach),
    Kind("deleted", deleted),
    Kind("live-deleted", live_deleted),
    Kind("damaged", damaged),
    Kind("no-space", no_space),
    Kind("live-full", live_full),
    Kind("renamed", renamed),
    Kind("copied", copied),
    Kind("untagged", untagged),
    Kind("names", names),
)
