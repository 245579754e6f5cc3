"""Accelerators by name and typed."""

import pytest

from outrider import Accelerator, SpecError, accelerators


def test_names_and_typed_accelerators_are_the_same() -> None:
    assert Accelerator.of("A100") == accelerators.A100() == Accelerator("A100", 1, 40)
    assert Accelerator.of("a100:8") == accelerators.A100(count=8)
    assert Accelerator.of("RTX 4090") == accelerators.RTX4090()
    assert accelerators.A100(count=8, memory="80GB") == Accelerator("A100", 8, 80)
    assert accelerators.A100(memory=80).memory_gb == 80


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("A10O", "did you mean 'A10"),
        ("A100:", "after the colon"),
        ("A100:x", "after the colon"),
        ("A100:0", "at least 1"),
        ("A100:" + "9" * 5000, "after the colon"),
        ("quantum", "known are"),
        (8, "accelerator takes"),
    ],
)
def test_names_that_mean_nothing_are_refused(name: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        Accelerator.of(name)


def test_more_memory_than_is_made_is_refused() -> None:
    with pytest.raises(SpecError, match="40 GB or 80 GB, not with 96 GB"):
        accelerators.A100(memory="96 GB")
    with pytest.raises(SpecError, match="'80GB'"):
        accelerators.A100(memory="much")
    for wrong in (float("nan"), float("inf"), [80], True):
        with pytest.raises(SpecError, match="memory"):
            accelerators.A100(memory=wrong)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match="memory_gb must be a number"):
            Accelerator("A100", memory_gb=wrong)  # type: ignore[arg-type]


def test_an_unlisted_type_can_be_written_out() -> None:
    assert Accelerator.of(Accelerator("X1", 2, 12)).type == "X1"
    with pytest.raises(SpecError, match="count"):
        Accelerator("X1", 0)


def test_an_unknown_attribute_names_the_one_that_was_meant() -> None:
    with pytest.raises(AttributeError, match="did you mean H100"):
        _ = accelerators.H1000


@pytest.mark.parametrize(
    "name", ["A40", "L40", "Trainium2", "inferentia", "tpu-v5e", "RTX PRO 6000", "rtx_6000_ada", "MI250X"]
)
def test_what_clouds_rent_is_known_however_it_is_written(name: str) -> None:
    assert Accelerator.of(f"{name}:2").count == 2
