"""`Volume`: a bucket, or a folder of a bucket, mounted on every node.

Options are checked when a `Volume` is created.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, field
from typing import Any
from urllib.parse import urlsplit

from ...lazy_dataclass import dataclass
from ..volumes import mount_path
from .checks import checks_options, refuse, shown
from .secrets import Secret, revealed

_GIB = 1 << 30
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# From "Bucket naming rules" in the Amazon S3 User Guide; no other store allows more.
_BUCKET = re.compile(r"(?!\d+\.\d+\.\d+\.\d+$)(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9][a-z0-9-]*")


@checks_options
@dataclass(frozen=True, slots=True)
class Volume:
    """A bucket as a folder on every node: ``Volume("s3://bucket/prefix", mount="/data")``.

    The folder exists before a node's first task, and is removed with the node.

    Args:
        url: The bucket, with an optional prefix.
        mount: The absolute path of an empty folder, or of a new one.
        read_only: False lets tasks write. Each file must be written from start to end; it has been stored in the bucket
            when its ``close()`` returns.
        region: The region. Default: the bucket's own.
        endpoint: The URL of a store other than Amazon's.
        credentials: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and, for temporary ones, ``AWS_SESSION_TOKEN``.
            Default: those of the node, from its ``~/.aws`` or its instance profile.
        cache_gb: GiB of the node's disk for a cache of the files that were read. Only for read-only volumes. Default:
            no cache.

    Raises:
        SpecError: An option is not valid.
    """

    url: str
    _: KW_ONLY
    mount: str
    read_only: bool = True
    region: str | None = None
    endpoint: str | None = None
    credentials: Mapping[str, str | Secret] | None = field(default=None, repr=False)
    cache_gb: float | None = None

    def __post_init__(self) -> None:
        _check_url(self.url)
        if not isinstance(self.mount, str):
            refuse(f"Volume(mount=...) takes an absolute path on the nodes, not {shown(self.mount)}.")
        mount = self.mount.rstrip("/") or "/"
        if objection := mount_path.objection(mount):
            refuse(f"Volume(mount={self.mount!r}): it {objection}.")
        object.__setattr__(self, "mount", mount)
        if not isinstance(self.read_only, bool):
            refuse(f"Volume(read_only=...) takes True or False, not {shown(self.read_only)}.")
        if self.region is not None and not (isinstance(self.region, str) and _REGION.fullmatch(self.region)):
            refuse(f"Volume(region=...) takes the name of a region, as in 'eu-west-1', not {shown(self.region)}.")
        _check_endpoint(self.endpoint)
        object.__setattr__(self, "credentials", _credentials(self.credentials))
        _check_cache(self.cache_gb, read_only=self.read_only)

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """The folder in the bucket, without slashes at its ends; empty for the whole bucket."""
        return self.url.removeprefix("s3://").partition("/")[2].rstrip("/")

    @property
    def secrets(self) -> list[Secret]:
        """The secrets among the credentials."""
        return [value for value in (self.credentials or {}).values() if isinstance(value, Secret)]

    def order(self) -> dict[str, Any]:
        """Return the volume as JSON values for the node, including its credentials."""
        return {
            "source": self.url.rstrip("/"),
            "bucket": self.bucket,
            "prefix": self.prefix,
            "mount": self.mount,
            "read_only": self.read_only,
            "region": self.region or "",
            "endpoint": self.endpoint or "",
            "credentials": {name: revealed(value) for name, value in (self.credentials or {}).items()},
            "cache_bytes": 0 if self.cache_gb is None else int(self.cache_gb * _GIB),
        }


def check_volumes(volumes: object, *, local: bool) -> tuple[Volume, ...]:
    """Check the option ``Pool(volumes=...)``, and return the volumes.

    ``local``: the pool's nodes are on this computer, where volumes are not supported.
    """
    if isinstance(volumes, Volume) or not isinstance(volumes, Sequence) or isinstance(volumes, str):
        refuse(f"volumes takes a list, as in volumes=[Volume('s3://bucket', mount='/data')], not {shown(volumes)}.")
    for volume in volumes:
        if not isinstance(volume, Volume):
            refuse(f"volumes takes Volume(...), not {shown(volume)}.")
    if overlap := mount_path.overlap([volume.mount for volume in volumes]):
        upper, lower = overlap
        refuse(
            f"volumes: two are mounted at {upper}: give each a folder of its own."
            if upper == lower
            else f"volumes: {lower} is inside of {upper}, which is a volume too: mount them beside each other."
        )
    if local and volumes:
        refuse(
            f"volumes: nothing is mounted on this computer for a pool of Local(), whose tasks run here: make "
            f"{volumes[0].mount} here yourself, or give the tasks the path of a folder that is here."
        )
    return tuple(volumes)


def _check_url(url: object) -> None:
    if not isinstance(url, str):
        refuse(f"Volume takes a URL, as in 's3://bucket/prefix', not {shown(url)}.")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme != "s3":
        refuse(f"Volume({url!r}): it takes an s3:// URL; another store that speaks S3 is named by endpoint=.")
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        refuse(
            f"Volume({url!r}): {bucket!r} cannot be a bucket: 3 to 63 lower-case letters, digits, '.' and '-', with a "
            "letter or digit at both ends."
        )
    parts = prefix.rstrip("/").split("/") if prefix.rstrip("/") else []
    if any(part in ("", ".", "..") for part in parts):
        refuse(f"Volume({url!r}): a folder cannot show keys with '.', '..' or nothing between two slashes.")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in prefix) or len(prefix.encode()) > 1000:
        refuse(f"Volume({shown(url)}): the prefix has a control character in it, or is longer than a key can be.")


def _check_endpoint(endpoint: object) -> None:
    if endpoint is None:
        return
    if not isinstance(endpoint, str):
        refuse(f"Volume(endpoint=...) takes a URL, not {shown(endpoint)}.")
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError:
        refuse(f"Volume(endpoint={endpoint!r}) is not a URL.")
    if "@" in parts.netloc:
        refuse("Volume(endpoint=...): credentials go into credentials=, where they are kept secret.")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or " " in endpoint:
        refuse(f"Volume(endpoint={endpoint!r}): it takes the store's URL, as in 'https://minio.example.com:9000'.")


def _credentials(credentials: object) -> dict[str, Secret | str] | None:
    if credentials is None:
        return None
    if not isinstance(credentials, Mapping) or not {*_KEYS[:2]} <= {*credentials} <= {*_KEYS}:
        refuse(
            "Volume(credentials=...) takes a mapping of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with "
            "AWS_SESSION_TOKEN where they are temporary, as in {'AWS_ACCESS_KEY_ID': Secret.env('AWS_ACCESS_KEY_ID')}."
        )
    kept: dict[str, Secret | str] = {}
    for name, value in credentials.items():
        text = value.reveal() if isinstance(value, Secret) else value
        if not isinstance(text, str) or not text or any(ord(letter) < 33 or ord(letter) > 126 for letter in text):
            refuse(f"Volume(credentials=...): {name} must be a text that is not empty, without spaces.")
        kept[name] = value if isinstance(value, Secret) or name == _KEYS[0] else Secret(text)
    return kept


def _check_cache(cache_gb: object, *, read_only: bool) -> None:
    if cache_gb is None:
        return
    if not isinstance(cache_gb, int | float) or isinstance(cache_gb, bool) or not 0 < cache_gb < 1e6:
        refuse(f"Volume(cache_gb=...) takes gigabytes, more than 0, not {shown(cache_gb)}; leave it out for none.")
    if not read_only:
        refuse("Volume(cache_gb=...) is for what is read: leave it out, or read_only=False.")
