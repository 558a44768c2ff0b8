"""Every type of file that Sightline reads: a few valid ones, how they are damaged, and how they are opened."""

import io
import json
import random
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import sightline as sl
from sightline.archives import map_array, save_array
from sightline.report.collect import collect
from sightline.studies.engine.running import unfinished
from sightline.studies.engine.store import Store, with_needs
from sightline.weights.conversion import to_format
from tests.attack import mutations, small_study

SPEC = sl.ImageSpec(size=(32, 32))
PIXELS = np.random.default_rng(0).integers(0, 256, (48, 40, 4), dtype=np.uint8)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One type of file. `make` writes valid ones into a folder and names those that are attacked; `open` reads the
    folder as a user would, `file` being the damaged one."""

    group: str
    count: int  # cases of the large run
    make: Callable[[Path], list[Path]]
    open: Callable[[Path, Path], object]  # folder, file
    mutate: mutations.Mutator = mutations.raw


def image_files(kind: str, modes: tuple[str, ...], **options: Any) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        (folder / "a").mkdir()
        files = []
        for number, mode in enumerate(modes):
            image = Image.fromarray(PIXELS).convert("RGB" if mode in ("P", "1", "L", "CMYK", "I;16") else mode)
            image = Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257) if mode == "I;16" else image.convert(mode)
            exif = Image.Exif()
            exif[0x0112] = number % 8 + 1
            more = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP", "TIFF") else {}
            files.append(folder / "a" / f"{number}.{kind.lower()}")
            image.save(files[-1], kind, **more, **options)
        return files

    return make


def open_image(folder: Path, file: Path) -> object:
    """As evaluation, training and `data check` read it: one of them by the file's size."""
    match file.stat().st_size % 3:
        case 0:
            return sl.open_images(file, SPEC)
        case 1:
            batch = sl.Folder(folder).batches(SPEC, batch=8, train=sl.data.Augment())
            return [images.shape for images, _ in batch]
    return sl.data.check(sl.Folder(folder)).counts()


def tiny() -> Any:
    config = sl.models.ViTConfig(width=64, depth=1, heads=1, mlp_width=64, patch=8, size=16, classes=3)
    return sl.build(config, seed=1)


def weights(**formats: str) -> Callable[[Path], list[Path]]:
    return lambda folder: [
        Path(sl.save(tiny(), folder / name.replace("_", "."), to=to)) for name, to in formats.items()
    ]


def npz_weights(folder: Path) -> list[Path]:
    arrays = {k: v.numpy() for k, v in to_format(tiny().state_dict(), tiny().config, "npz").items()}
    np.savez_compressed(folder / "packed.npz", **arrays)
    return [Path(sl.save(tiny(), folder / "plain.npz", to="npz")), folder / "packed.npz"]


def pth_weights(folder: Path) -> list[Path]:
    state = to_format(tiny().state_dict(), tiny().config, "timm")
    torch.save({"model": state, "epoch": 3}, folder / "new.pth")
    torch.save(state, folder / "old.pth", _use_new_zipfile_serialization=False)
    return [folder / "new.pth", folder / "old.pth"]


def pickle_in_zip(data: bytes, chance: random.Random) -> bytes:
    return mutations.zipped(mutations.raw)(data, chance) if data[:2] == b"PK" else mutations.raw(data, chance)


def result(folder: Path) -> list[Path]:
    made = sl.attention_distance(tiny(), [np.zeros((16, 16, 3), np.uint8)])
    return [made.save(folder / "distance.npz")]


def run_folder(*names: str) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        data = sl.dataset("scenes/shape", num=8, size=32)
        recipe = sl.recipes.get("laptop_vit", model="vit-nano4", data=None, num_images=8, image_area=1024)
        recipe = recipe.change(["batch=4", "epochs=1"])
        sl.fit(sl.build("vit-nano4", classes=len(data.classes)), data, recipe, out=folder / "run")
        return [folder / "run" / name for name in names]

    return make


def open_run(folder: Path, file: Path) -> object:
    summaries = sl.training.list_runs(folder)  # one bad run never breaks the table
    run = sl.Run(folder / "run")
    return summaries, run.about, run.rows(), run.summary()


def open_state(folder: Path, file: Path) -> object:
    from sightline.training.run.checkpoint import read_facts

    return read_facts(folder / "run" / "state")


def shards(name: str) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        sl.data.shard(sl.dataset("scenes/shape", num=12, size=32), folder / "shards", per_shard=6)
        return [folder / "shards" / name]

    return make


def open_shards(folder: Path, file: Path) -> object:
    data = sl.data.Shards(folder / "shards")
    return [images.shape for images, _ in data.batches(SPEC, batch=8)] if len(data) else None


def features(folder: Path) -> list[Path]:
    table = sl.evals.FeatureTable.of(np.eye(6, 8, dtype=np.float32), [0, 0, 1, 1, 2, 2], classes=("a", "b", "c"))
    table.save(folder / "features.safetensors")
    return [folder / "features.safetensors"]


def open_features(folder: Path, file: Path) -> object:
    table = sl.evals.FeatureTable.read(file)
    return [float(v.sum()) for v in table.layers.values()], table.labels.sum(), table.classes


def hub_folder(folder: Path) -> list[Path]:
    sl.save(tiny(), folder / "model.safetensors", to="hf", probes=False)
    (folder / "config.json").write_text(
        '{"num_attention_heads": 1, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "problem_type": null,'
        '"id2label": {"0": "a", "1": "b", "2": "c"}, "global_padding": null, "layer_type": "preactivation",'
        '"pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "crop_pct": 0.9, '
        '"interpolation": "bicubic"}}'
    )
    (folder / "preprocessor_config.json").write_text(
        '{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "size": {"height": 16, "width": 16},'
        '"do_center_crop": true, "crop_size": {"height": 14, "width": 14}, "resample": 3}'
    )
    return [folder / "config.json", folder / "preprocessor_config.json"]


def manifest(suffix: str) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        for name in ("a.png", "b.png", "c.png"):
            Image.fromarray(PIXELS[..., :3]).save(folder / name)
        rows = [("a.png", 0, "train"), ("b.png", 1, "train"), ("c.png", 2, "train")]
        csv = "path,label,split\n" + "".join(f"{p},{n},{s}\n" for p, n, s in rows)
        jsonl = "".join(f'{{"path": "{p}", "label": {n}, "split": "{s}"}}\n' for p, n, s in rows)
        (folder / f"list.{suffix}").write_text(csv if suffix == "csv" else jsonl)
        return [folder / f"list.{suffix}"]

    return make


def open_manifest(folder: Path, file: Path) -> object:
    data = sl.dataset(file, split="train")
    return data.counts(), data[0][0].shape


def data_npz(folder: Path) -> list[Path]:
    labels = np.array([0, 1, 2, 1])
    np.savez(folder / "plain.npz", images=np.zeros((4, 8, 8, 3), np.uint8), labels=labels)
    names = np.array(["a", "b", "c"])
    np.savez_compressed(folder / "packed.npz", x_train=np.zeros((4, 8, 8), np.uint8), y_train=labels, classes=names)
    return [folder / "plain.npz", folder / "packed.npz"]


def open_npz(folder: Path, file: Path) -> object:
    data = sl.dataset(file, split="train" if file.name == "packed.npz" else None)
    return data.counts(), data[0][0].shape


def tar_shard(folder: Path) -> list[Path]:
    with tarfile.open(folder / "0.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(3):
            raw = io.BytesIO()
            Image.fromarray(PIXELS[..., :3]).save(raw, "PNG")
            for suffix, body in (("png", raw.getvalue()), ("json", b'{"label": 1}'), ("cls", str(number).encode())):
                info = tarfile.TarInfo(f"{'x' * 120 * (number == 2)}{number}.{suffix}")
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
    return [folder / "0.tar"]


def open_tar(folder: Path, file: Path) -> object:
    data = sl.dataset(file)
    return [images.shape for images, _ in data.batches(SPEC, batch=8)] if len(data) else None


def study(*patterns: str) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        small_study.run_here(folder / "out")
        return sorted(path for pattern in patterns for path in (folder / "out").glob(pattern))

    return make


def without_checksum(data: bytes, chance: random.Random) -> bytes:
    """Half of the files are forged: they have no checksum that could differ."""
    held = json.loads(data)
    del held["checksum"]
    return mutations.text_json(json.dumps(held).encode() if chance.random() < 0.5 else data, chance)


def open_results(folder: Path, file: Path) -> object:
    with small_study.known():
        return sl.report.write_atlas(folder / "out" / "results").stat().st_size


def open_store(folder: Path, file: Path) -> object:
    store = Store(folder / "out")
    tasks = with_needs(list(small_study.SMALL.plan((0,))[0].values()))
    with small_study.known():
        status = sl.studies.studies_status(store.path)
        try:
            return status, unfinished(store, tasks, lambda text: None)
        finally:
            for path in store.path.rglob("*.damaged"):
                path.unlink()


def look_folder(folder: Path) -> list[Path]:
    data = sl.dataset("scenes/shape", num=4, size=16)
    sl.look(tiny(), data, folder / "look", only=["patch-filters"], n=4)
    return [folder / "look" / "summary.json", folder / "look" / "patch-filters.npz"]


def open_look(folder: Path, file: Path) -> object:
    return collect(folder / "look").notices


def one_array(folder: Path) -> list[Path]:
    save_array(folder / "a.npy", np.arange(600, dtype=np.int64).reshape(20, 30))
    np.save(folder / "b.npy", np.asfortranarray(np.ones((7, 5), np.float32)))
    return [folder / "a.npy", folder / "b.npy"]


def zoo_file(folder: Path) -> list[Path]:
    (folder / "zoo.json").write_text(
        '{"vit-nano4.mine": {"name": "vit-nano4.mine", "source": "x.npz", "sha256": null, "license": null, '
        '"classes": 10, "size": null, "image": {"mean": [0.1, 0.2, 0.3]}, "hints": {}, "about": ""}}'
    )
    return [folder / "zoo.json"]


def open_zoo(folder: Path, file: Path) -> object:
    import os

    os.environ["SIGHTLINE_CACHE"] = str(folder)
    return [w.name for w in sl.weights.zoo()]


ALL_MODES = ("RGB", "L", "P", "1")
zipped_raw, zipped_json = mutations.zipped(mutations.raw), mutations.zipped(mutations.text_json)
TARGETS: dict[str, Target] = {
    "image .jpeg": Target(
        group="images", count=3000, make=image_files("JPEG", ("RGB", "L", "CMYK")), open=open_image
    ),
    "image .jpeg, progressive": Target(
        group="images", count=1000, make=image_files("JPEG", ("RGB", "L"), progressive=True), open=open_image
    ),
    "image .png": Target(
        group="images", count=3000, make=image_files("PNG", (*ALL_MODES, "RGBA", "LA", "I;16")), open=open_image,
        mutate=mutations.png,
    ),
    "image .webp": Target(group="images", count=1000, make=image_files("WEBP", ("RGB", "RGBA")), open=open_image),
    "image .gif": Target(group="images", count=500, make=image_files("GIF", ALL_MODES), open=open_image),
    "image .bmp": Target(group="images", count=500, make=image_files("BMP", ALL_MODES), open=open_image),
    "image .tiff": Target(
        group="images", count=500, make=image_files("TIFF", (*ALL_MODES, "CMYK", "F", "I;16")), open=open_image
    ),
    "image .ppm": Target(group="images", count=500, make=image_files("PPM", ("RGB", "L", "1")), open=open_image),
    "weights .safetensors": Target(
        group="weights", count=2000, make=weights(own_safetensors="sightline", timm_safetensors="timm"),
        open=lambda folder, file: sl.load(file), mutate=mutations.headed_json,
    ),
    "weights .npz": Target(
        group="weights", count=2000, make=npz_weights, open=lambda folder, file: sl.load(file), mutate=zipped_raw
    ),
    "weights .pth": Target(
        group="weights", count=2000, make=pth_weights, open=lambda folder, file: sl.load(file), mutate=pickle_in_zip
    ),
    "hub config": Target(
        group="configs", count=1000, make=hub_folder, open=lambda folder, file: sl.load(folder),
        mutate=mutations.text_json,
    ),
    "zoo.json": Target(group="configs", count=1000, make=zoo_file, open=open_zoo, mutate=mutations.text_json),
    "labels .csv": Target(
        group="data", count=1000, make=manifest("csv"), open=open_manifest, mutate=mutations.table
    ),
    "labels .jsonl": Target(
        group="data", count=1000, make=manifest("jsonl"), open=open_manifest, mutate=mutations.lines_json
    ),
    "data .npz": Target(group="data", count=1000, make=data_npz, open=open_npz, mutate=zipped_raw),
    "shard .tar": Target(group="data", count=1000, make=tar_shard, open=open_tar),
    "shard index": Target(
        group="own", count=1000, make=shards("index.npz"), open=open_shards, mutate=zipped_raw
    ),
    "shard classes": Target(
        group="own", count=1000, make=shards("classes.json"), open=open_shards, mutate=mutations.text_json
    ),
    "result .npz": Target(
        group="own", count=1000, make=result, open=lambda folder, file: sl.Result.load(file).summary(),
        mutate=zipped_raw,
    ),
    "features": Target(
        group="own", count=1000, make=features, open=open_features, mutate=mutations.headed_json
    ),
    "run.json": Target(
        group="own", count=1000, make=run_folder("run.json"), open=open_run, mutate=mutations.text_json
    ),
    "log.jsonl": Target(
        group="own", count=1000, make=run_folder("log.jsonl"), open=open_run, mutate=mutations.lines_json
    ),
    "study results": Target(
        group="own", count=1000, make=study("results/*.json"), open=open_results, mutate=without_checksum
    ),
    "study store": Target(
        group="own", count=1000, open=open_store,
        make=study("*/*/result.json", "*/*/spec.json", "*/*/spent.json", "started/*", "*.json"),
        mutate=without_checksum,
    ),
    "folder of look": Target(
        group="own", count=1000, make=look_folder, open=open_look, mutate=mutations.text_json
    ),
    "array .npy": Target(
        group="own", count=1000, make=one_array, open=lambda folder, file: map_array(file).sum()
    ),
    "training state": Target(
        group="own", count=1000, make=run_folder("state/state.safetensors"), open=open_state,
        mutate=mutations.headed_json,
    ),
}  # fmt: skip
