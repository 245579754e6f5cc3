"""What `Volume` and `Pool(volumes=...)` accept, and what they say to everything else."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import SSH, Local, Pool, Secret, SpecError, Volume
from outrider.engine.api.volume import check_volumes
from outrider.engine.volumes import mount_path

KEYS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "canary-1c7d"}
NAMES = st.text("abcz09._ -", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
FOLDERS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/data/" + "/".join(names))


def test_a_volume_is_what_was_written() -> None:
    volume = Volume("s3://my-bucket/imagenet/train/", mount="/data/")
    assert (volume.bucket, volume.prefix, volume.mount) == ("my-bucket", "imagenet/train", "/data")
    assert volume.read_only
    assert volume == Volume("s3://my-bucket/imagenet/train/", mount="/data")
    assert Volume("s3://my-bucket", mount="/data").prefix == ""


@pytest.mark.parametrize(
    "url",
    [
        "my-bucket", "/data", "gs://my-bucket", "S3://my-bucket", "s3:/my-bucket", "s3://", "s3:///x", "s3://My-Bucket",
        "s3://ab", "s3://a_b_c", "s3://-abc", "s3://a..b", "s3://10.0.0.1", "s3://" + 64 * "a", "s3://my-bucket//x",
        "s3://my-bucket/a//b", "s3://my-bucket/../x", "s3://my-bucket/a/.", "s3://my-bucket/a\nb", "s3://u:p@my-bucket",
        "s3://my-bucket/" + 1001 * "x", "", 7, None,
    ],
)  # fmt: skip
def test_other_urls_are_refused(url: Any) -> None:
    with pytest.raises(SpecError, match="Volume"):
        Volume(url, mount="/data")


@pytest.mark.parametrize(
    "mount",
    [
        "", "data", "./data", "~/data", "/", "//", "/data/../etc", "/data//x", "/./data", "/data\n", "/da\0ta", "/home",
        "/home/ada", "/etc", "/etc/x", "/usr/local/data", "/tmp", "/var", "/var/lib", "/proc/x", "/dev/shm",
        "/run/data", "/root", "/lib64", 7, None,
    ],
)  # fmt: skip
def test_other_folders_are_refused(mount: Any) -> None:
    with pytest.raises(SpecError, match=r"Volume\(mount="):
        Volume("s3://my-bucket", mount=mount)


@pytest.mark.parametrize("mount", ["/data", "/data/x", "/mnt/data", "/home/ada/data", "/root/data", "/etcetera"])
def test_folders_of_ones_own_are_taken(mount: str) -> None:
    assert Volume("s3://my-bucket", mount=mount).mount == mount


@pytest.mark.parametrize(
    "options",
    [
        {"read_only": 1}, {"region": "eu west"}, {"region": ""}, {"region": 7}, {"endpoint": "minio:9000"},
        {"endpoint": "ftp://minio"}, {"endpoint": "http://"}, {"endpoint": "http://minio:x"}, {"endpoint": 7},
        {"endpoint": "http://minio?x=1"}, {"cache_gb": 0}, {"cache_gb": -1}, {"cache_gb": "1"}, {"cache_gb": True},
        {"cache_gb": float("nan")}, {"cache_gb": float("inf")}, {"cache_gb": 5, "read_only": False},
        {"credentials": "AKIA"}, {"credentials": {}}, {"credentials": {"AWS_ACCESS_KEY_ID": "x"}},
        {"credentials": {**KEYS, "AWS_PROFILE": "x"}}, {"credentials": {**KEYS, "AWS_SECRET_ACCESS_KEY": ""}},
        {"credentials": {**KEYS, "AWS_SECRET_ACCESS_KEY": "a\nb"}}, {"credentials": {**KEYS, "AWS_ACCESS_KEY_ID": 7}},
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="Volume"):
        Volume("s3://my-bucket", mount="/data", **options)


def test_credentials_in_an_endpoint_are_refused_and_not_repeated() -> None:
    with pytest.raises(SpecError) as caught:
        Volume("s3://my-bucket", mount="/data", endpoint="http://key:canary-1c7d@minio:9000")
    assert "canary" not in str(caught.value)


def test_credentials_are_not_shown_and_reach_the_order() -> None:
    volume = Volume("s3://my-bucket", mount="/data", credentials=KEYS)
    assert "canary" not in repr(volume)
    assert volume.secrets == [Secret("canary-1c7d")]
    assert volume.order()["credentials"] == KEYS


@given(st.lists(FOLDERS, max_size=6))
def test_one_is_never_inside_of_another(folders: list[str]) -> None:
    """The kernel's own view: of two different paths, one hides the other if it leads to it."""
    nested = [
        (one, two)
        for i, one in enumerate(folders)
        for j, two in enumerate(folders)
        if i != j and os.path.commonpath([one, two]) == one
    ]
    found = mount_path.overlap(folders)
    assert (found is None) == (not nested)
    assert found is None or found in nested


def test_volumes_in_each_others_way_are_refused() -> None:
    def at(*mounts: str) -> None:
        check_volumes([Volume("s3://my-bucket", mount=mount) for mount in mounts], local=False)

    at("/data", "/data2", "/data-3")
    with pytest.raises(SpecError, match="two are mounted at /data"):
        at("/data", "/x", "/data")
    with pytest.raises(SpecError, match="/data/x/y is inside of /data"):
        at("/data/x/y", "/data-1", "/data")


@pytest.mark.parametrize("volumes", [Volume("s3://my-bucket", mount="/data"), "s3://my-bucket", ["s3://my-bucket"], 7])
def test_a_pool_takes_a_list_of_volumes(volumes: Any) -> None:
    with pytest.raises(SpecError, match="volumes takes"):
        Pool(provider=SSH(["host"]), volumes=volumes)


def test_a_local_pool_says_what_to_do_instead() -> None:
    with pytest.raises(SpecError, match=r"Local\(\).*/data"):
        Pool(provider=Local(), volumes=[Volume("s3://my-bucket", mount="/data")])
    Pool(provider=Local(), volumes=[])
