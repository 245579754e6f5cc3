"""Inspection of a host by one command, which reports the host's system, cache folder and Pythons."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

# The script is sent to `sh` on stdin, so that no login shell has to parse it. Its arguments: the required minor version
# of Python, the path of an interpreter or "", and the names of packages to look for in each Python. The script is one
# function, because a command in it could otherwise read the rest of the script from stdin.
# The script runs each Python in isolated mode, but reports the packages that tasks will see: as `node.daemon` does, it
# adds the packages that the user has installed for himself.
# Programs in the cache folder are executed, some by this script itself. So the script first checks that no other user
# can write to the cache, before it uses anything there. It checks only folders, because a file cannot be replaced
# without write access to its folder.
SCRIPT = b"""\
entries() {
    stat -c "%u 700 %n" "$cache" || echo "? ? $cache"
    stat -L -c "%u %a %n" "$cache" || echo "? ? $cache"
    cd "$cache" && stat -L -c "%u %a %n" runtime runtime/* envs envs/* uv uv/* uv-cache \\
        pythons pythons/* files volumes claims claims/* pools pools/*
} 2>/dev/null
exposed() {
    while read -r owner mode path; do
        case "$path" in /*) ;; *) path=$cache/$path ;; esac
        case "$owner $mode" in
            *[2367]? | *[2367]) echo "exposed $owner $mode $path" ;;
            "$1 "* | "0 "*) ;;
            *) echo "exposed $owner $mode $path" ;;
        esac
    done
}
probe() {
    minor=$1 asked=$2
    shift 2
    umask 077
    cache=${OUTRIDER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrider}
    echo  # a login may have printed a line without its end
    echo "outrider-probe 1"
    echo "system $(uname -s) $(uname -m)"
    echo "libc $(getconf GNU_LIBC_VERSION 2>/dev/null || echo other)"
    echo "user $(id -u)"
    echo "cache $cache"
    refusal=$(mkdir -p "$cache" 2>&1) || echo "refused $refusal"
    exposed=$(entries | exposed "$(id -u)")
    if [ -n "$exposed" ]; then
        echo "$exposed"
        echo "end"
        return
    fi
    refusal=$(: 2>&1 >"$cache/.writable") || echo "refused $refusal"
    df -Pk "$cache" 2>/dev/null | { read -r _; read -r _ _ _ free _; echo "free $free"; }
    for path in "$cache"/runtime/* "$cache"/uv/*; do echo "have ${path#"$cache"/}"; done
    seen=
    tell='import site, sys; print("%d.%d.%d" % sys.version_info[:3], sys.implementation.name, sys.executable)
if sys.base_prefix in site.PREFIXES:
    site.addsitedir(site.getusersitepackages())
for name in sys.argv[1:]:
    try:
        from importlib.metadata import version
        print("package", version(name) and name)
    except ImportError:
        pass'
    for python in ${asked:+"$asked"} "python$minor" "/usr/bin/python$minor" "/usr/local/bin/python$minor" \\
        python3 /usr/bin/python3 /usr/local/bin/python3 "$cache"/pythons/cpython-"$minor".*/bin/python"$minor"; do
        path=$(command -v "$python" 2>/dev/null) || continue
        case "$seen" in *":$path:"*) continue ;; esac
        seen="$seen:$path:"
        version=$("$path" -I -c "$tell" "$@" 2>/dev/null </dev/null) || continue
        if [ "$python" = "$asked" ]; then echo "asked $version"; break; fi
        echo "python $version"
        case "$version" in "$minor".*) break ;; esac
    done
    echo "end"
}
probe "$@" </dev/null
"""


class Python(NamedTuple):
    version: str  # such as "3.11.2"
    implementation: str  # such as "cpython"
    path: str
    is_requested: bool = False  # whether the user has named this interpreter in the image
    packages: frozenset[str] = frozenset()  # those of the packages in question that this Python has

    @property
    def minor(self) -> str:
        return self.version.rpartition(".")[0]


class HostFacts(NamedTuple):
    system: str  # such as "Linux"
    machine: str  # such as "x86_64"
    libc: str  # such as "glibc 2.36", or "other"
    uid: int
    cache: str
    refused: str  # why this user cannot write to the cache folder; empty: the user can
    # (user id, mode, path) of a place in the cache folder that other users can write to. Programs in the cache are then
    # not run. None: there is no such place.
    exposed: tuple[str, str, str] | None
    free_bytes: int | None
    present: frozenset[str]  # what the cache already has: "runtime/DIGEST" and "uv/DIGEST"
    pythons: tuple[Python, ...]  # the most suitable Python first

    @property
    def platform(self) -> str:
        """The host's platform, for names in its cache folder.

        Compiled files can be used on all hosts of the same platform.
        """
        return f"{self.system}-{self.machine}-{self.libc.replace(' ', '-')}".lower()


def arguments(minor: str, requested: str, packages: Iterable[str] = ()) -> list[str]:
    return ["sh", "-s", "--", minor, requested, *packages]


def parse(stdout: bytes) -> HostFacts:
    """Parse the output of the probe script. Lines before and after it, which a login shell may print, are skipped.

    Raises:
        ValueError: the script did not run to its end.
    """
    lines = stdout.decode(errors="replace").splitlines()
    if "outrider-probe 1" not in lines or "end" not in lines[lines.index("outrider-probe 1") :]:
        raise ValueError("the probe did not run to its end")
    del lines[len(lines) - 1 - lines[::-1].index("end") :]
    facts: dict[str, str] = {}
    present: list[str] = []
    pythons: list[Python] = []
    for line in lines[lines.index("outrider-probe 1") + 1 :]:
        word, _, rest = line.partition(" ")
        if word == "have":
            present.append(rest)
        elif match := re.fullmatch(r"(?:python|asked) (\d+\.\d+\.\d+) (\S+) (.+)", line, re.ASCII):
            pythons.append(Python(match[1], match[2], match[3], is_requested=word == "asked"))
        elif word == "package" and pythons:
            pythons[-1] = pythons[-1]._replace(packages=pythons[-1].packages | {rest})
        elif word not in facts:  # an error of several lines may repeat a keyword: use the first
            facts[word] = rest
    system, _, machine = facts.get("system", "").partition(" ")
    owner, mode, path = facts.get("exposed", "  ").split(" ", 2)
    libc, free = facts.get("libc", ""), facts.get("free", "")
    return HostFacts(
        system=system,
        machine=machine,
        libc=libc if re.fullmatch(r"glibc \d+\.\d+(\.\d+)?", libc, re.ASCII) else "other",
        uid=int(facts.get("user", "-1")),
        cache=facts.get("cache", ""),
        refused=facts.get("refused", ""),
        exposed=(owner, mode, path) if owner else None,
        free_bytes=int(free) * 1024 if free.isdecimal() else None,
        present=frozenset(present),
        pythons=tuple(pythons),
    )
