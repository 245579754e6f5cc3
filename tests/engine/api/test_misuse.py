"""Verbs of pools refuse options and names that they do not have, with what was probably meant."""

from __future__ import annotations

import inspect

import pytest

from outrider import AWS, Image, Pool, SpecError, compute, plugins
from outrider.engine.api.misuse import no_option
from outrider.engine.client.mapping import check_map
from outrider.engine.record.runs.writer import RunEnd
from outrider.engine.sync import SyncPool
from outrider.errors import NotACall
from outrider.providers.shared.paths import half_url


@compute
def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize(
    ("verb", "option", "said"),
    [
        ("run", "timeout", "it is one of the function: write double.with_(timeout=...)"),
        ("submit", "retries", "it is one of the function: write double.with_(retries=...)"),
        ("map", "chunksize", "cheap items share tasks by themselves, so leave it out"),
        ("map", "order", "did you mean 'ordered'?"),
        ("run", "kep", "did you mean 'keep'?"),
        ("broadcast", "nodes", "it is one of the pool: Pool(nodes=...)"),
        ("broadcast", "max_cost", "it is one of the pool: Pool(max_cost=...)"),
        ("run", "zzz", "it has on, keep."),
    ],
)
def test_an_option_that_a_verb_does_not_have(verb: str, option: str, said: str) -> None:
    assert said in str(no_option(verb, "double", [option]))


def test_map_refuses_it_before_a_pool_is_needed() -> None:
    with pytest.raises(NotACall, match="leave it out"):
        check_map(double, [1], (), {"chunksize": 4})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("starmap", "write pool.gather(*(f(*each) for each in items))"),
        ("apply_async", "write pool.submit(f(...))"),
        ("brodcast", "did you mean 'broadcast'?"),
        ("_no_such", "a pool has no '_no_such'"),
    ],
)
def test_a_verb_of_another_library(name: str, said: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(Pool(), name)
    assert str(caught.value).endswith(said) or f"{said}, or " in str(caught.value)
    assert not hasattr(SyncPool, name)
    assert inspect.getattr_static(SyncPool, "__getattr__") is inspect.getattr_static(Pool, "__getattr__")


class Exit(RuntimeError):
    """An error as of ``typer``."""

    exit_code = 3


Exit.__module__ = "click.exceptions"


class Mine(RuntimeError):
    exit_code = 3


@pytest.mark.parametrize(("error", "code"), [(Exit(), 3), (Mine(), 1), (SystemExit(4), 4), (None, 0)])
def test_a_record_has_the_exit_code_of_command_line_frameworks(error: BaseException | None, code: int) -> None:
    assert RunEnd(error).exit_code == code


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3:/bucket/x", "s3://bucket/x"),
        ("gs:bucket", "gs://bucket"),
        ("s3://bucket/x", ""),
        ("/data/s3:x", ""),
        ("ck", ""),
        ("c:/x", ""),
    ],
)
def test_half_a_url_is_no_folder(text: str, url: str) -> None:
    assert half_url(text) == url
    if url:
        with pytest.raises(SpecError, match="did you mean"):
            Pool(checkpoints=text)


def test_what_can_never_work_is_refused_when_it_is_written() -> None:
    with pytest.raises(SpecError, match="torch is there twice"):
        Pool(plugins=[plugins.torch(), plugins.torch("gloo")])
    with pytest.raises(SpecError, match="did you mean 'mpi'"):
        plugins.torch("mpi2")
    with pytest.raises(SpecError, match="lacks the version"):
        Image(pip=["torch=="])
    with pytest.raises(SpecError, match="names several packages"):
        Image(pip=["numpy torch"])
    with pytest.raises(ValueError, match="looks like a zone"):
        AWS("us-east-1a")


@pytest.mark.parametrize("backend", ["nccl", "NCCL", "ncclx", "cpu:gloo,cuda:nccl", "my_backend", None])
def test_backends_that_may_exist_are_taken(backend: str | None) -> None:
    plugins.torch(backend)


@pytest.mark.parametrize("requirement", ["numpy", "numpy==2.1", "torch @ file:///x.whl", "numpy ; python_version>'3'"])
def test_requirements_are_taken(requirement: str) -> None:
    Image(pip=[requirement])
