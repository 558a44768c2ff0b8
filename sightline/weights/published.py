"""Published weights by name: source, checksum, license and preprocessing, and how they are downloaded."""

import difflib
import fnmatch
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sightline.data.download import download
from sightline.data.errors import FetchError, UnreachableError
from sightline.files import atomic
from sightline.models.variants import Config, config
from sightline.spec import IMAGENET_MEAN, IMAGENET_STD, ImageSpec
from sightline.untrusted import read_json
from sightline.weights.containers.files import open_file
from sightline.weights.containers.header import from_json, from_text
from sightline.weights.hub import download_repository
from sightline.weights.report import WeightsError

GOOGLE, META, HUB = "https://storage.googleapis.com", "https://dl.fbaipublicfiles.com", "hf:"
TIMM = "https://github.com/rwightman/pytorch-image-models/releases/download"
IMAGENET = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "crop": 0.875, "fit": "crop", "interpolation": "bicubic"}
WHOLE = {**IMAGENET, "crop": 1.0}
SAVED = "zoo.json"  # the user's own entries, in the cache folder
FINE = "--imagenet2012-steps_20k-lr_{}-res_{}.npz"


@dataclass(frozen=True, kw_only=True)
class Weights:
    """One entry of the zoo. `source` is a URL, a path, or `hf:owner/repository`.

    >>> sl.weights.zoo("vit-b16.augreg-i21k")[0].license
    'Apache-2.0'
    """

    name: str  # variant, dot, tag
    source: str
    sha256: str | None = None  # whole or the beginning, as known; None: not published. Of a repository: its weights
    license: str | None = None
    classes: int = 1000
    size: int | None = None  # None: the variant's own
    image: dict[str, Any] = field(default_factory=dict)  # fields of ImageSpec that differ from the paper
    hints: dict[str, Any] = field(default_factory=dict)  # what shapes cannot tell: heads, gelu, norm_eps
    about: str = ""
    facts: dict[str, str] = field(default_factory=dict)  # of a shipped model: license, data, command, accuracy

    @property
    def config(self) -> Config:
        """The configuration of the variant; the file itself says the rest."""
        changes = {"classes": self.classes} | ({"size": self.size} if self.size else {})
        return config(self.name.split(".")[0], **changes)

    @property
    def spec(self) -> ImageSpec:
        """The preprocessing of the images."""
        return ImageSpec(**{**vars(self.config.image), **self.image})

    def fetch(self) -> Path:
        """The file or folder on disk, downloaded first if necessary."""
        if not self.source.startswith(HUB) and "://" not in self.source:
            path = Path(self.source).expanduser()
            if not path.exists():
                raise WeightsError(f"According to the zoo, {self.name} is at {path}, but nothing is there.")
            return path
        try:
            return self._download()
        except UnreachableError as error:
            raise WeightsError(
                f"{self.name} is not on this machine. {error} Download {self.source} elsewhere and use the "
                "local file: sl.load('FILE'), or sightline convert FILE model.safetensors --to sightline."
            ) from error
        except FetchError as error:
            raise WeightsError(str(error)) from error

    def _download(self) -> Path:
        if self.source.startswith(HUB):
            repository, _, revision = self.source.removeprefix(HUB).partition("@")
            return download_repository(repository, revision or None, sha256=self.sha256)
        target = cache_folder() / "weights" / self.name / unquote(Path(urlsplit(self.source).path).name)
        if target.exists():  # its checksum was verified when it was downloaded
            return target
        if self.sha256:
            return download(self.source, target, f"sha256:{self.sha256}")
        return download(self.source, target, check=open_file)  # at least it is a file of weights, and complete


def cache_folder() -> Path:
    """Where downloads are stored: $SIGHTLINE_CACHE, or `sightline` in the user's cache folder."""
    if given := os.environ.get("SIGHTLINE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline"


def _google() -> Iterator[Weights]:
    """ViT and hybrids of the paper (section 4.1), and those of AugReg (Steiner et al. 2021)."""
    original = ("ViT-B_16", "ViT-B_32", "ViT-L_16", "ViT-L_32", "ViT-H_14", "R50+ViT-B_16")
    for file in original:
        name = file.lower().replace("_", "").replace("+", "-")
        url = f"{GOOGLE}/vit_models/imagenet21k/{file.replace('+', '%2B')}.npz"
        yield Weights(name=f"{name}.i21k", source=url, classes=21_843, about="ImageNet-21k; its head is zeroed")
        if file != "ViT-H_14":
            url = url.replace("/imagenet21k/", "/imagenet21k%2Bimagenet2012/")
            yield Weights(name=f"{name}.i21k-i1k", source=url, size=384, about="ImageNet-21k, then ImageNet at 384")
    for name, (before, after) in AUGREG.items():
        file = f"{GOOGLE}/vit_models/augreg/{before}"
        yield Weights(name=f"{name}.augreg-i21k", source=f"{file}.npz", classes=21_843, about="AugReg, ImageNet-21k")
        for size, (other, lr) in after.items():
            tag = "augreg-i21k-i1k" if size == 224 else f"augreg-i21k-i1k-{size}"
            url = f"{GOOGLE}/vit_models/augreg/{other or before}{FINE.format(lr, size)}"
            yield Weights(name=f"{name}.{tag}", source=url, size=size, about=f"AugReg, then ImageNet at {size}")
    for name, file in (("vit-b32", "ViT-B_32"), ("vit-b16", "ViT-B_16")):
        yield Weights(name=f"{name}.sam-i1k", source=f"{GOOGLE}/vit_models/sam/{file}.npz", about="SAM, ImageNet")


_I21K = "{}-i21k-300ep-lr_0.001-aug_{}-wd_{}-do_{}-sd_{}"
# the best pre-training run of each size, and its fine-tuned files: size -> (other pre-training run, learning rate)
AUGREG: dict[str, tuple[str, dict[int, tuple[str, str]]]] = {
    "vit-ti16": (_I21K.format("Ti_16", "none", "0.03", "0.0", "0.0"), {224: ("", "0.03"), 384: ("", "0.03")}),
    "vit-s32": (_I21K.format("S_32", "light1", "0.03", "0.0", "0.0"), {224: ("", "0.03"), 384: ("", "0.03")}),
    "vit-s16": (_I21K.format("S_16", "light1", "0.03", "0.0", "0.0"), {224: ("", "0.03"), 384: ("", "0.03")}),
    "vit-b32": (
        _I21K.format("B_32", "medium1", "0.03", "0.0", "0.0"),
        {224: ("", "0.03"), 384: (_I21K.format("B_32", "light1", "0.1", "0.0", "0.0"), "0.03")},
    ),
    "vit-b16": (_I21K.format("B_16", "medium1", "0.1", "0.0", "0.0"), {224: ("", "0.01"), 384: ("", "0.01")}),
    "vit-b8": (_I21K.format("B_8", "medium1", "0.1", "0.0", "0.0"), {224: ("", "0.01")}),
    "vit-l16": (_I21K.format("L_16", "medium1", "0.1", "0.1", "0.1"), {224: ("", "0.01"), 384: ("", "0.01")}),
    "r-vit-ti16": (_I21K.format("R_Ti_16", "none", "0.03", "0.0", "0.0"), {224: ("", "0.03"), 384: ("", "0.03")}),
    "r26-vit-s32": (
        _I21K.format("R26_S_32", "medium2", "0.03", "0.0", "0.0"),
        {224: (_I21K.format("R26_S_32", "light0", "0.03", "0.1", "0.1"), "0.03"), 384: ("", "0.03")},
    ),
    "r50-vit-l32": (
        _I21K.format("R50_L_32", "medium2", "0.1", "0.0", "0.0"),
        {224: (_I21K.format("R50_L_32", "medium1", "0.1", "0.1", "0.1"), "0.01"), 384: ("", "0.01")},
    ),
}


def _bit() -> Iterator[Weights]:
    """BiT (section 3.3): S is trained on ImageNet, M on ImageNet-21k; the last ones are fine-tuned at 480."""
    for variant in ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4"):
        name, url = f"bit-{variant.lower()}", f"{GOOGLE}/bit_models/BiT-{{}}-{variant}{{}}.npz"
        yield Weights(name=f"{name}.i1k", source=url.format("S", ""), about="BiT-S")
        yield Weights(name=f"{name}.i21k", source=url.format("M", ""), classes=21_843, about="BiT-M")
        fine = url.format("M", "-ILSVRC2012")
        yield Weights(name=f"{name}.i21k-i1k", source=fine, size=480, about="BiT-M, then ImageNet at 480")


def _mixer() -> Iterator[Weights]:
    """MLP-Mixer (Tolstikhin et al. 2021), and those of SAM (Chen et al. 2021); Google publishes no checksums.

    timm has copies of Google's files, fine-tuned ones too, whose names contain the first digits.
    """
    for letter in "BL":
        name, url = f"mixer-{letter.lower()}16", f"{GOOGLE}/mixer_models/{{}}/Mixer-{letter}_16.npz"
        yield Weights(name=f"{name}.i1k", source=url.format("imagenet1k"), about="ImageNet")
        yield Weights(name=f"{name}.i21k", source=url.format("imagenet21k"), classes=21_843, about="ImageNet-21k")
    for patch in (16, 32):
        url = f"{GOOGLE}/mixer_models/sam/Mixer-B_{patch}.npz"
        yield Weights(name=f"mixer-b{patch}.sam-i1k", source=url, about="SAM, ImageNet")
    copies = {"b": ("76587d61", "617b3de2"), "l": ("92f9adc4", "846aa33c")}
    image = {"crop": 0.875, "fit": "crop", "interpolation": "bicubic"}
    for letter, (fine, before) in copies.items():
        for tag, part, sha, classes in (("timm-i21k-i1k", "", fine, 1000), ("timm-i21k", "_in21k", before, 21_843)):
            url = f"{TIMM}/v0.1-vitjx/jx_mixer_{letter}16_224{part}-{sha}.pth"
            about = "ImageNet-21k" + ("" if part else ", then ImageNet") + "; timm's copy"
            yield Weights(
                name=f"mixer-{letter}16.{tag}", source=url, sha256=sha, classes=classes, image=image, about=about
            )


def _meta() -> Iterator[Weights]:
    """DeiT (Touvron et al. 2020) and DINOv2 (Oquab et al. 2023). The file names contain the first checksum digits."""
    deit = {"ti": ("tiny", "a1311bcf", "b40b3cf7"), "s": ("small", "cd65a155", "649709d9")}
    deit["b"] = ("base", "b5f2ef4d", "df68dfff")
    for letter, (word, plain, distilled) in deit.items():
        for tag, middle, sha in (("deit-i1k", "", plain), ("deit-distilled-i1k", "_distilled", distilled)):
            url = f"{META}/deit/deit_{word}{middle}_patch16_224-{sha}.pth"
            yield Weights(name=f"vit-{letter}16.{tag}", source=url, sha256=sha, image=IMAGENET, about="DeiT")
    # no checksums are published beside DINOv2's files; other projects have these on record, three of them a single one
    for letter in "sbl":
        at = f"{META}/dinov2/dinov2_vit{letter}14/dinov2_vit{letter}14"
        for tag, middle in (("dinov2", ""), ("dinov2-reg4", "_reg4")):
            about = "DINOv2" + (", 4 registers" if middle else "")
            yield Weights(
                name=f"vit-{letter}14.{tag}",
                source=f"{at}{middle}_pretrain.pth",
                sha256=DINOV2[f"{letter}{middle}"],
                classes=0,
                size=518,
                image=WHOLE,
                about=about,
            )


DINOV2 = {
    "s": "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9",
    "s_reg4": "f433177089a681826f849f194ece3bb48f4d63fb38d32fc837e3dc7a4e5641fb",
    "b": "0b8b82f85de91b424aded121c7e1dcc2b7bc6d0adeea651bf73a13307fad8c73",
    "b_reg4": "73182a088cf94833c94b1666d1c99e02fe87e2007bff57b564fb6206e25dba71",
    "l": "d5383ea8f4877b2472eb973e0fd72d557c7da5d3611bd527ceeb1d7162cbf428",
    "l_reg4": "36e4deffbaef061a2576705b0c36f93621e2ae20bf6274694821b0b492551b51",
}
# Revisions of repositories. A repository without one here is taken as it is on the day: its revision is not on record.
REVISIONS = {
    "google/vit-base-patch16-224": "3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3",
    "google/vit-base-patch16-384": "2960116e809e2fca84146dbb240289aee7db4827",
    "google/vit-base-patch16-224-in21k": "b4569560a39a0f1af58e3ddaf17facf20ab919b0",
    "facebook/dinov2-small": "ed25f3a31f01632728cabb09d1542f84ab7b0056",
    "facebook/dinov2-base": "f9e44c814b77203eaa57a6bdbbd535f21ede1415",
    "facebook/dinov2-large": "47b73eefe95e8d44ec3623f8890bd894b6ea2d6c",
}
HUB_SHA256 = {  # of model.safetensors at that revision
    "google/vit-base-patch16-224-in21k": "fd4e1169c7aa6c2dbfa8a6448be13b35abc0ee256190857c90009d12c094619b",
    "facebook/dinov2-small": "ae1e99fcefd534ed978cdeb8326f08030c96e28b7a81ffcbc98a857c84d14be1",
    "facebook/dinov2-large": "399fba97a95f22c36834418bc69373364a99af3a1153da1c0fb31db567c92e23",
}


def _repository(name: str, repository: str, **facts: Any) -> Weights:
    """An entry at the revision on record."""
    source = f"{HUB}{repository}@{REVISIONS[repository]}" if repository in REVISIONS else HUB + repository
    return Weights(name=name, source=source, sha256=HUB_SHA256.get(repository), **facts)


def _hub() -> Iterator[Weights]:
    for name, repo, size, classes in (
        ("vit-b16.hf-i21k-i1k", "google/vit-base-patch16-224", 224, 1000),
        ("vit-b16.hf-i21k-i1k-384", "google/vit-base-patch16-384", 384, 1000),
        ("vit-b16.hf-i21k", "google/vit-base-patch16-224-in21k", 224, 0),
        ("vit-l16.hf-i21k-i1k", "google/vit-large-patch16-224", 224, 1000),
        ("vit-h14.hf-i21k", "google/vit-huge-patch14-224-in21k", 224, 0),
        ("bit-r50x1.hf-i1k", "google/bit-50", 448, 1000),
    ):
        yield _repository(name, repo, size=size, classes=classes, about="Hugging Face Hub")
    for letter, word in (("s", "small"), ("b", "base"), ("l", "large")):
        name, repo, about = f"vit-{letter}14.hf-dinov2", f"facebook/dinov2-{word}", "DINOv2, Hugging Face Hub"
        yield _repository(name, repo, size=518, classes=0, about=about, image=IMAGENET)


BUILT_IN = {w.name: replace(w, license="Apache-2.0") for make in (_google, _bit, _mixer, _meta, _hub) for w in make()}
ADDED: dict[str, Weights] = {}


@cache
def shipped() -> dict[str, Weights]:
    """The models of our own that come with the package, by name, each described by the header of its file.

    >>> all(entry.license for entry in sl.weights.shipped().values())
    True
    """
    files = sorted((Path(__file__).parent / "shipped").glob("*.safetensors"))
    return {file.stem: _shipped_entry(file) for file in files}


def _shipped_entry(file: Path) -> Weights:
    head = from_text(open_file(file).header["sightline"])
    about = "; ".join(head.about[key] for key in ("data", "accuracy", "seeds") if key in head.about)
    return Weights(
        name=file.stem,
        source=str(file),
        license=head.about.get("license"),
        classes=head.config.classes,
        size=head.image.size[0],
        about=f"ships with the package: {about}",
        facts={key: text for key, text in head.about.items() if key != "stored"},
    )


def zoo(glob: str = "*") -> list[Weights]:
    """The weights whose names match a glob, published or added by the user.

    >>> [w.name for w in sl.weights.zoo("vit-ti16.*")][:2]
    ['vit-ti16.augreg-i21k', 'vit-ti16.augreg-i21k-i1k']
    """
    return [
        w for w in {**shipped(), **BUILT_IN, **_saved_entries(), **ADDED}.values() if fnmatch.fnmatchcase(w.name, glob)
    ]


def add_weights(weights: Weights, *, keep: bool = False) -> Weights:
    """Add an entry of your own to the zoo, for this process or, with `keep`, for all that share the cache folder.

    >>> mine = sl.weights.add_weights(sl.weights.Weights(name="vit-nano4.mine", source="runs/mine", classes=10))
    >>> sl.weights.zoo("*.mine")[0].source
    'runs/mine'
    """
    if "." not in weights.name:
        raise WeightsError(f"A zoo name is a variant, a dot and a tag, such as vit-b16.mine; got {weights.name!r}.")
    if weights.name in BUILT_IN or weights.name in shipped():
        raise WeightsError(f"{weights.name} is taken by the built-in zoo: use another tag.")
    ADDED[weights.name] = weights
    if keep:
        entries = {name: asdict(entry) for name, entry in {**_saved_entries(), weights.name: weights}.items()}
        with atomic(cache_folder() / SAVED) as partial:
            partial.write_text(json.dumps(entries, indent=1), encoding="utf-8")
    return weights


def _saved_entries() -> dict[str, Weights]:
    """The user's own entries in the cache folder."""
    path = cache_folder() / SAVED
    if not path.exists():
        return {}
    try:
        return {str(name): from_json(Weights, fields) for name, fields in read_json(path).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} is damaged ({error!s:.200}): fix or remove it.") from error


def find(name: str) -> Weights | None:
    """The entry of this name; `hf:owner/repository` does not have to be listed."""
    if name.startswith(HUB):
        return Weights(name=name, source=name)
    return next(iter(w for w in zoo() if w.name == name), None)


def suggestion(name: str) -> str:
    """Similar names, for the error message about an unknown one."""
    known = [w.name for w in zoo()]
    close = (
        difflib.get_close_matches(name, known, n=3, cutoff=0.4) or [n for n in known if n.startswith(f"{name}.")][:3]
    )
    hint = f"Did you mean {', '.join(close)}? " if close else ""
    return hint + "`sightline models --weights` lists the names."
