"""Pack a finished run as a model that ships with the package: `python -m benchmarks.ship NAME RUN [RUN ...] --data D`.

NAME is a variant, a dot and a tag, such as vit-nano4.cifar10. The first RUN is packed, in float16, into
sightline/weights/shipped/NAME.safetensors; the others are the same training with other seeds. All are tested on the
test split of --data, and the header of the file holds license, command, training and the accuracy of every seed.
"""

import argparse
from pathlib import Path

import sightline as sl

FOLDER = Path(sl.__file__).parent / "weights" / "shipped"
LARGEST = 6_000_000  # bytes of all shipped models together
LICENSE = "Apache-2.0"


def accuracies(runs: list[sl.Run], data: str, num: int | None) -> tuple[list[float], int]:
    """Top-1 of each run on the test split, as float16 will have it, and the number of images."""
    test = sl.dataset(data, "test")
    test = test if num is None else test.sample(num)
    return [sl.evaluate(run.model, test).top1 for run in runs], len(test)


def describe(found: list[float], images: int) -> str:
    """Every seed's accuracy in one line."""
    if len(found) == 1:
        return f"{100 * found[0]:.1f} % of {images:,} test images, one seed"
    each = ", ".join(f"{100 * a:.1f}" for a in found)
    mean = sum(found) / len(found)
    return f"{100 * mean:.1f} % of {images:,} test images, mean of {len(found)} seeds ({each}); the first is this file"


def ship(name: str, runs: list[sl.Run], data: str, *, command: str, num: int | None) -> Path:
    """Write the file, and refuse it if all shipped models together become too large."""
    found, images = accuracies(runs, data, num)
    plan = runs[0].about["plan"]
    trained = f"{plan['steps']:,} steps of {plan['batch']} images"
    facts = {
        "license": LICENSE,
        "data": data,
        "command": command,
        "training": trained,
        "accuracy": describe(found, images),
    }
    path = sl.weights.pack(runs[0].model, FOLDER / f"{name}.safetensors", about=facts)
    if (total := sum(f.stat().st_size for f in FOLDER.glob("*.safetensors"))) > LARGEST:
        path.unlink()
        raise ValueError(f"With {name} the shipped models have {total:,} bytes, more than {LARGEST:,}.")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--command", default="", help="What to type to train it; by default as run.json has it.")
    parser.add_argument("--num", type=int, help="Test images; by default all.")
    given = parser.parse_args()
    runs = [sl.Run(folder) for folder in given.runs]
    command = given.command or runs[0].about["command"]
    path = ship(given.name, runs, given.data, command=command, num=given.num)
    print(path, f"{path.stat().st_size:,} bytes", sl.weights.zoo(given.name)[0].about)


if __name__ == "__main__":
    main()
