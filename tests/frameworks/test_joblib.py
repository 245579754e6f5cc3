"""scikit-learn's searches on a pool, by joblib: the scores that they have here, from data that is sent once."""

from __future__ import annotations

import asyncio
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC

from outrider import plugins
from outrider.engine.serialization.packer import Packer

GRID = {"C": [0.1, 1.0, 10.0], "gamma": [0.0001, 0.001]}


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    share = Packer.share

    def counted(self: Packer, value: Any) -> Any:
        sizes.append(value.nbytes)
        return share(self, value)

    monkeypatch.setattr(Packer, "share", counted)
    return sizes


def searched(x: Any, y: Any) -> Any:
    with joblib.parallel_config(backend="outrider"):
        return GridSearchCV(SVC(), GRID, cv=3).fit(x, y)


def test_a_grid_search_on_four_nodes(place: Any, shared: list[int]) -> None:
    x, y = (part[:600] for part in load_digits(return_X_y=True))
    with place.pool(4, plugins.joblib()):
        there = searched(x, y)
    here = GridSearchCV(SVC(), GRID, cv=3).fit(x, y)
    assert there.best_params_ == here.best_params_
    np.testing.assert_allclose(there.cv_results_["mean_test_score"], here.cv_results_["mean_test_score"])
    assert shared == [x.nbytes]  # once for 18 fits


@pytest.mark.anyio
async def test_the_same_from_async_code(place: Any) -> None:
    x, y = (part[:200] for part in load_digits(return_X_y=True))
    async with place.pool(2, plugins.joblib()):
        assert (await asyncio.to_thread(searched, x, y)).best_params_["C"] in GRID["C"]


def test_with_sklearn_n_jobs_is_enough(place: Any) -> None:
    x, y = (part[:300] for part in load_digits(return_X_y=True))
    forest = RandomForestClassifier(20, random_state=0)
    with place.pool(2, plugins.sklearn()) as pool:
        there = cross_val_score(forest, x, y, cv=3, n_jobs=-1)
        assert pool.snapshot().finished >= 3
    np.testing.assert_allclose(there, cross_val_score(forest, x, y, cv=3))
