"""A state as it was when it was saved, out of numpy arrays, tensors and whatever can be pickled."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider import CheckpointError, SerializationError, checkpoint
from outrider.engine.checkpoint.store import FileStore


def back(root: str, state: Any, spoil: Any = None) -> Any:
    """Saved, loaded by somebody else."""
    with checkpoint("run", root=root) as saving:
        saving.save(1, state)
        if spoil is not None:
            spoil()
    step, loaded = checkpoint("run", root=root).load()
    assert step == 1
    return loaded


@dataclass
class Sampler:
    position: int = 0
    seen: list[int] = field(default_factory=list)
    weights: Any = None


def test_plain_objects(root: str) -> None:
    state = {"epoch": 3, "losses": [0.5, 0.25], "sampler": Sampler(7, [1, 2]), "nothing": None}
    assert back(root, state) == state


def test_changes_after_the_save_are_not_saved(root: str) -> None:
    large, small, tensor = np.arange(100_000.0), np.arange(3), torch.arange(50_000)
    state = {"large": large, "small": small, "tensor": tensor, "list": [1]}

    def spoil() -> None:
        large[:] = -1
        small[:] = -1
        tensor.fill_(-1)
        state["list"].append(2)  # type: ignore[attr-defined]

    loaded = back(root, state, spoil)
    assert np.array_equal(loaded["large"], np.arange(100_000.0))
    assert np.array_equal(loaded["small"], np.arange(3))
    assert torch.equal(loaded["tensor"], torch.arange(50_000))
    assert loaded["list"] == [1]


def test_memory_that_is_used_again_does_not_mix_saves(root: str) -> None:
    with checkpoint("run", root=root, keep=9) as saving:
        for step in range(1, 5):
            saving.save(step, {"a": np.full(10_000, step), "t": torch.full((step * 1000,), float(step))})
    loaded = checkpoint("run", root=root).load().state
    assert np.array_equal(loaded["a"], np.full(10_000, 4))
    assert torch.equal(loaded["t"], torch.full((4000,), 4.0))


def test_loaded_arrays_can_be_changed(root: str) -> None:
    loaded = back(root, {"a": np.zeros(10_000), "t": torch.zeros(10)})
    loaded["a"] += 1
    loaded["t"] += 1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.arange(12).reshape(3, 4).t(),
        torch.ones(1).expand(1000),
        torch.arange(10)[3:5],
        torch.zeros(3, dtype=torch.float8_e4m3fn),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_tensors_of_all_kinds(root: str, tensor: torch.Tensor) -> None:
    loaded = back(root, {"t": tensor})["t"]
    assert loaded.dtype == tensor.dtype
    assert torch.equal(loaded.view(torch.uint8) if loaded.dtype.itemsize == 1 else loaded,
                       tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor)  # fmt: skip


def test_sparse_and_quantized_tensors_pickle_themselves(root: str) -> None:
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(back(root, {"t": sparse})["t"].to_dense(), torch.eye(3))


def test_parameters_stay_parameters(root: str) -> None:
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    loaded = back(root, model)
    assert isinstance(loaded.weight, torch.nn.Parameter)
    assert loaded.weight.requires_grad
    assert not loaded.bias.requires_grad
    assert torch.equal(loaded.weight, model.weight)


def test_one_object_in_two_places_is_one_afterwards(root: str) -> None:
    tensor = torch.ones(1000)
    loaded = back(root, {"a": tensor, "b": [tensor]})
    assert loaded["a"] is loaded["b"][0]


def test_equal_contents_are_written_once(root: str, tmp_path: Any) -> None:
    back(root, {name: torch.ones(100_000) for name in "abcdef"})
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.distcp")) < 2 * 400_000


def test_optimizers_and_nested_states(root: str) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    loaded = back(root, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert isinstance(loaded["model"], OrderedDict)
    fresh = torch.optim.Adam(torch.nn.Linear(4, 4).parameters())
    fresh.load_state_dict(loaded["optimizer"])
    assert torch.equal(fresh.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_tensors_inside_objects(root: str) -> None:
    loaded = back(root, Sampler(weights=torch.arange(3)))
    assert torch.equal(loaded.weights, torch.arange(3))


def test_unpicklable_object_is_named_and_nothing_is_written(root: str) -> None:
    saving = checkpoint("run", root=root)
    with pytest.raises(SerializationError, match=r"state\['sampler'\]\.seen") as caught:
        saving.save(1, {"sampler": Sampler(seen=threading.Lock())})  # type: ignore[arg-type]
    assert caught.value.path == "state['sampler'].seen"
    assert saving.save(2, {"sampler": Sampler()})
    saving.wait()
    assert saving.steps() == [2]


def test_missing_class_is_reported_on_load(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    module = ModuleType("passing")
    exec("class Passing: pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "passing", module)
    with checkpoint("run", root=root) as saving:
        saving.save(1, module.Passing())
    monkeypatch.delitem(sys.modules, "passing")
    with pytest.raises(SerializationError, match="passing"):
        checkpoint("run", root=root).load()


@pytest.mark.filterwarnings("ignore:The checkpoint of 'run':RuntimeWarning")
def test_no_flipped_bit_of_a_tensor_is_loaded(root: str, tmp_path: Path) -> None:
    """Those between the tensor's bytes, which nobody reads, may do no harm."""
    with checkpoint("run", root=root) as saving:
        for step in (1, 2):
            saving.save(step, {"t": torch.full((300,), float(step))})
    (path,) = tmp_path.glob("checkpoints/run/step-000000000002.*/*.distcp")
    intact = path.read_bytes()
    skipped = 0
    for at in range(3, len(intact), 37):
        path.write_bytes(intact[:at] + bytes([intact[at] ^ 0x40]) + intact[at + 1 :])
        step, state = checkpoint("run", root=root).load()
        assert torch.equal(state["t"], torch.full((300,), float(step)))
        skipped += step == 1
    assert skipped * 37 > 300 * 4


@pytest.mark.parametrize("content", [torch.ones(9_000), np.ones(9_000)], ids=["tensor", "array"])
def test_storage_that_fails_does_not_count_as_damage(root: str, content: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(store: FileStore, *_: Any) -> Any:
        raise CheckpointError("the storage does not answer")

    with checkpoint("run", root=root) as saving:
        saving.save(1, {"content": content})
    monkeypatch.setattr(FileStore, "read", failing)
    with pytest.raises(CheckpointError, match="does not answer"):
        checkpoint("run", root=root).load()


def test_load_into_fills_tensors_in_place(root: str) -> None:
    with checkpoint("run", root=root) as saving:
        saving.save(4, {"w": torch.arange(6.0), "b": [torch.ones(2)], "epoch": 3})
    target = {"w": torch.zeros(6), "b": [torch.zeros(2)], "epoch": 0}
    step, state = checkpoint("run", root=root).load(into=target)
    assert step == 4
    assert state["w"] is target["w"]
    assert state["b"][0] is target["b"][0]  # type: ignore[index]
    assert torch.equal(target["w"], torch.arange(6.0))  # type: ignore[arg-type]
    assert state["epoch"] == 3


@pytest.mark.parametrize(
    ("target", "says"), [({"w": torch.zeros(5)}, "shape"), ({"w": torch.zeros(6), "v": torch.zeros(1)}, "no v")]
)
def test_load_into_something_else(root: str, target: Any, says: str) -> None:
    with checkpoint("run", root=root) as saving:
        saving.save(4, {"w": torch.arange(6.0)})
    with pytest.raises(ValueError, match=says):
        checkpoint("run", root=root).load(into=target)
