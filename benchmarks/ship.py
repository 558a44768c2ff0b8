"""Pack a finished run as a model that ships with the package: `python -m benchmarks.ship NAME RUN [RUN ...] --data D`.

NAME is a variant, a dot and a tag, such as vit-nano4.cifar10. The first RUN is packed, in float16, into
sightline/weights/shipped/NAME.safetensors; the others are the same training with other seeds. The file itself and the
other runs are tested on the test split of --data, and the header of the file holds license, command, training and these
accuracies. Without a RUN, the file that is there is tested again, and its header says what came out.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import sightline as sl
from sightline.weights.containers.files import open_file
from sightline.weights.containers.header import from_text, to_text
from sightline.weights.containers.safetensors import write_safetensors

FOLDER = Path(sl.__file__).parent / "weights" / "shipped"
LARGEST = 6_000_000  # bytes of all shipped models together
LICENSE = "Apache-2.0"


def open_test(data: str, num: int | None) -> sl.data.Dataset:
    """The test split, or so many of its images."""
    test = sl.dataset(data, "test")
    return test if num is None else test.sample(num)


def describe_seeds(others: list[float], own: float) -> str:
    """The accuracies of the same training with other seeds, beside that of the file."""
    if not others:
        return "one seed"
    every = [own, *others]
    each = ", ".join(f"{100 * a:.1f}" for a in every)
    return f"{100 * sum(every) / len(every):.1f} %, mean of {len(every)} seeds ({each})"


def ship(name: str, runs: list[sl.Run], data: str, *, command: str, num: int | None) -> Path:
    """Write the file and test it, and refuse it if all shipped models together become too large."""
    plan = runs[0].about["plan"]
    facts = {
        "license": LICENSE,
        "data": data,
        "command": command,
        "training": f"{plan['steps']:,} steps of {plan['batch']} images",
    }
    path = sl.weights.pack(runs[0].model, FOLDER / f"{name}.safetensors", about=facts)
    if (total := sum(f.stat().st_size for f in FOLDER.glob("*.safetensors"))) > LARGEST:
        path.unlink()
        raise ValueError(f"With {name} the shipped models have {total:,} bytes, more than {LARGEST:,}.")
    test = open_test(data, num)
    own = state_accuracy(path, test)
    state(path, seeds=describe_seeds([sl.evaluate(run.model, test).top1 for run in runs[1:]], own))
    return path


def state_accuracy(path: Path, test: sl.data.Dataset) -> float:
    """Test the file as users load it, rounded to float16, and write the accuracy into its header."""
    own = sl.evaluate(sl.load(path), test).top1
    state(path, accuracy=f"{100 * own:.1f} % of {len(test):,} test images (this file)")
    return own


def state(path: Path, **facts: str) -> None:
    """Write facts into the header of a file; tensors and probe outputs stay as they are."""
    source = open_file(path)
    head = from_text(source.header["sightline"])
    text = to_text(replace(head, about={**head.about, **facts}))
    write_safetensors(path, {key: source.read(key) for key in source.shapes}, {"sightline": text})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--data", required=True)
    parser.add_argument("--command", default="", help="What to type to train it; by default as run.json has it.")
    parser.add_argument("--num", type=int, help="Test images; by default all.")
    given = parser.parse_args()
    runs = [sl.Run(folder) for folder in given.runs]
    path = FOLDER / f"{given.name}.safetensors"
    if runs:
        command = given.command or runs[0].about["command"]
        ship(given.name, runs, given.data, command=command, num=given.num)
    else:
        state(path, **({"command": given.command} if given.command else {}))
        state_accuracy(path, open_test(given.data, given.num))
    print(path, f"{path.stat().st_size:,} bytes", sl.weights.zoo(given.name)[0].about)


if __name__ == "__main__":
    main()
