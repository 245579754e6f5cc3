"""Values of another kind than an option takes: a sentence that names the option, before anything else is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider import AWS, GCP, SSH, Containers, Host, Hyperstack, Lambda, Local, RunPod, Slurm, Vast
from outrider.providers.shared.option_names import shown, wrong_kind


@pytest.mark.parametrize(
    ("value", "declared", "fits"),
    [
        ("a", "str", True),
        (1, "str", False),
        (None, "str", False),
        (None, "str | None", True),
        (True, "int | None", False),
        (True, "bool", True),
        (1, "bool", False),
        (True, "bool | StrPath", True),
        (Path("a"), "bool | StrPath", True),
        (b"a", "StrPath | None", False),
        (1, "float", True),
        ("1", "float", False),
        (1.0, "int", False),
        (1, "Sequence[str] | None", True),  # which says more than is known here
    ],
)
def test_the_kind_of_a_value_is_compared_with_the_declared_one(value: object, declared: str, fits: bool) -> None:
    assert (wrong_kind("X(a=...)", value, declared) == "") is fits


def test_a_refusal_says_what_is_taken() -> None:
    assert wrong_kind("X(a=...)", 5, "bool | StrPath | None") == "X(a=...) takes True or False or a path, not 5"


@pytest.mark.parametrize(
    ("made", "option"),
    [
        (lambda given: AWS(given), "AWS(region=...)"),
        (lambda given: AWS(tags=given), "AWS(tags=...)"),
        (lambda given: AWS(instance_types=given), "AWS(instance_types=...)"),
        (lambda given: AWS(ssh_from=given), "AWS(ssh_from=...)"),
        (lambda given: GCP(max_run_hours=given), "GCP(max_run_hours=...)"),
        (lambda given: GCP(labels=given), "GCP(labels=...)"),
        (lambda given: Lambda(key_file=given), "Lambda(key_file=...)"),
        (lambda given: Lambda(regions=given), "Lambda(regions=...)"),
        (lambda given: Vast(image=given), "Vast(image=...)"),
        (lambda given: RunPod(registry=given), "RunPod(registry=...)"),
        (lambda given: Hyperstack(image=given), "Hyperstack(image=...)"),
        (lambda given: Containers(given), "Containers(image=...)"),
        (lambda given: Containers(hosts=given), "Containers(hosts=...)"),
        (lambda given: Containers(runtime=given), "Containers(runtime=...)"),
        (lambda given: Containers(options=given), "Containers(options=...)"),
        (lambda given: Slurm(given), "Slurm(host=...)"),
        (lambda given: Slurm(setup=given), "Slurm(setup=...)"),
        (lambda given: Slurm(options={"nice": given}), "Slurm(options=...): nice"),
        (lambda given: SSH(given), "SSH(hosts=...)"),
        (lambda given: SSH(["a"], connect_timeout=given), "SSH(connect_timeout=...)"),
        (lambda given: SSH(["a"], notices=given), "SSH(notices=...)"),
        (lambda given: SSH(["a"], known_hosts=given), "SSH(known_hosts=...)"),
        (lambda given: SSH(["a"], key=given), "SSH(key=...)"),
        (lambda given: Host("a", port=given), "Host(port=...)"),
        (lambda given: Host(given), "Host(name=...)"),
        (lambda given: Local(state=given), "Local(state=...)"),
        (lambda given: Local(as_remote=given), "Local(as_remote=...)"),
    ],
)
def test_a_provider_names_the_option_whose_value_is_no_such_thing(made: Callable[[Any], object], option: str) -> None:
    with pytest.raises(ValueError, match=r".") as told:
        made(object())
    assert str(told.value).startswith(option)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Host("a", port=0), "port is from 1 to 65535, not 0"),
        (lambda: Host("a", 70000), "not 70000"),
        (lambda: Host(""), "no name of a host"),
        (lambda: Host("-oProxyCommand=x"), "no name of a host"),
        (lambda: SSH(["a:" + "9" * 5000]), "is not a port"),
        (lambda: SSH(["a"], connect_timeout=float("inf")), "more than 0 seconds and less than 1e+09, not inf"),
        (lambda: Slurm("login:99999"), "user@host:port"),
        (lambda: Slurm(time="9" * 400), "Slurm(time=...)"),
        (lambda: Containers(runtime="sudo 'docker"), "list of words of a command"),
        (lambda: Containers(runtime=[1]), "list of words of a command"),  # type: ignore[list-item]
    ],
)
def test_what_can_be_no_host_and_no_command_is_refused(made: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=r".") as told:
        made()
    assert said in str(told.value)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_value_is_shown_whatever_its_repr_does() -> None:
    assert shown(Unprintable()) == "something of type Unprintable"
    assert shown(10**5000) == "something of type int"
    assert len(shown("x" * 100)) == 60
