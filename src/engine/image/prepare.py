"""Prepare the parts of an image that are the same for every host, once per pool while its machines launch."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import cloudpickle

from ...providers.threads import in_thread
from ..api.image import Image
from ..api.secrets import secrets_in
from ..api.volume import Volume
from ..node import bundle
from . import includes, requirements
from .includes import Includes
from .requirements import Requirements
from .uv import Uv
from .wheels import WheelCache


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """The versions of this program, which nodes must match."""

    python: str  # "3.11.7"
    cloudpickle: str

    @classmethod
    def here(cls) -> ClientFacts:
        return cls(platform.python_version(), cloudpickle.__version__)

    @property
    def minor(self) -> str:
        return ".".join(self.python.split(".")[:2])


@dataclass(frozen=True, slots=True)
class Prepared:
    """An image, read and resolved as far as this computer can; `bootstrap` brings it to each host."""

    image: Image
    client: ClientFacts
    runtime: bundle.Runtime
    includes: Includes
    requirements: Requirements | None  # None: the image asks for no packages
    uv: Uv | None  # None: not installed here, and not needed so far
    wheel_cache: WheelCache  # wheels, and uv for other platforms, fetched when the first node needs them
    secrets: tuple[str, ...]  # texts that no log may show
    volumes: tuple[Volume, ...] = ()


async def prepare(image: Image, volumes: Sequence[Volume] = (), *, client: ClientFacts | None = None) -> Prepared:
    """Read the included files and the lock, and build the runtime archive. Cancel-safe.

    Raises:
        SpecError: the image names something that does not exist, or needs uv, which is not installed here.
        BootstrapError: the lock cannot be read.
    """
    client = client or ClientFacts.here()
    uv = None
    if image.needs_uv:
        uv = Uv.find("Image(" + ("pip=...)" if image.has_packages else f"python={image.python!r})"))
    runtime, included, required = await asyncio.gather(
        in_thread(bundle.build, abandon=True),
        in_thread(includes.scan, image, abandon=True),
        requirements.read(image, uv),
    )
    secrets = tuple(
        secret.reveal() for secret in secrets_in(image.env, image.pip_indexes, [volume.secrets for volume in volumes])
    )
    if uv is None:
        uv = Uv.if_installed()
    return Prepared(image, client, runtime, included, required, uv, WheelCache(), secrets, tuple(volumes))
