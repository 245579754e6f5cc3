"""scikit-learn's grid search on a pool: each fit is a task, and the data is sent to a node once, not with each fit."""

import time

import joblib
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from outrider import Local, Pool, plugins

GRID = {"svc__C": [0.1, 1, 10], "svc__gamma": [0.003, 0.01, 0.03]}


def main() -> None:
    x, held_out, y, truth = train_test_split(*load_digits(return_X_y=True), test_size=0.25, random_state=0)
    search = GridSearchCV(make_pipeline(StandardScaler(), SVC()), GRID, cv=4)

    with (
        Pool(provider=Local(), nodes=4, plugins=[plugins.joblib()]) as pool,
        joblib.parallel_config(backend="outrider"),
    ):
        began = time.perf_counter()
        search.fit(x, y)
        took = time.perf_counter() - began
        done = pool.snapshot()

    print(f"{len(search.cv_results_['params'])} candidates, 4 folds each, on 4 nodes: {took:.1f} s")
    print(f"tasks finished: {done.finished}")
    print(f"best: {search.best_params_}")
    print(f"right on held-out scans: {search.score(held_out, truth):.1%}")


if __name__ == "__main__":
    main()
