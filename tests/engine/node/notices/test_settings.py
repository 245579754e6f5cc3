"""What a provider may say of a node's sources, and that nothing is asked without its word."""

from __future__ import annotations

import signal

import pytest

from outrider.engine.node.notices import aws, azure, gcp, settings
from outrider.engine.node.notices.local import Signals


def test_every_source_has_a_text() -> None:
    found = settings.sources(
        ["aws", "aws-rebalance", "gcp", "gcp-maintenance,seconds=3600", "azure", "slurm,USR1=120,SIGTERM=30"]
    )
    assert [type(source) for source in found] == [
        aws.SpotAction, aws.Rebalance, gcp.Preempted, gcp.Maintenance, azure.ScheduledEvents, Signals,
    ]  # fmt: skip
    assert [source.name for source in found] == ["aws", "aws-rebalance", "gcp", "gcp-maintenance", "azure", "slurm"]
    assert settings.sources([]) == []


def test_another_place_may_be_asked() -> None:
    (source,) = settings.sources(["azure,url=http://127.0.0.1:8080/"])
    assert isinstance(source, azure.ScheduledEvents)
    assert source._url == "http://127.0.0.1:8080"


def test_only_signals_are_listened_to() -> None:
    texts = ["gcp", "slurm,USR1=120,TERM=30", "signal,USR2=withdrawn,HUP=9"]
    assert settings.signals(texts) == [signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no source of notices: aws"),
        ("oracle", "'oracle' is no source"),
        ("aws,url=ftp://x", "no option url=ftp"),
        ("aws,seconds=3", "no option seconds=3"),
        ("gcp-maintenance,seconds=-1", "not a number of seconds"),
        ("gcp-maintenance,seconds=nan", "not a number of seconds"),
        ("gcp-maintenance,seconds=soon", "soon"),
        ("slurm", "say which signals"),
        ("slurm,USR2=withdrawn", "say which signals"),
        ("slurm,USR9=3", "'USR9' is not a signal"),
        ("slurm,USR1", "written name=value"),
        ("slurm,=3", "written name=value"),
    ],
)
def test_what_says_nothing_is_refused_with_what_would(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        settings.sources([text])


def test_a_source_is_not_there_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        settings.sources(["gcp", "gcp,url=http://127.0.0.1"])
