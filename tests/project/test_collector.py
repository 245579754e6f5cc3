"""Python's collector rests while modules are imported, and is as it was afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from outrider import collector


@pytest.fixture(autouse=True)
def _collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.unfreeze()
    gc.enable()


def test_it_rests_in_the_block_and_collects_afterwards_also_after_an_error() -> None:
    with pytest.raises(ImportError), collector.at_rest():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_a_program_that_has_none_gets_none() -> None:
    gc.disable()
    with collector.at_rest():
        pass
    assert not gc.isenabled()


def test_what_was_made_counts_as_old_and_is_collected_with_the_rest() -> None:
    gc.unfreeze()  # what another test of this process may have frozen
    with collector.at_rest():
        made: list[object] = []
        made.append(made)
    assert any(each is made for each in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0


def test_what_the_program_has_frozen_stays_so() -> None:
    gc.freeze()
    with collector.at_rest():
        pass
    assert gc.get_freeze_count()  # 0 after gc.unfreeze(). Not compared with an earlier count, which freed objects lower
