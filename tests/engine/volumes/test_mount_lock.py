"""Who takes a mount away: exactly one, the last one; whoever dies lets go."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.engine.volumes import mount as mount_lock
from outrider.engine.volumes.mount import MountLock


class Sharing(RuleBasedStateMachine):
    """Supervisors come, leave in order, and die; each does to the mount what `mount.VolumeMount` does."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.registry = Path(self.scratch.name) / "run" / "volumes"
        self.wanting: list[MountLock] = []
        self.lingering: list[MountLock] = []
        self.owner: MountLock | None = None

    @rule()
    def come(self) -> None:
        lock = MountLock(self.registry, "/data")
        with lock.alone():
            lock.use()
            if lock.own():
                assert self.owner is None, "LOCK-1: a mount has one owner"
                self.owner = lock
                lock.write_facts({"made": ["/data"]})
            else:
                assert self.owner is not None, "LOCK-2: who does not own it can rely on somebody who does"
                assert lock.read_facts() == {"made": ["/data"]}
        self.wanting.append(lock)

    @precondition(lambda self: self.wanting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        lock = data.draw(st.sampled_from(self.wanting))
        self.wanting.remove(lock)
        self.lingering.append(lock)
        self.try_to_end(lock)

    @precondition(lambda self: self.lingering)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        self.try_to_end(data.draw(st.sampled_from(self.lingering)))

    @precondition(lambda self: self.wanting or self.lingering)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        lock = data.draw(st.sampled_from(self.wanting + self.lingering))
        for locks in (self.wanting, self.lingering):
            if lock in locks:
                locks.remove(lock)
        lock.close()
        if lock is self.owner:
            self.owner = None
            self.inherit()

    def inherit(self) -> None:
        """The first that looks after it becomes the owner."""
        for lock in (*self.wanting, *self.lingering):
            if lock.own():
                assert self.owner is None, "LOCK-1"
                self.owner = lock
                lock.write_facts({"made": ["/data"]})

    def try_to_end(self, lock: MountLock) -> None:
        with lock.alone():
            if lock.leave() and lock.own():
                assert not self.wanting, "LOCK-3: nobody's mount is taken away"
                self.owner = None
                lock.remove()
            elif lock is self.owner:
                assert self.wanting, "LOCK-4: the last one takes it away"
                return
            lock.close()
        self.lingering.remove(lock)

    @invariant()
    def someone_owns_what_is_wanted(self) -> None:
        assert not self.wanting or self.owner is not None

    def teardown(self) -> None:
        for lock in (*self.wanting, *self.lingering):
            lock.close()
        self.scratch.cleanup()


TestSharing = Sharing.TestCase
TestSharing.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)


@given(st.text("abc/", min_size=1))
@settings(max_examples=20, deadline=None)
def test_nothing_is_left_of_a_claim(tmp_path_factory, mount: str) -> None:
    registry = tmp_path_factory.mktemp("run") / "outrider" / "volumes"
    lock = MountLock(registry, mount)
    with lock.alone():
        lock.use()
        assert lock.own()
        lock.write_facts({"made": [mount]})
        assert lock.read_facts() == {"made": [mount]}
        lock.remove()
    assert not registry.parent.exists()


@pytest.mark.parametrize("what", ["host", "namespace"])
def test_hosts_that_share_a_home_have_mounts_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """NFS shares locks among hosts, and a kernel among its containers: a mount is seen by neither."""
    here = MountLock(tmp_path, "/data")
    with monkeypatch.context() as patch:
        (tmp_path / "another").write_text("one")
        patch.setattr(mount_lock, "_BOOT" if what == "host" else "_NAMESPACE", tmp_path / "another")
        there = MountLock(tmp_path, "/data")
    for each in (here, there):
        with each.alone():
            each.use()
            assert each.own()
    for each in (here, there):
        each.close()
