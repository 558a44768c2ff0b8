"""Core-minutes to 80 % on CIFAR-10, BiT, against timm's training script: `python -m benchmarks.eighty [--minutes 30]`.

The same model (bit-basic), one thread, processor time, the same 2,000 validation images after every epoch: ours by
`speed_bit`, timm by its own transforms, loader, optimizer and scheduler. timm documents no settings for CIFAR-10, so
these are the usual ones for small images that its script has words for, not its defaults for ImageNet:

    --opt sgd --lr 0.1 --weight-decay 5e-4 --sched cosine --epochs 30 --warmup-epochs 2 --batch-size 128 --smoothing 0.1
    --train-crop-mode rkrc --hflip 0.5 --color-jitter 0 --amp --amp-dtype bfloat16

`--peer-epochs` and `--peer-lr` change them. Ours has fewer epochs than `speed_bit` and, since a short training needs
less augmentation, half its shifts; both were chosen on these validation images, with one seed. Stop it whenever you
like, or give it the minutes that it may take, and start it again with the same words. Curves are in
results/eighty.json.
"""

import argparse
import importlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import sightline as sl
from benchmarks.race import RESULTS
from benchmarks.records import FAMILIES, Place, make_recipe, train

GOAL, BATCH, VAL = 0.80, 128, "0.04"
SHORT = ("augment.shift=0.0625",)  # what a short training changes in the recipe


def write(path: Path, text: str) -> None:
    """Complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name("." + path.name)
    partial.write_text(text)
    partial.replace(path)


@dataclass
class Peer:
    """timm's side: everything that an epoch changes, kept in a folder."""

    model: nn.Module
    optimizer: Any
    folder: Path
    curve: list[list[float]]

    def save(self) -> None:
        """Weights and momenta, then the curve that says how many epochs they have seen."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(self.curve)
        momenta = {
            f"momentum/{i}": self.optimizer.state[p]["momentum_buffer"].contiguous()
            for i, p in enumerate(self.parameters())
        }
        weights = {f"model/{n}": t.contiguous() for n, t in self.model.state_dict().items()}
        save_file(weights | momenta, self.folder / f"{number}.safetensors")
        write(self.folder / "curve.json", json.dumps(self.curve))
        (self.folder / f"{number - 1}.safetensors").unlink(missing_ok=True)

    def parameters(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def restore(self) -> None:
        """Go on after the last epoch that was saved."""
        file = self.folder / "curve.json"
        self.curve = json.loads(file.read_text()) if file.exists() else []
        if not self.curve:
            return
        tensors = load_file(self.folder / f"{len(self.curve)}.safetensors")
        self.model.load_state_dict({n[6:]: t for n, t in tensors.items() if n.startswith("model/")})
        for i, p in enumerate(self.parameters()):
            self.optimizer.state[p]["momentum_buffer"] = tensors[f"momentum/{i}"]


def peer(place: Place, epochs: int, lr: float, seed: int = 0) -> list[list[float]]:
    """timm's loop, epoch by epoch, until the goal, the last epoch or the end of the time."""
    importlib.import_module("tests.peers")  # declares what timm's import of torchvision misses beside the CPU build
    optim, scheduling = (importlib.import_module(f"timm.{name}") for name in ("optim", "scheduler"))
    split = sl.training.split_data(place.data, val=VAL, num=place.num)
    model = sl.build(FAMILIES["bit"].model, classes=len(split.train.classes), seed=seed)
    optimizer = optim.create_optimizer_v2(model, opt="sgd", lr=lr, momentum=0.9, weight_decay=5e-4)
    warmup = {"warmup_epochs": min(2, epochs - 1), "warmup_lr": 1e-5}
    scheduler, _ = scheduling.create_scheduler_v2(optimizer, sched="cosine", num_epochs=epochs, **warmup)
    side = Peer(model, optimizer, place.runs / f"timm-{epochs}-{lr:g}", [])
    side.restore()
    loader = make_loader(split.train, model)
    while len(side.curve) < epochs and not reached(side.curve) and time.monotonic() < place.until:
        start, epoch = time.process_time(), len(side.curve)
        torch.manual_seed(seed + epoch)
        scheduler.step(epoch)
        train_epoch(model, loader, optimizer)
        accuracy = score(model, split.val)
        spent = side.curve[-1][0] if side.curve else 0.0
        side.curve.append([spent + (time.process_time() - start) / 60, accuracy])
        side.save()
        print(f"timm, epoch {epoch + 1}: {accuracy:.2%} after {side.curve[-1][0]:.1f} core-minutes", flush=True)
    return side.curve


def train_epoch(model: nn.Module, loader: Any, optimizer: Any) -> None:
    model.train()
    for images, labels in loader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


@torch.inference_mode()
def score(model: Any, data: Any) -> float:
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in data.batches(model.image, batch=500))
    return right / len(data)


def make_loader(data: Any, model: Any) -> Any:
    """timm's loader in this process, so that its time is counted."""
    library = importlib.import_module("timm.data")

    class Source(torch.utils.data.Dataset):
        transform: Any = None

        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            pixels, label = data[index]
            return self.transform(Image.fromarray(pixels)), label

    how = {"is_training": True, "use_prefetcher": False, "num_workers": 0, "persistent_workers": False}
    how |= {"train_crop_mode": "rkrc", "hflip": 0.5, "color_jitter": 0.0, "interpolation": "bilinear"}
    size = tuple(model.image.size)
    return library.create_loader(Source(), (3, *size), BATCH, mean=model.image.mean, std=model.image.std, **how)


def reached(curve: list[list[float]]) -> float | None:
    """Core-minutes at the first look that has reached the goal."""
    return next((minutes for minutes, accuracy in curve if accuracy >= GOAL), None)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=float, default=3.6, help="of ours")
    parser.add_argument("--peer-epochs", type=int, default=30)
    parser.add_argument("--peer-lr", type=float, default=0.1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="by the clock, then stop")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--num", type=int, help="of scenes")
    parser.add_argument("--runs", type=Path, default=Path("runs/eighty"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * asked.minutes
    place = Place(data=asked.data, num=asked.num, runs=asked.runs, results=asked.results, until=until)
    try:
        out = place.runs / f"ours-{asked.epochs:g}"
        recipe = make_recipe("bit", 0, asked.epochs, SHORT)
        _, ours = train(FAMILIES["bit"], recipe, place, val=VAL, looks=math.ceil(asked.epochs), out=out)
    except sl.training.Stopped as stopped:
        print(stopped)
        return
    curves = {"ours": ours, "timm": peer(place, asked.peer_epochs, asked.peer_lr)}
    times = {who: reached(curve) for who, curve in curves.items()}
    settings = {
        "epochs": asked.epochs,
        "ours": SHORT,
        "peer_epochs": asked.peer_epochs,
        "peer_lr": asked.peer_lr,
        "goal": GOAL,
    }
    found = {**settings, "core_minutes": times, "curves": curves}
    write(place.results / "eighty.json", json.dumps(found, indent=1) + "\n")
    if times["ours"] and times["timm"]:
        print(f"ours {times['ours']:.1f}, timm {times['timm']:.1f} core-minutes: {times['timm'] / times['ours']:.2f}x")


if __name__ == "__main__":
    main()
