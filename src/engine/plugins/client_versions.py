"""Requirements by which plugins install, on other computers, the package versions that are installed here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def same_version(name: str, *others: str, extra: str = "") -> str:
    """Return a requirement for the version of ``name``, or of one of ``others``, that is installed here.

    Without any of them, return a requirement for any version of ``name``.
    """
    wanted = f"{name}[{extra}]" if extra else name
    for each in (name, *others):
        try:
            return f"{wanted}=={version(each).partition('+')[0]}"  # package indexes lack local builds such as "+cu121"
        except PackageNotFoundError:
            continue
    return wanted


def installed(*names: str) -> tuple[str, ...]:
    """Return requirements for the given packages that are installed here, each in its installed version."""
    return tuple(each for each in map(same_version, names) if "==" in each)
