"""Slurm's words when it fails: whose fault it is, and whether another try may help."""

from __future__ import annotations

import pytest

from outrider.providers.errors import BadRequest, HostAway, NotAuthorized, ProviderError, QuotaExceeded
from outrider.providers.shared.login_host import Ended
from outrider.providers.slurm.site import error_of, is_refusal

FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (255, "sbatch: unrecognized option '--nosuch=1'", BadRequest),
        (1, "sbatch: error: Invalid --mail-type specification", BadRequest),
        (255, 'sbatch: error: unrecognized --hint argument "fast", see --hint=help', BadRequest),
        (1, f"{FAILED}Job dependency problem", BadRequest),
        (1, f"{FAILED}Requested reservation is invalid", BadRequest),
        (1, f"{FAILED}Invalid license specification", BadRequest),
        (1, f"{FAILED}Invalid node name specified", BadRequest),
        (1, f"{FAILED}Invalid wckey specification", BadRequest),
        (1, f"{FAILED}Invalid account or account/partition combination specified", NotAuthorized),
        (1, f"{FAILED}Job violates accounting/QOS policy", QuotaExceeded),
        (1, f"{FAILED}Unable to contact slurm controller (connect failure)", HostAway),
        (1, f"{FAILED}Invalid authentication credential", HostAway),
        (1, f"{FAILED}Invalid job credential", HostAway),
        (1, f"{FAILED}Socket timed out on send/recv operation", HostAway),
        (1, f"{FAILED}Something new", ProviderError),
        (124, "", HostAway),
        (137, "Killed", HostAway),
        (143, "Terminated", HostAway),
        (192, "", HostAway),
        (None, "", HostAway),
        (193, "sbatch: fatal: Something new", ProviderError),
    ],
)
def test_failure_of_sbatch_has_its_kind_and_words(status: int | None, words: str, kind: type[ProviderError]) -> None:
    """SLURMERR-1, SLURMERR-2"""
    error = error_of("sbatch", Ended(status, "", words), "on login")
    assert type(error) is kind
    assert (error.retry_after_s is None) == (kind is not HostAway)
    assert is_refusal(error) == (kind not in {HostAway, ProviderError})
    assert " ".join(words.split()) in str(error).replace("\\'", "'")
