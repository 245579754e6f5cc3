"""Requirements for the packages installed here, with which plugins install the same versions on other computers."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def same_version(name: str, *others: str, extra: str = "") -> str:
    """Return the package in the version installed here, by its name or one of the others; if none is, in any."""
    wanted = f"{name}[{extra}]" if extra else name
    for each in (name, *others):
        try:
            return f"{wanted}=={version(each).partition('+')[0]}"  # indexes have no builds of this computer's
        except PackageNotFoundError:
            continue
    return wanted


def installed(*names: str) -> tuple[str, ...]:
    """Return requirements for those of the packages that are installed here, in the same version."""
    return tuple(each for each in map(same_version, names) if "==" in each)
