"""What cloud-init does with user data at a machine's first boot, as far as it is used here, and in its order.

It runs on the machine: ``python3 cloudinit.py USER [deaf] [impostor]``, with the standard library alone. USER: the
image's own. ``deaf``: sshd is not started; ``impostor``: with another host key than it was given.
What it does not know it refuses, and the machine never answers: better than a test that passes without it. Documented
at cloudinit.readthedocs.io: "Boot stages", and the modules bootcmd, write_files, users_groups, ssh and runcmd.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

IMDS = "169.254.169.254"
OK, NOT_FOUND = 200, 404
HEADER = "#cloud-config"
FIRST_UID = 1000
PLAYED = {
    "bootcmd",
    "disable_root",
    "runcmd",
    "ssh_authorized_keys",
    "ssh_deletekeys",
    "ssh_keys",
    "users",
    "write_files",
}
HARMLESS = {"ssh_genkeytypes", "ssh_pwauth"}  # only ed25519 keys are looked for here, and no password opens anything
ROOT_REFUSED = 'no-port-forwarding,command="echo Please login as the user \\"{user}\\" rather than root.;exit 142"'
SSH = Path("/etc/ssh")


def main() -> None:
    user, *mishaps = sys.argv[1:]
    text = metadata("/latest/user-data") or HEADER
    config = parse(text)
    instance = metadata("/latest/meta-data/instance-id") or ""
    run("bootcmd", config.get("bootcmd", []), instance)
    for file in config.get("write_files", []):
        write_file(file)
    for name, keys in users(config.get("users", ["default"]), user).items():
        add_user(name)
        authorize(name, keys)
    keys = [*config.get("ssh_authorized_keys", [])]
    if named := metadata("/latest/meta-data/public-keys/0/openssh-key"):
        keys.append(named)
    authorize(user, keys)
    authorize("root", keys, options=ROOT_REFUSED.format(user=user) if config.get("disable_root", True) else "")
    given = {} if "impostor" in mishaps else config.get("ssh_keys", {})
    host_keys(given, delete=config.get("ssh_deletekeys", True))
    if "deaf" not in mishaps:
        subprocess.run(["/usr/sbin/sshd", "-E", "/var/log/sshd.log"], check=True)
    run("runcmd", config.get("runcmd", []), instance)


def metadata(path: str) -> str | None:
    """With a token of its own. None: there is no such item."""
    token = ask("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    return ask("GET", path, {"X-aws-ec2-metadata-token": token or ""})


def ask(method: str, path: str, headers: Mapping[str, str]) -> str | None:
    """Without http.client, which takes half of this program's time to import, on each of many machines."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {IMDS}", *(f"{name}: {value}" for name, value in headers.items())]
    with socket.create_connection((IMDS, 80), timeout=120) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if status == NOT_FOUND:
        return None
    if status != OK:
        raise SystemExit(f"cloud-init: {method} {path} is answered with {status}")
    return body.decode()


def parse(text: str) -> dict[str, Any]:
    """JSON, which is YAML too."""
    first, _, rest = text.partition("\n")
    if first.strip() != HEADER:
        raise SystemExit(f"cloud-init: user data begins with {first!r} and not with {HEADER}")
    config: dict[str, Any] = json.loads(rest or "{}")
    if unknown := config.keys() - PLAYED - HARMLESS:
        raise SystemExit(f"cloud-init: nothing here plays {', '.join(sorted(unknown))}")
    return config


def run(name: str, commands: Sequence[str | Sequence[str]], instance: str) -> None:
    """One script of all; lists are quoted, strings are the shell's. Its failure is noted and ends nothing."""
    if not commands:
        return
    lines = [line if isinstance(line, str) else " ".join(quoted(word) for word in line) for line in commands]
    script = Path(f"/var/lib/cloud/{name}")
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    script.chmod(0o700)
    ended = subprocess.run(["/bin/sh", script], env={**os.environ, "INSTANCE_ID": instance}, check=False)
    if ended.returncode != 0:
        print(f"cloud-init: {name} ended with {ended.returncode}", file=sys.stderr)


def quoted(word: object) -> str:
    text = str(word).replace("'", "'\\''")
    return f"'{text}'"


def write_file(file: Mapping[str, Any]) -> None:
    if unknown := file.keys() - {"path", "content", "permissions", "owner"}:
        raise SystemExit(f"cloud-init: nothing here plays write_files' {', '.join(sorted(unknown))}")
    path = Path(file["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.get("content", ""))
    path.chmod(int(str(file.get("permissions", "0644")), 8))
    if owner := file.get("owner"):
        shutil.chown(path, *owner.split(":"))


def users(listed: Sequence[str | Mapping[str, Any]], default: str) -> dict[str, list[str]]:
    """Who there is to be, and by which keys; all may use sudo. Two entries of one name are one user."""
    found: dict[str, list[str]] = {}
    for entry in listed:
        user = {"name": default} if entry == "default" else entry
        if not isinstance(user, Mapping) or user.keys() - {"name", "sudo", "ssh_authorized_keys", "shell"}:
            raise SystemExit(f"cloud-init: nothing here plays the user {entry}")
        found.setdefault(user["name"], []).extend(user.get("ssh_authorized_keys", []))
    return found


def add_user(name: str) -> None:
    """No password, and sudo without one. It may be there already."""
    ids = [user.pw_uid for user in pwd.getpwall()]
    if name in {user.pw_name for user in pwd.getpwall()}:
        return
    uid, home = next(free for free in range(FIRST_UID, 2 * FIRST_UID) if free not in ids), Path(f"/home/{name}")
    tables = {
        "passwd": f"{name}:x:{uid}:{uid}::{home}:/bin/bash",
        "group": f"{name}:x:{uid}:",
        "shadow": f"{name}:*:20000:0:99999:7:::",
    }
    for table, line in tables.items():
        with (Path("/etc") / table).open("a") as file:
            file.write(line + "\n")
    home.mkdir(parents=True, exist_ok=True)  # the machine image may have it
    os.chown(home, uid, uid)
    sudoers = Path("/etc/sudoers.d/90-cloud-init-users")
    sudoers.parent.mkdir(exist_ok=True)
    with sudoers.open("a") as file:
        file.write(f"{name} ALL=(ALL) NOPASSWD:ALL\n")
    sudoers.chmod(0o440)


def authorize(user: str, keys: Sequence[str], *, options: str = "") -> None:
    """These keys too, each with these options."""
    ids = pwd.getpwnam(user)
    folder = Path(ids.pw_dir, ".ssh")
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / "authorized_keys"
    with file.open("a") as lines:
        lines.writelines(f"{options} {key.strip()}\n".lstrip() for key in keys)
    file.chmod(0o600)
    for each in (folder, file):
        os.chown(each, ids.pw_uid, ids.pw_gid)


def host_keys(given: Mapping[str, str], *, delete: bool) -> None:
    """``{"ed25519_private": ..., "ed25519_public": ...}``; without any, the machine makes its own."""
    if delete:
        for old in SSH.glob("ssh_host_*key*"):
            old.unlink()
    for name, key in given.items():
        kind, _, half = name.partition("_")
        private = SSH / f"ssh_host_{kind}_key"
        path = private.with_name(private.name + ".pub") if half == "public" else private
        path.touch(mode=0o644 if half == "public" else 0o600)
        path.write_text(key if key.endswith("\n") else key + "\n")
    if not given:
        key_file = SSH / "ssh_host_ed25519_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key_file], check=True)


if __name__ == "__main__":
    main()
