"""The huggingface plugin: a token and the hub's variables, inside a process group that ``Trainer`` finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from ...lazy_dataclass import dataclass
from ..api.errors import SpecError
from ..api.plugin import Plugin
from ..api.secrets import Secret
from ..runtime.instance_info import sharing
from .client_versions import installed
from .rank_layout import unless_set
from .torch import Torch, set_accelerate_device

if TYPE_CHECKING:
    from ..api.instance import InstanceInfo


def huggingface(token: Secret | str | None = None, *, home: str | None = None, offline: bool = False) -> HuggingFace:
    """Run tasks that use transformers, datasets and the hub.

    Includes the torch plugin; list that plugin, too, to change its options.

    Args:
        token: An access token of the hub, such as ``Secret.env("HF_TOKEN")``. It is not written to any file.
        home: The folder for downloads on the nodes. Default: ``~/.cache/huggingface``.
        offline: True: never contact the hub.

    Raises:
        SpecError: An option is not valid.
    """
    if isinstance(token, str):
        token = Secret(token)
    if token is not None and not isinstance(token, Secret):
        raise SpecError(f"plugins.huggingface: token takes a Secret, not {type(token).__name__}.")
    if home is not None and (not isinstance(home, str) or not home):
        raise SpecError(f"plugins.huggingface: home takes a folder's path, not {home!r}.")
    return HuggingFace(token, home, bool(offline))


@dataclass(frozen=True)
class HuggingFace(Plugin):
    """The plugin that `huggingface` makes."""

    token: Secret | None = None
    home: str | None = None
    offline: bool = False

    name: ClassVar[str] = "huggingface"
    # Trainer uses accelerate, which reads its rank only once per process
    fresh_process: ClassVar[bool] = True

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        return installed("transformers", "accelerate", "datasets", "huggingface-hub")

    def brings(self) -> Sequence[Plugin]:
        return (Torch(),)

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        variables: dict[str, str] = {}
        if self.token is not None:
            variables["HF_TOKEN"] = self.token.reveal()
        if self.home is not None:
            variables["HF_HOME"] = self.home
        if self.offline:
            variables |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        if info.local_rank:  # one progress bar per node is enough
            variables |= unless_set({"HF_HUB_DISABLE_PROGRESS_BARS": "1"})
        if sharing(info) > 1:  # otherwise the tokenizers of each rank use every core
            variables |= unless_set({"TOKENIZERS_PARALLELISM": "false"})
        return variables

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:  # noqa: ARG002
        set_accelerate_device()
        yield
