"""Requirements for what this program has installed, by which plugins give other computers the same."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def same_version(name: str, *others: str, extra: str = "") -> str:
    """The package in the version that is installed here, by that name or one of the others; without any, in any."""
    wanted = f"{name}[{extra}]" if extra else name
    for each in (name, *others):
        try:
            return f"{wanted}=={version(each).partition('+')[0]}"  # indexes have no builds of this computer's
        except PackageNotFoundError:
            continue
    return wanted


def installed(*names: str) -> tuple[str, ...]:
    """Requirements for those of the packages that are installed here, in the same version."""
    return tuple(each for each in map(same_version, names) if "==" in each)
