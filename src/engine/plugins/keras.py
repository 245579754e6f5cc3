"""The keras plugin: choose a backend before keras is imported, and set keras up on all ranks.

Only this module imports keras.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args
from zlib import crc32

from ...lazy_dataclass import dataclass
from ..api import checks
from ..api.plugin import Plugin
from .client_versions import same_version
from .jax import Jax
from .tensorflow import TensorFlow
from .torch import Torch

if TYPE_CHECKING:
    from ..api.instance import InstanceInfo

Backend = Literal["jax", "torch", "tensorflow"]


def keras(backend: Backend = "jax", *, data_parallel: bool = True, seed: int | None = None) -> Keras:
    """Run Keras on a backend. Includes that backend's plugin; list that plugin, too, to change its options.

    Args:
        backend: ``"jax"``, ``"tensorflow"`` or ``"torch"``.
        data_parallel: Only for jax. True: the ranks of a broadcast train one model, each on its own share of the data.
            False: each rank trains a model of its own.
        seed: The seed of the model's initial weights, which must be equal on all ranks. Default: a new
            seed for each try of a broadcast.

    Raises:
        SpecError: An option is not valid.
    """
    checks.one_of("plugins.keras: backend", backend, get_args(Backend))
    if seed is not None:
        checks.count("plugins.keras: seed", seed, least=0)
    return Keras(backend, bool(data_parallel), seed)


@dataclass(frozen=True)
class Keras(Plugin):
    """The plugin that `keras` makes."""

    backend: Backend = "jax"
    data_parallel: bool = True
    seed: int | None = None

    name: ClassVar[str] = "keras"
    fresh_process: ClassVar[bool] = True  # keras cannot change its backend once it is imported

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:
        # TensorFlow works only with some versions of Keras, so both are installed together
        beside = TensorFlow().packages(accelerators) if self.backend == "tensorflow" else ()
        return (*beside, same_version("keras"))

    def brings(self) -> Sequence[Plugin]:
        match self.backend:
            case "jax":
                return (Jax(),)
            case "torch":
                return (Torch(),)
            case "tensorflow":
                return (TensorFlow(),)

    def env(self, info: InstanceInfo) -> Mapping[str, str]:  # noqa: ARG002
        return {"KERAS_BACKEND": self.backend}

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:
        if self.backend == "jax" and self.data_parallel:
            import keras as framework

            keras_: Any = framework
            if info.world_size > 1 or keras_.distribution.get_device_count() > 1:
                _replicate(keras_, self._seed(info))
        yield

    def _seed(self, info: InstanceInfo) -> int:
        return crc32(f"{info.pool} {info.job} {info.generation}".encode()) if self.seed is None else self.seed


def _replicate(keras_: Any, seed: int) -> None:
    """Copy weights to every device and let each rank feed its own devices. Call before the first model exists."""
    keras_.utils.set_random_seed(seed)
    keras_.distribution.set_distribution(keras_.distribution.DataParallel(auto_shard_dataset=False))
