"""What is mounted where, as the kernel tells it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.volumes import mount

LINE = "{} {} {} rw,nosuid,nodev,relatime,user_id=0,group_id=0,allow_other 0 0"
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


def written(text: str) -> str:
    """As the kernel writes it, fs/proc_namespace.c's mangle: blanks, backslashes and "#" in octal."""
    return "".join(f"\\{ord(letter):03o}" if letter in " \t\n\\#" else letter for letter in text)


@given(st.lists(st.tuples(WORDS.map("/{}".format), st.sampled_from(["fuse.rclone", "ext4"]), WORDS), max_size=4))
def test_every_mount_is_found(table: list[tuple[str, str, str]]) -> None:
    lines = [LINE.format(written(source), written(point), kind) for point, kind, source in table]
    assert mount.parse("\n".join(lines)) == [mount.MountEntry(*row) for row in table]


def test_lines_that_are_no_mounts_are_skipped() -> None:
    assert mount.parse("") == []
    assert mount.parse("something else\n") == []


def test_a_line_may_have_further_fields() -> None:
    assert mount.parse("s3:b /data fuse.rclone rw 0 0 new\n") == [mount.MountEntry("/data", "fuse.rclone", "s3:b")]


def test_this_machine_has_a_root() -> None:
    found = mount.mount_at("/")
    assert found is not None
    assert not mount.is_dead("/")
    assert mount.mount_at("/no/such/place") is None
