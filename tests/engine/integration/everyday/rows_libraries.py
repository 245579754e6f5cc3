# %%
import copy
import io
import pickle
from functools import partial

import joblib
import numpy as np
import numpy.linalg
import numpy.typing as npt
import pandas as pd
import torch
import torch.nn.functional as F
from numpy import array, random as np_random
from numpy.random import default_rng, rand
from torch import nn
from torch.utils.data import DataLoader, Dataset
from driver import row


# %%
TABLE = np.arange(6).reshape(2, 3)


@row
def numpy_module_constant(n):
    return TABLE * n, TABLE.T[1], TABLE[:, ::2], np.float32(1.5), np.linalg.norm([3.0, 4.0])


# %%
RECORD = np.dtype([("a", "i4"), ("b", "U5"), ("c", "f8", (2,))])


@row
def numpy_structured_array(n):
    made = np.zeros(2, RECORD)
    made[0] = (n, "x", (1, 2))
    return made, made["a"], made[0]["b"], RECORD, np.rec.array([(1, 2.0)], names="x,y").x


@row
def numpy_special_arrays(n):
    return (
        np.asfortranarray(TABLE),
        np.array([1, "a", None], dtype=object),
        np.array(n),
        np.zeros((0, 3)),
        np.ma.array([1, 2], mask=[0, 1]).filled(7),
        np.array(["2024-01-01"], dtype="M8[D]"),
        np.broadcast_to(n, (2, 2)),
        np.array([True, False]),
    )


class Tagged(np.ndarray):
    def __new__(cls, values, tag=None):
        made = np.asarray(values).view(cls)
        made.tag = tag
        return made

    def __array_finalize__(self, other):
        self.tag = getattr(other, "tag", None)


@row
def numpy_subclass(n):
    made = Tagged([1, n], "t") * 2
    return made, made.tag, type(made).__name__


@np.vectorize
def clipped(x, top=4):
    return min(x, top)


@row
def numpy_vectorize_and_ufunc(n):
    doubled = np.frompyfunc(double_it, 1, 1)
    return clipped([1, n, 9]), doubled(np.array([1, n])), np.add.reduce([1, n])


def double_it(x):
    return x * 2


@row
def from_numpy_random_import_rand(n):
    np_random.seed(n)
    return rand(), np.random.rand(2), np_random.randint(0, 100, 3)


@row
def numpy_generator_made_inside(n):
    return default_rng(n).normal(size=3), np.random.RandomState(n).rand()


RNG = np.random.default_rng(3)


@row
def numpy_generator_of_a_global(n):
    return RNG.random() != RNG.random(), RNG.random(2).shape


def normalize(values: npt.NDArray) -> npt.NDArray:
    return values / values.sum()


@row
def numpy_save_and_load(n):
    file = io.BytesIO()
    np.savez(file, a=TABLE, b=np.array([n]))
    file.seek(0)
    loaded = np.load(file)
    return loaded["a"], loaded["b"], normalize(np.array([1.0, n]))


# %%
FRAME = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "x"]}, index=[10, 20, 30])


@row
def pandas_frames(n):
    return FRAME[FRAME.a < n], FRAME.groupby("b").a.sum(), FRAME.assign(c=lambda f: f.a * n), FRAME.index


@row
def pandas_apply_own_function(n):
    return FRAME.a.apply(double_it), FRAME.apply(lambda line: f"{line.a}{line.b}", axis=1)


@row
def pandas_kinds(n):
    return (
        pd.Series([1, None, n], dtype="Int64"),
        pd.Series(["a", "b"], dtype="category"),
        pd.date_range("2024-01-01", periods=2, tz="UTC"),
        pd.MultiIndex.from_tuples([(1, "a"), (2, "b")]),
        pd.Timestamp("2024-01-01"),
        pd.Timedelta(n, "s"),
        pd.Interval(0, n),
    )


@row
def pandas_missing_value(n):
    return pd.NA is returns_na() and pd.isna(pd.NaT)


def returns_na():
    return pd.NA


# %%
@row
def torch_tensors(n):
    base = torch.arange(12.0).reshape(3, 4)
    return {
        "view": base[1],
        "column": base[:, 1],
        "transposed": base.T,
        "strided": base[::2, ::2],
        "bool": base > n,
        "bfloat16": base.bfloat16(),
        "half": base.half(),
        "complex": torch.complex(base, base),
        "conj": torch.complex(base, base).conj(),
        "empty": torch.empty(0, 3),
        "zero-dim": torch.tensor(n),
        "expanded": torch.tensor([1.0]).expand(3),
        "grad": torch.ones(2, requires_grad=True),
        "int8": base.to(torch.int8),
        "uint8": base.to(torch.uint8),
        "neg": torch.complex(base, base).imag,
        "sparse": torch.eye(3).to_sparse(),
        "flipped": base.flip(0),
    }


@row
def torch_tensors_that_share_memory(n):
    base = torch.zeros(4)
    return Sharing([base, base[:2], base.view(2, 2), {"again": base}])


class Sharing:
    def __init__(self, tensors):
        self.tensors = tensors

    def __eq__(self, other):
        base, part, view, again = *other.tensors[:3], other.tensors[3]["again"]
        base[0] = 5
        return again is base and part[0] == 5 and view[0, 0] == 5


# %%
class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.embed = nn.Embedding(5, width)
        self.head = nn.Linear(width, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(width, dtype=torch.bool))

    def forward(self, x):
        return self.head(F.relu(self.embed(x)))


@row
def torch_module(n):
    torch.manual_seed(n)
    return SameNet(Net())


class SameNet:
    def __init__(self, net):
        self.net = net

    def __eq__(self, other):
        return (
            other.net.head.weight is other.net.embed.weight
            and type(other.net) is Net
            and isinstance(other.net.head.weight, nn.Parameter)
            and all(torch.equal(a, b) for a, b in zip(self.net.state_dict().values(), other.net.state_dict().values()))
            and torch.equal(self.net(torch.tensor([1])), other.net(torch.tensor([1])))
        )


@row
def torch_state_dict_and_optimizer(n):
    torch.manual_seed(n)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
    return net.state_dict(), optimizer.state_dict(), net.embed.weight.grad


@row
def torch_parameter(n):
    return (
        nn.Parameter(torch.ones(n)),
        nn.Parameter(torch.ones(2), requires_grad=False),
        nn.ParameterList([torch.ones(1)])[0],
    )


GLOBAL_NET = Net()


@row
def torch_global_module(n):
    return GLOBAL_NET(torch.tensor([n % 5])).detach()


# %%
@torch.no_grad()
def without_grad(x):
    return (x * 2).requires_grad


@torch.inference_mode()
def in_inference(x):
    return float(x.sum())


@row
@torch.no_grad()
def torch_no_grad(n):
    return without_grad(torch.ones(n, requires_grad=True)), torch.is_grad_enabled(), in_inference(torch.ones(n))


@torch.compile(backend="eager", dynamic=True)
def compiled(x):
    return x * 3


@row
def torch_compile(n):
    return compiled.__name__, callable(compiled)


@row
def torch_autograd_function(n):
    x = torch.ones(n, requires_grad=True)
    Doubling.apply(x).sum().backward()
    return x.grad


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, grad):
        return grad * 2


@torch.jit.ignore
def ignored(x):
    return x


@row
def torch_func(n):
    return torch.func.vmap(torch.func.grad(cubed))(torch.tensor([1.0, n]))


def cubed(x):
    return x**3


# %%
@row
def torch_save_and_load(n):
    file = io.BytesIO()
    torch.save({"net": Net(), "n": n}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    return type(loaded["net"]) is Net, loaded["n"]


@row
def torch_random_state(n):
    torch.manual_seed(n)
    first = torch.rand(2)
    generator = torch.Generator().manual_seed(n)
    return first, torch.rand(2, generator=generator), torch.randperm(5, generator=generator)


# %%
class Numbers(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor([index, index * 2])


def collated(items):
    return torch.stack(items).sum(0)


@row
def torch_data_loader(n):
    return list(DataLoader(Numbers(n), batch_size=2, collate_fn=collated))


@row(value=[torch.tensor([1, 2]), torch.tensor([2, 4])])
def torch_data_loader_with_workers(n):
    return list(
        DataLoader(Numbers(n), batch_size=2, collate_fn=collated, num_workers=1, multiprocessing_context="fork")
    )


# %%
def hook(module, args, output):
    return output + 1


HOOKED = nn.Linear(1, 1)
HOOKED.register_forward_hook(hook)


@row
def torch_forward_hook(n):
    return HOOKED(torch.tensor([[float(n)]])).detach()


@row
def torch_types(n):
    return torch.float32, torch.device("cpu"), torch.Size([1, n]), torch.finfo(torch.float16).max


# %%
@row
def joblib_dump_and_hash(n):
    file = io.BytesIO()
    joblib.dump({"table": TABLE, "saved": SavedByJoblib(n)}, file)
    file.seek(0)
    return joblib.load(file)["saved"], joblib.hash(TABLE)


class SavedByJoblib:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n


@row
def joblib_threads(n):
    return joblib.Parallel(2, prefer="threads")(joblib.delayed(double_it)(i) for i in range(n))


@row(value=[0, 2, 4])
def joblib_processes(n):
    return joblib.Parallel(2)(joblib.delayed(double_it)(i) for i in range(n))


# %%
@row
def sklearn_estimators(n):
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline

    pipeline = make_pipeline(Scaling(n), LinearRegression())
    pipeline.fit([[1.0], [2.0]], [1.0, 2.0])
    return np.round(pipeline.predict([[3.0]]), 6), pipeline[0].factor


class Scaling:
    def __init__(self, factor=1):
        self.factor = factor

    def fit(self, x, y=None):
        return self

    def transform(self, x):
        return np.asarray(x) * self.factor

    def get_params(self, deep=True):
        return {"factor": self.factor}

    def set_params(self, **values):
        vars(self).update(values)
        return self
