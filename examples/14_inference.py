"""Inference: a trained model is pushed to the nodes, loaded once in each worker process, and used by its calls."""

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from outrider import Local, Pool, compute

MODEL = "digits.pickle"


def load_model() -> SVC:
    print("the model is loaded")
    return pickle.loads(Path(MODEL).read_bytes())  # in the work folder, where the push has put it


@compute(setup=load_model)
def predict(model: SVC, images: NDArray[np.float64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = model.predict(images)
    return found


async def main() -> None:
    digits = load_digits()
    seen, unseen = slice(0, 1200), slice(1200, None)
    model = SVC(gamma=0.001).fit(digits.data[seen], digits.target[seen])

    async with Pool(provider=Local(), nodes=2) as pool:
        with TemporaryDirectory() as folder:
            (Path(folder) / MODEL).write_bytes(pickle.dumps(model))
            await pool.push(Path(folder) / MODEL)

        # The caller gives the images alone: the model is in the worker already, from its second call on.
        batches = np.array_split(digits.data[unseen], 50)
        found = np.concatenate(await pool.map(predict, batches))
        print(f"{len(batches)} batches, {np.mean(found == digits.target[unseen]):.1%} right")


if __name__ == "__main__":
    anyio.run(main)
