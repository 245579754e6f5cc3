"""Answers of squeue, calls of sbatch whose answers are lost, and what Slurm's commands say when they fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.errors import BadRequest, HostAway, NotAuthorized, ProviderError, QuotaExceeded
from outrider.providers.shared.login_host import Ended
from outrider.providers.slurm import site, squeue, submitter
from outrider.providers.slurm.site import error_of
from outrider.providers.slurm.squeue import FORMAT, JobView, Label, command, label_of, of_pool, read
from outrider.providers.slurm.submitter import OVER_S, Submission

LABEL = Label("p", "me@here", "0123")

# --- squeue -----------------------------------------------------------------------------------------------------------


def test_an_answer_is_read_field_by_field() -> None:
    answer = (
        "slurm_load_jobs warning: something\n"
        f"7|RUNNING|c[0-1]|1795648613|1-00:00:00|None|{LABEL}\n"
        f"8|PENDING||N/A|30:00|Priority|{LABEL}\n"
    )
    assert read(answer) == [
        JobView("7", "RUNNING", ("c0", "c1"), 1795648613.0, 86400.0, "None", str(LABEL)),
        JobView("8", "PENDING", (), None, 1800.0, "Priority", str(LABEL)),
    ]


def test_the_question_is_free_of_the_users_own_settings() -> None:
    said = command(user="me", name="p")
    assert "--unset=SQUEUE_FORMAT" in said
    assert said[-1] == f"--format={FORMAT}"
    assert "SLURM_TIME_FORMAT=%s" in said


TEXT = st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=30)


def holds_squeue_1(comments: list[str]) -> None:
    lines = [f"{number}|RUNNING|c{number}|N/A|1:00|None|{comment}\n" for number, comment in enumerate(comments)]
    found = squeue.read("".join(lines))
    assert [view.id for view in found] == [str(number) for number in range(len(comments))]
    assert [view.nodes for view in found] == [(f"c{number}",) for number in range(len(comments))]
    assert [view.comment for view in found] == comments


@given(st.lists(TEXT, max_size=5))
def test_comments_of_others_change_nothing(comments: list[str]) -> None:
    """SQUEUE-1."""
    holds_squeue_1(comments)


@pytest.mark.parametrize(
    "broken",
    [
        lambda answer: [view for line in answer.splitlines() for view in read(line)],
        lambda answer: [
            JobView(view.id, view.state, view.nodes, comment=view.comment.split("|")[0]) for view in read(answer)
        ],
    ],
    ids=["other line ends", "every bar"],
)
def test_reading_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch, broken: object) -> None:
    """SQUEUE-1: a reader that divides at more than it should is noticed."""
    monkeypatch.setattr(squeue, "read", broken)
    with pytest.raises(AssertionError):
        holds_squeue_1(["a|b", "before\u2028behind"])


def test_a_job_is_a_pools_by_the_whole_of_its_comment() -> None:
    assert label_of(str(LABEL)) == LABEL
    assert [label_of(each) for each in ("", "outrider", "outrider:p:me@here", "mine:p:me@here:0", f"{LABEL}:x")] == [
        None
    ] * 5
    views = [JobView("1", "RUNNING", comment=str(LABEL)), JobView("2", "RUNNING", comment="outrider:q:me@here:1")]
    assert of_pool(views, "p") == [(views[0], LABEL)]


# --- submissions ------------------------------------------------------------------------------------------------------


def submission() -> Submission:
    return submitter.Submission("0123", "/f", 2)


SHOWN, OTHER = JobView("7", "PENDING", comment=str(LABEL)), JobView("8", "PENDING", comment="outrider:p:me@here:9")


def holds_submit_1() -> None:
    one = submission()
    one.submitting()
    one.lost(0.0)
    one.looked([OTHER], 1.0)
    assert one.next_step == "look"
    with pytest.raises(AssertionError):
        one.submitting()


def holds_submit_2() -> None:
    one = submission()
    one.submitting()
    one.lost(10.0)
    one.looked([], 10.0 + OVER_S - 1.0)
    assert one.next_step == "look"
    one.looked([], 10.0 + OVER_S)
    assert one.next_step == "nothing"


def holds_submit_3() -> None:
    one = submission()
    one.submitting()
    one.lost(0.0)
    one.looked([], OVER_S)
    one.looked([OTHER, SHOWN], 2 * OVER_S)
    assert (one.next_step, one.job) == ("job", "7")


@pytest.mark.parametrize("holds", [holds_submit_1, holds_submit_2, holds_submit_3])
def test_one_call_is_one_job_at_most(holds: object) -> None:
    """SUBMIT-1, SUBMIT-2 and SUBMIT-3."""
    holds()  # type: ignore[operator]


class Repeats(Submission):
    @property
    def next_step(self) -> submitter.Step:
        return "submit" if self.lost_at is not None else Submission.next_step.__get__(self)


class Impatient(Submission):
    def looked(self, views: object, asked_at: float) -> None:
        self.nothing = not views


class GivesUp(Submission):
    def looked(self, views: object, asked_at: float) -> None:
        if not self.nothing:
            Submission.looked(self, views, asked_at)  # type: ignore[arg-type]


BROKEN = {
    "SUBMIT-1": (Repeats, holds_submit_1),
    "SUBMIT-2": (Impatient, holds_submit_2),
    "SUBMIT-3": (GivesUp, holds_submit_3),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_submission_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """See `BROKEN`."""
    made, holds = BROKEN[rule]
    monkeypatch.setattr(submitter, "Submission", made)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        holds()


def test_a_refusal_is_an_answer() -> None:
    one = submission()
    assert one.open
    one.submitting()
    one.was_refused()
    assert (one.next_step, one.open) == ("refused", False)


# --- errors -----------------------------------------------------------------------------------------------------------

FAILED = "sbatch: error: Batch job submission failed: "
SAID = [
    ("sbatch: error: invalid partition specified: gpuu\n" + FAILED + "Invalid partition name specified", BadRequest),
    (FAILED + "Invalid account or account/partition combination specified", NotAuthorized),
    (FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", QuotaExceeded),
    (FAILED + "Invalid generic resource (gres) specification", BadRequest),
    (FAILED + "Requested time limit is invalid (missing or exceeds some limit)", BadRequest),
    (FAILED + "Requested node configuration is not available", BadRequest),
    (FAILED + "Invalid qos specification", BadRequest),
    (FAILED + "Node count specification invalid", BadRequest),
    (FAILED + "Unable to contact slurm controller (connect failure)", HostAway),
    ("sbatch: error: If munged is up, restart with --num-threads=10\nsbatch: error: Munge encode failed", HostAway),
    (FAILED + "Zero Bytes were transmitted or received", HostAway),
    (FAILED + "Message receive failure", HostAway),
    (FAILED + "Communication connection failure", HostAway),
    (FAILED + "Connection timed out", HostAway),
    (FAILED + "Broken pipe", HostAway),
    (FAILED + "Unexpected message received", HostAway),
    ("sbatch: unrecognized option '--colour=blue'\nTry \"sbatch --help\" for more information", BadRequest),
    ("mkdir: cannot create directory '/home/me/x': Disk quota exceeded", BadRequest),
    (FAILED + "Unable to allocate resources: Access/permission denied", NotAuthorized),
    (FAILED + "Something that nobody has heard of", ProviderError),
]


@pytest.mark.parametrize(("said", "kind"), SAID)
def test_what_slurm_says_is_an_error_with_a_type(said: str, kind: type[ProviderError]) -> None:
    error = error_of("sbatch", Ended(1, stderr=said), "on login")
    assert type(error) is kind
    assert error.advice or kind is ProviderError


def holds_slurmerr_1() -> None:
    for said, kind in SAID:
        error = site.error_of("sbatch", Ended(1, stderr=said))
        assert (error.retry_after_s is not None) == (kind is HostAway), said


def holds_slurmerr_2() -> None:
    for said, _ in SAID:
        assert said.split()[-1] in str(site.error_of("sbatch", Ended(1, stderr=said)))


@pytest.mark.parametrize("holds", [holds_slurmerr_1, holds_slurmerr_2])
def test_errors_say_whether_another_try_may_help_and_quote_slurm(holds: object) -> None:
    """SLURMERR-1 and SLURMERR-2."""
    holds()  # type: ignore[operator]


@pytest.mark.parametrize("holds", [holds_slurmerr_1, holds_slurmerr_2])
def test_an_error_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch, holds: object) -> None:
    """SLURMERR-1 and SLURMERR-2: one that is worth a try always, and says nothing of Slurm's, is noticed."""
    monkeypatch.setattr(site, "error_of", lambda command, ended: ProviderError("failed", retry_after_s=1.0))
    with pytest.raises(AssertionError):
        holds()  # type: ignore[operator]


def test_a_host_without_slurm_and_a_command_that_hangs_are_told_apart() -> None:
    error = error_of("sbatch", Ended(127, stderr="sh: 1: sbatch: not found"), "here")
    assert type(error) is BadRequest
    assert "There is no sbatch here" in str(error)
    assert error_of("squeue", Ended(124), "on login").retry_after_s is not None
