"""What plugins bring to other computers: their frameworks, as they are here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError

import pytest

from outrider import Plugin, Pool, plugins
from outrider.engine.client.opening import plugin_packages
from outrider.engine.plugins import client_versions
from outrider.engine.plugins.client_versions import installed, same_version
from outrider.testing.fake_provider import Fake

HERE = {
    "torch": "2.13.0+cpu",
    "jax": "0.9.1",
    "tensorflow-cpu": "2.21.0",
    "transformers": "5.1.0",
    "mpi4py": "4.1.1",
    "keras": "3.13.0",
}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in HERE:
            raise PackageNotFoundError(name)
        return HERE[name]

    monkeypatch.setattr(client_versions, "version", version)


def test_what_is_installed_here_is_asked_for_in_its_version_without_its_build() -> None:
    assert same_version("torch") == "torch==2.13.0"
    assert same_version("jax", extra="cuda12") == "jax[cuda12]==0.9.1"
    assert same_version("tensorflow", "tensorflow-cpu") == "tensorflow==2.21.0"
    assert (same_version("ray"), same_version("ray", extra="client")) == ("ray", "ray[client]")
    assert installed("mpi4py", "mpich") == ("mpi4py==4.1.1",)


ON_CPUS: Mapping[str, tuple[Plugin, list[str]]] = {
    "torch": (plugins.torch(), ["torch==2.13.0"]),
    "no group": (plugins.torch(init=False), ["torch==2.13.0"]),
    "jax": (plugins.jax(), ["jax==0.9.1"]),
    "tensorflow": (plugins.tensorflow(), ["tensorflow-cpu==2.21.0"]),
    "keras": (plugins.keras(), ["jax==0.9.1", "keras==3.13.0"]),
    "keras on tensorflow": (plugins.keras(backend="tensorflow"), ["tensorflow-cpu==2.21.0", "keras==3.13.0"]),
    "accelerate": (plugins.accelerate(), ["torch==2.13.0", "accelerate"]),
    "huggingface": (plugins.huggingface(), ["torch==2.13.0", "transformers==5.1.0"]),
    "joblib": (plugins.joblib(), ["joblib"]),
    "sklearn": (plugins.sklearn(), ["scikit-learn", "joblib"]),
    "dask": (plugins.dask(tls=False), ["dask", "distributed"]),
    "ray": (plugins.ray(), ["ray[client]"]),
    "mpi": (plugins.mpi(), ["mpi4py==4.1.1"]),
}


def brought(pool: Pool) -> list[str]:
    return list(dict.fromkeys(each for packages in plugin_packages(pool._settings) for each in packages))


@pytest.mark.parametrize("name", ON_CPUS)
def test_a_plugin_brings_its_framework(name: str) -> None:
    plugin, expected = ON_CPUS[name]
    assert brought(Pool(provider=Fake(), plugins=[plugin])) == expected


def test_for_accelerators_it_brings_the_build_that_uses_them() -> None:
    pool = Pool(provider=Fake(), plugins=[plugins.jax(), plugins.tensorflow()], accelerator="A100")
    assert brought(pool) == ["jax[cuda12]==0.9.1", "tensorflow[and-cuda]==2.21.0"]
