"""What rclone is told, and what is understood of what it says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import Volume
from outrider.engine.image.hints import hint_for
from outrider.engine.volumes import rclone

KEYS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "canary-1c7d"}


def order(url: str = "s3://my-bucket/images", **options: Any) -> dict[str, Any]:
    return Volume(url, mount="/data", **options).order()


def mounting(as_root: bool = True, **options: Any) -> dict[str, str]:
    volume = order(**options)
    env = rclone.environment(volume, rclone.inherited({}, "/home/ada"))
    return rclone.mounting(volume, env, uid=1000, gid=1001, as_root=as_root, cache="/cache")


def test_a_place_in_a_bucket_is_named() -> None:
    assert rclone.remote(order("s3://my-bucket")) == ":s3:my-bucket"
    assert rclone.remote(order("s3://my-bucket/a b/c/"), "x") == ":s3:my-bucket/a b/c/x"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("rclone v1.60.1-DEV\n- os/version: debian", (1, 60)),
        ("rclone v1.53.3-DEV", (1, 53)),
        ("", (0, 0)),
        ("x", (0, 0)),
    ],
)
def test_versions_are_read(said: str, version: tuple[int, int]) -> None:
    assert rclone.version(said) == version


NAMES = ["AWS_PROFILE", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "https_proxy", "NO_PROXY"]
NAMES += ["PATH", "LD_PRELOAD", "RCLONE_CONFIG", "HOME", "TOKEN"]


@given(st.dictionaries(st.sampled_from(NAMES), st.text("ab/", min_size=1)))
def test_login_environment_is_reduced_to_proxies_and_credentials(environ: dict[str, str]) -> None:
    kept = rclone.inherited(environ, "/home/ada")
    assert not {"LD_PRELOAD", "RCLONE_CONFIG", "TOKEN", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL"} & {*kept}
    assert kept["HOME"] == "/home/ada"
    assert kept["AWS_SHARED_CREDENTIALS_FILE"] == "/home/ada/.aws/credentials"
    for name in ("AWS_PROFILE", "https_proxy", "NO_PROXY"):
        assert kept.get(name) == environ.get(name)
    assert kept.get("RCLONE_CA_CERT") == environ.get("AWS_CA_BUNDLE")


def test_given_credentials_are_the_only_ones() -> None:
    login = rclone.inherited({"AWS_PROFILE": "other", "AWS_ACCESS_KEY_ID": "other"}, "/home/ada")
    env = rclone.environment(order(credentials={**KEYS, "AWS_SESSION_TOKEN": "token"}), login)
    assert not [name for name in env if name.startswith("AWS_")]
    assert env["RCLONE_S3_ENV_AUTH"] == "false"
    assert env["RCLONE_S3_SECRET_ACCESS_KEY"] == "canary-1c7d"
    assert env["RCLONE_S3_SESSION_TOKEN"] == "token"
    assert rclone.environment(order(), login)["RCLONE_S3_ENV_AUTH"] == "true"


def test_a_mount_is_its_users_alone_and_does_what_the_volume_says() -> None:
    env = mounting()
    assert (env["RCLONE_READ_ONLY"], env["RCLONE_DIR_PERMS"], env["RCLONE_FILE_PERMS"]) == ("true", "0500", "0400")
    assert (env["RCLONE_UID"], env["RCLONE_GID"], env["RCLONE_DEFAULT_PERMISSIONS"]) == ("1000", "1001", "true")
    assert env["RCLONE_VFS_CACHE_MODE"] == "off"
    assert mounting(read_only=False)["RCLONE_READ_ONLY"] == "false"
    assert "RCLONE_ALLOW_OTHER" in env
    assert "RCLONE_ALLOW_OTHER" not in mounting(as_root=False)  # /etc/fuse.conf may forbid it


def test_a_cache_has_its_size() -> None:
    env = mounting(cache_gb=1.5)
    assert env["RCLONE_VFS_CACHE_MODE"] == "full"
    assert env["RCLONE_VFS_CACHE_MAX_SIZE"] == "1610612736b"


def test_another_store_is_no_amazon() -> None:
    env = mounting(endpoint="http://minio:9000", region="home")
    assert (env["RCLONE_S3_ENDPOINT"], env["RCLONE_S3_PROVIDER"]) == ("http://minio:9000", "Other")
    assert env["RCLONE_S3_REGION"] == "home"
    assert mounting()["RCLONE_S3_PROVIDER"] == "AWS"


SAID = "2026/11/21 22:55:27 ERROR : : error listing: {}\n2026/11/21 22:55:27 Failed to lsf with 2 errors: last was"


@pytest.mark.parametrize(
    ("said", "hint", "systematic"),
    [
        ("AccessDenied: Access Denied", "s3:ListBucket", True),
        ("NoCredentialProviders: no valid providers in chain. Deprecated.", "instance_profile", True),
        ("InvalidAccessKeyId: The AWS Access Key Id you provided does not exist", "does not know these", True),
        ("SignatureDoesNotMatch: The request signature we calculated", "does not know these", True),
        ("ExpiredToken: The provided token has expired.", "expired", True),
        ("PermanentRedirect: The bucket you are attempting to access", "region=", True),
        ("RequestTimeTooSkewed: The difference between", "clock", False),
        ("RequestError: send request failed\ncaused by: dial tcp: lookup x: no such host", "reaches the store", False),
        ("RequestError: x509: certificate signed by unknown authority", "certificate", False),
    ],
)
def test_a_refusal_is_told_in_one_line_with_what_to_do(said: str, hint: str, systematic: bool) -> None:
    reason = rclone.reason("s3://my-bucket", SAID.format(said))
    assert reason == f"s3://my-bucket cannot be read: {said.splitlines()[0]}"
    given = hint_for("volumes", [reason, *SAID.format(said).splitlines()])
    assert hint in given.text
    assert given.systematic == systematic


@given(st.text())
def test_any_rclone_output_becomes_one_line(said: str) -> None:
    reason = rclone.reason("s3://my-bucket", said)
    assert reason.startswith("s3://my-bucket cannot be read: ")
    assert len(reason.splitlines()) == 1
