"""Mistakes of a new user on the command line, in TOML and with SSH hosts: each message says what is wrong and the next
step in the words of the place where it was typed. No pool opens.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from outrider import Pool, SpecError
from outrider.engine.cli.main import main

_AS_PYTHON = re.compile(r"\b(Pool|Image|Worker|Nodes|Spec|Host|Volume|Chaos|[A-Z]\w*|plugins\.\w+|accelerators\.\w+)\(")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "400")
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    Path("train.py").write_text("print(1)\n")
    Path("hosts.txt").write_text("gpu1\ngpu2\n")
    Path("key.pub").write_text("ssh-ed25519 AAAA me\n")
    return tmp_path


def refusal(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command writes to stderr. It starts nothing."""
    monkeypatch.setattr(sys, "argv", ["outrider", *words.split("|")])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert told.out == ""
    assert "starting" not in told.err
    assert not _AS_PYTHON.search(told.err), told.err
    return told.err


COMMAND_LINE = [
    ("train.py", "To run a script: outrider run train.py"),
    ("run|python|train.py", "To run a command on each node: outrider run [OPTIONS] -- python train.py"),
    ("run|--nnodes|2|train.py", "that is torchrun's option, and Outrider has --nodes"),
    ("run|--nproc_per_node=2|train.py", "Outrider has --ranks-per-node"),
    ("run|--gpus|8|train.py", "write --accelerator L4"),
    ("run|--region|us-east-1|train.py", "write --set provider.region=REGION"),
    ("run|--keep|out|train.py", "write --set keep=KEEP"),
    ("run|--pip|numpy|train.py", "write --image pip=PIP"),
    ("run|--set|lease|60|train.py", "--set takes a name and a value, as in lease=60"),
    (
        "run|--set|provider.region=x|train.py",
        "provider takes a name, as in --provider aws --set provider.region=REGION",
    ),
    ("run|--accelerator|A100:8:80GB|train.py", "write 'A100-80GB:8'"),
    ("run|--accelerator|X9|train.py", "For another, write --set 'accelerator={ type = \"X9\" }'"),
    ("run|--set|checkpoints=s3:/b/x|train.py", "did you mean 's3://b/x'?"),
    ("run|--set|nodes.max=8|train.py", "--nodes 4"),
    ("run|--image|pip=numpy torch|train.py", 'write --image \'pip=["numpy", "torch"]\''),
    ("run|--image|pip=torch==|train.py", "lacks the version"),
    ("run|--track|mlfow|train.py", "did you mean 'mlflow'?"),
    ("run|--set|chaos=Kill|train.py", "--set chaos.mtbf=15"),
    ("run|--pool||train.py", "pool ''"),
    ("offers|--provider|aws|--region|us-east-1a", "--set provider.region=us-east-1"),
    ("offers|--provider|gcp|--region|us-east-1", "its regions look like us-central1"),
    ("offers|--provider|aws", "give --set provider.region=REGION, or set AWS_REGION"),
]


@pytest.mark.parametrize(("words", "next_step"), COMMAND_LINE)
def test_a_mistake_on_the_command_line(
    words: str, next_step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert next_step in refusal(words, monkeypatch, capsys)


SSH = [
    ("--hosts|", "--hosts names no host"),
    ("--hosts|hosts.txt", '--hosts "$(paste -sd, hosts.txt)" reads it'),
    ("--hosts|http://gpu1", "is a URL, and no host: write 'gpu1'"),
    ("--hosts|me@gpu1:/home", "/home is not a port"),
    ("--hosts|gpu1,gpu1", "is there twice; for several tasks on a host use --set worker=WORKER"),
    ("--hosts|gpu1|--set|provider.port=2222", "a port stands behind its host: --hosts gpu1:2222"),
    ("--hosts|gpu1|--provider|aws", "hosts of your own are those of --hosts HOSTS"),
    ("--hosts|gpu1|--set|provider.key=key.pub", "is a public key"),
    ("--hosts|gpu1|--set|provider.config=.ssh/conf", "--set provider.config: there is no file"),
    ("--hosts|gpu1|--set|provider.username=me", "did you mean 'user'?"),
    ("--provider|ssh", "the provider ssh needs hosts: --hosts gpu1,gpu2"),
    ('--set|provider.hosts=["gpu1"]', "provider takes a name, as in --hosts gpu1,gpu2"),
]


@pytest.mark.parametrize(("words", "next_step"), SSH)
def test_a_mistake_about_hosts(
    words: str, next_step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert next_step in refusal(f"run|{words}|train.py", monkeypatch, capsys)


TOML = [
    ("[pool.default]\nnodes = 2", "write [pools.default]"),
    ("[default]\nnodes = 2", "write [pools.default]"),
    ("nodes = 2", "nodes belongs to a pool: write it below [pools.default]"),
    ("[pools]\nnodes = 2", "keys of a pool stand below a line such as [pools.default]"),
    ('[pools.default]\nprovider = "AWS"', "Did you mean 'aws'?"),
    (
        '[pools.default.provider]\nregion = "x"',
        'provider takes a name, as in `provider = { name = "aws", region = ... }`',
    ),
    ('[pools.default]\npip = ["numpy"]', "it is one of Image: `image = { pip = ... }`"),
    ('[pools.default]\nregion = "us-east-1"', '`provider = { name = "aws", region = ... }`'),
    ('[pools.default]\nhosts = ["a"]', '`provider = { name = "ssh", hosts = [...] }`'),
    ("[pools.default]\nplugins = [{ torch = {} }]", '`plugins = [{ name = "torch", ranks_per_node = 2 }]`'),
    ('[pools.default]\nvolumes = { url = "s3://b/x" }', '`volumes = [{ url = "s3://bucket", mount = "/data" }]`'),
    ('[pools.default]\nlease = "10m"', "lease takes seconds, not '10m'"),
    ('[pools.default]\nimage = "python:3.12"', '`image = { container = "python:3.12" }`'),
    ('[pools.default]\nworker = "4"', '`worker = { concurrency = 4, kind = "thread" }`'),
    ('[pools.default]\nvcpus = 4\nspecs = [{ provider = "local" }]', "write `specs = [{ vcpus = ... }]`"),
    ('[pools.default]\nprovider = { name = "ssh", host = "a" }', "did you mean 'hosts'?"),
    (
        '[pools.default]\nprovider = { name = "ssh", hosts = "a,b" }',
        '`provider = { name = "ssh", hosts = ["a", "b"] }`',
    ),
    ('[pools.default]\ncheckpoints = "s3:/b/x"', "did you mean 's3://b/x'?"),
    ('[pools.default]\nprovider = { name = "slurm", setup = "x" }', '`provider = { name = "slurm", setup = ["x"] }`'),
    ('[pools.default]\naccelerator = { name = "A100", memory = "81GB" }', "A100 comes with 40 GB or 80 GB"),
]


@pytest.mark.parametrize(("text", "next_step"), TOML)
def test_a_mistake_in_a_file(
    text: str, next_step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("outrider.toml").write_text(text)
    assert next_step in refusal("config|check", monkeypatch, capsys)
    with pytest.raises(SpecError) as caught:
        Pool.from_config()
    assert next_step.rstrip(".") in str(caught.value)
    assert not _AS_PYTHON.search(str(caught.value))


def test_an_option_of_a_file_is_named_as_the_file_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("outrider.toml").write_text('[pools.default]\nprovider = "aws"\n')
    assert 'give `provider = { name = "aws", region = ... }`' in refusal("offers", monkeypatch, capsys)


def test_the_opening_of_a_pool_from_a_file_speaks_toml() -> None:
    Path("outrider.toml").write_text('[pools.default]\nprovider = "gcp"\nconsole = "silent"\nrun = false\n')
    with pytest.raises(SpecError, match=r'give `provider = \{ name = "gcp", region = "us-central1" \}`'):
        Pool.from_config().__enter__()
