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


@pytest.mark.parametrize(
    ("text", "count", "memory_gb"),
    [("A100-80GB", 1, 80), ("A100-80GB:8", 8, 80), ("a100_80gb", 1, 80), ("A100-40GB", 1, 40), ("V100-32GB:2", 2, 32)],
)
def test_a_name_may_say_the_memory(text: str, count: int, memory_gb: float) -> None:
    wanted = Accelerator.of(text)
    assert (wanted.count, wanted.memory_gb) == (count, memory_gb)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("A100:8:80GB", "write 'A100-80GB:8'"),
        ("A100:80GB", "write 'A100-80GB'"),
        ("A100-200GB", "comes with 40 GB or 80 GB"),
        ("A1OO-80GB", "No accelerator is called 'A1OO'"),
    ],
)
def test_memory_in_the_wrong_place_is_refused_with_the_right_spelling(text: str, advice: str) -> None:
    with pytest.raises(SpecError, match=advice):
        Accelerator.of(text)


def test_a_table_names_a_type_and_its_memory_or_an_unknown_type() -> None:
    assert Accelerator.of_table({"name": "A100", "count": 8, "memory": "80GB"}) == Accelerator("A100", 8, 80)
    assert Accelerator.of_table({"name": "A100-80GB"}) == Accelerator("A100", 1, 80)
    assert Accelerator.of_table({"type": "X9", "memory_gb": 20}) == Accelerator("X9", 1, 20)


@pytest.mark.parametrize(
    "table", [{"count": 2}, {"name": "A100:8"}, {"name": "A100", "cuont": 2}, {"type": "X", "a": 1}]
)
def test_a_table_that_names_no_type_or_has_other_keys_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        Accelerator.of_table(table)
