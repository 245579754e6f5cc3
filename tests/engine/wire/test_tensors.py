"""Tensors as they travel: their own bytes, out of the pickle, and storages that they share once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.wire import values

torch = pytest.importorskip("torch")
SLACK_BYTES = 2_000  # the pickle itself


def there(value: object) -> Any:
    """Return the value as another process gets it."""
    dumped = values.dump(value)
    return values.load(b"".join(dumped.parts), dumped.sizes)


def sent_bytes(value: object) -> int:
    return values.dump(value).total


def are_equal(one: Any, other: Any) -> bool:
    same = one.dtype == other.dtype and one.shape == other.shape and one.requires_grad == other.requires_grad
    return same and type(one) is type(other) and bool(torch.equal(one.detach().cpu(), other.detach().cpu()))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0),
        torch.tensor(5),
        torch.empty(0),
        torch.empty(3, 0, 2),
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.ones(2).expand(3, 2),
        torch.tensor([True, False]),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, dtype=torch.uint16),
        torch.ones(3).requires_grad_(),
        torch.nn.Parameter(torch.ones(2, 2)),
        torch.nn.Parameter(torch.ones(2, 2), requires_grad=False),
        torch.ones(3).to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(3, requires_grad=True).exp(),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}-{tensor.requires_grad}",
)
def test_a_tensor_arrives_as_it_was(tensor: Any) -> None:
    arrived = there(tensor)
    if tensor.is_sparse:
        arrived, tensor = arrived.to_dense(), tensor.to_dense()
    assert are_equal(arrived, tensor)
    assert arrived.stride() == tensor.stride()


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_small_floats_arrive(kind: str) -> None:
    tensor = torch.ones(3).to(getattr(torch, kind))
    assert torch.equal(there(tensor).float(), torch.ones(3))


def test_a_row_takes_its_own_bytes_along() -> None:
    whole = torch.ones(100, 10_000)
    assert sent_bytes(whole[3]) < 40_000 + SLACK_BYTES


def test_a_column_is_sent_without_what_lies_between() -> None:
    whole = torch.arange(1_000_000.0).reshape(1000, 1000)
    assert sent_bytes(whole[:, 3]) < 4_000 + SLACK_BYTES
    assert torch.equal(there(whole[:, 3]), whole[:, 3])


def test_a_large_tensor_is_no_part_of_the_pickle() -> None:
    tensor = torch.ones(1_000_000)
    dumped = values.dump({"weights": [tensor]})
    assert len(dumped.parts[0]) < SLACK_BYTES
    assert memoryview(dumped.parts[-1]).nbytes == 4_000_000


def test_tied_weights_stay_tied_and_are_sent_once() -> None:
    weight = torch.nn.Parameter(torch.ones(1000, 100))
    state = {"head": weight, "embed": weight, "transposed": weight.detach().T}
    assert sent_bytes(state) < 400_000 + SLACK_BYTES
    arrived = there(state)
    assert arrived["head"] is arrived["embed"]
    arrived["transposed"][3, 7] = 5
    assert arrived["head"][7, 3] == 5


@pytest.mark.parametrize("first", ["view", "whole"])
def test_a_view_and_its_whole_share_memory_in_either_order(first: str) -> None:
    whole = torch.zeros(100)
    pair = {"view": whole[10:20], "whole": whole}
    arrived = there({name: pair[name] for name in (first, *pair)})
    arrived["whole"][12] = 3
    assert arrived["view"][2] == 3


def test_attributes_of_a_tensor_travel() -> None:
    tensor = torch.ones(2)
    tensor.label = "mine"  # type: ignore[attr-defined]
    assert there(tensor).label == "mine"


def test_a_tensor_over_memory_that_cannot_be_written_is_a_copy() -> None:
    dumped = values.dump(torch.ones(3))
    arrived = values.load(memoryview(b"".join(dumped.parts)), dumped.sizes)
    arrived += 1
    assert arrived.tolist() == [2, 2, 2]


def test_a_model_and_its_optimizer_arrive() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    arrived_model, arrived_optimizer = there((model, optimizer))
    assert arrived_optimizer.param_groups[0]["params"][0] is arrived_model.weight
    assert are_equal(arrived_model.weight, model.weight)


@st.composite
def spans(draw: st.DrawFn) -> list[tuple[int, int]]:
    ends = st.tuples(st.integers(0, 40), st.integers(0, 40))
    return [(min(each), max(each)) for each in draw(st.lists(ends, min_size=1, max_size=6))]


@settings(max_examples=60, deadline=None)
@given(spans())
def test_views_that_overlap_share_memory_as_they_did(ends: list[tuple[int, int]]) -> None:
    """What is written through one view is seen through the others, there as here."""
    whole = torch.arange(40, dtype=torch.int16)
    here = [whole[begin:end] for begin, end in ends]
    arrived = there(here)
    for number, (one, other) in enumerate(zip(here, arrived, strict=True)):
        assert torch.equal(one, other)
        one.add_(100 * (number + 1))
        other.add_(100 * (number + 1))
    assert all(torch.equal(one, other) for one, other in zip(here, arrived, strict=True))


@settings(max_examples=60, deadline=None)
@given(spans())
def test_no_byte_is_sent_twice(ends: list[tuple[int, int]]) -> None:
    """The parts that are sent of a storage do not overlap, and have no bytes that no tensor covers."""
    size = 1_000
    whole = torch.zeros(40 * size)
    dumped = values.dump([whole[begin * size : end * size] for begin, end in ends])
    covered = {index for begin, end in ends for index in range(begin, end)}
    sent = sum(memoryview(part).nbytes for part in dumped.parts[1:] if memoryview(part).nbytes > 64)
    assert sent == 4 * size * len(covered)
    assert all(one <= other for one, other in pairwise(sorted(covered)))
