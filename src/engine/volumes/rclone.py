"""The environment variables for rclone.

All options are environment variables, for two reasons: any user on the host can read a process's arguments, and an
rclone version that does not know an option ignores its variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Oldest supported version: in Debian 11 and Ubuntu 22.04, and the first that can cache parts of files.
LEAST = (1, 53)
# settings with which rclone fails soon if a store does not answer
SOON = {"RCLONE_RETRIES": "1", "RCLONE_LOW_LEVEL_RETRIES": "2", "RCLONE_TIMEOUT": "10s"}
NO_BUCKET = 3  # rclone's exit code for "directory not found"

# Seconds for which directory lists are cached; key: read_only. A node that writes must soon see files that others
# write.
_LISTS_KEPT_S = {True: 60, False: 5}
_PASSED_ON = re.compile(r"(https?|all|no)_proxy|AWS_.*", re.IGNORECASE)
# variables with which rclone fails; `inherited` passes the first one under another name
_NOT_PASSED_ON = ("AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def version(output: str) -> tuple[int, int]:
    """Return the version in the output of ``rclone version``; (0, 0): the output has none."""
    match = re.match(r"rclone v(\d+)\.(\d+)", output)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def remote(volume: Mapping[str, Any], below: str = "") -> str:
    """Return rclone's name for the volume, or for the path ``below`` in the volume."""
    return ":s3:" + "/".join(filter(None, [volume["bucket"], volume["prefix"], below]))


def inherited(environ: Mapping[str, str], home: str) -> dict[str, str]:
    """Return the variables of the user's login that rclone needs for a store and its credentials.

    They are passed on explicitly, as sudo does not pass them to root.
    """
    kept = {name: value for name, value in environ.items() if _PASSED_ON.fullmatch(name) and name not in _NOT_PASSED_ON}
    kept.setdefault("AWS_SHARED_CREDENTIALS_FILE", f"{home}/.aws/credentials")
    kept.setdefault("AWS_CONFIG_FILE", f"{home}/.aws/config")
    if bundle := environ.get("AWS_CA_BUNDLE"):
        kept["RCLONE_CA_CERT"] = bundle
    return {**kept, "AWS_SDK_LOAD_CONFIG": "1", "HOME": home, "PATH": _SYSTEM_PATH}


def environment(volume: Mapping[str, Any], login: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for all rclone commands on the volume. ``login``: the result of `inherited`."""
    env = {
        **login,
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_S3_PROVIDER": "AWS",
        "RCLONE_S3_NO_CHECK_BUCKET": "true",  # without this, rclone tries to create the bucket
        "RCLONE_USE_SERVER_MODTIME": "true",  # without this, rclone sends one request for each file
        "RCLONE_CONTIMEOUT": "10s",
        "RCLONE_TIMEOUT": "60s",
    }
    if volume["region"]:
        env["RCLONE_S3_REGION"] = volume["region"]
    if volume["endpoint"]:
        env["RCLONE_S3_ENDPOINT"] = volume["endpoint"]
        env["RCLONE_S3_PROVIDER"] = "Other"
    credentials = volume["credentials"]
    if not credentials:
        return {**env, "RCLONE_S3_ENV_AUTH": "true"}
    env = {name: value for name, value in env.items() if not name.startswith("AWS_")}
    env["RCLONE_S3_ENV_AUTH"] = "false"
    env["RCLONE_S3_ACCESS_KEY_ID"] = credentials["AWS_ACCESS_KEY_ID"]
    env["RCLONE_S3_SECRET_ACCESS_KEY"] = credentials["AWS_SECRET_ACCESS_KEY"]
    if "AWS_SESSION_TOKEN" in credentials:
        env["RCLONE_S3_SESSION_TOKEN"] = credentials["AWS_SESSION_TOKEN"]
    return env


def mounting(
    volume: Mapping[str, Any], env: Mapping[str, str], *, uid: int, gid: int, as_root: bool, cache: str
) -> dict[str, str]:
    """Return the environment for the command ``rclone mount``.

    Args:
        volume: The volume.
        env: The result of `environment`.
        uid: The user who owns the files, and who alone sees them.
        gid: The group of the files.
        as_root: True: rclone runs as root.
        cache: The folder for rclone's cache.
    """
    folders, files = ("0500", "0400") if volume["read_only"] else ("0700", "0600")
    mounted = {
        **env,
        "RCLONE_UID": str(uid),
        "RCLONE_GID": str(gid),
        "RCLONE_UMASK": "077",
        "RCLONE_DIR_PERMS": folders,
        "RCLONE_FILE_PERMS": files,
        "RCLONE_DEFAULT_PERMISSIONS": "true",
        "RCLONE_READ_ONLY": "true" if volume["read_only"] else "false",
        "RCLONE_DIR_CACHE_TIME": f"{_LISTS_KEPT_S[volume['read_only']]}s",
        "RCLONE_VFS_CACHE_MODE": "off",
        "RCLONE_CACHE_DIR": cache,
    }
    if as_root:
        mounted["RCLONE_ALLOW_OTHER"] = "true"  # let users other than root enter; the permissions above still apply
    if volume["cache_bytes"]:
        mounted["RCLONE_VFS_CACHE_MODE"] = "full"
        mounted["RCLONE_VFS_CACHE_MAX_SIZE"] = f"{volume['cache_bytes']}b"
        mounted["RCLONE_VFS_CACHE_MAX_AGE"] = "8760h"
        mounted["RCLONE_VFS_FAST_FINGERPRINT"] = "true"
    return mounted


def reason(source: str, output: str) -> str:
    """Return why the store does not work: the first error that rclone printed, as one line."""
    lines = [line for line in output.splitlines() if line.strip()]
    line = next((line for line in lines if "ERROR" in line or "Failed" in line), lines[0] if lines else "")
    text = re.sub(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ((ERROR|NOTICE|CRITICAL) *: )?(: )?", "", line)
    return f"{source} cannot be read: {re.sub(r'^error listing: ', '', text) or 'rclone does not say why'}"
