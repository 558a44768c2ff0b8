"""What one browser tab looks at: an image, what was changed about it and the models, and the passes that are kept."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from sightline.app import maps
from sightline.app.edits import check_edits, edit_image
from sightline.app.gallery import Gallery, open_upload
from sightline.app.networks import Network, Ready
from sightline.app.passes import Pass, Spot, places, run, visible
from sightline.app.protocol import Message, pack, quantize, spot_of, whole, words
from sightline.app.writing import Look, page_of, python_of
from sightline.observe.images import thumbnails
from sightline.observe.switches import switch_off
from sightline.weights.names import class_names

TOP = 5  # classes in an answer
WHICH = ("plain", "changed")
SHOWN = 384  # side of the image that the page shows


@dataclass
class Setting:
    """What is changed about one model."""

    off: tuple[str, ...] = ()
    size: int | None = None
    checkpoint: int | None = None


@dataclass(eq=False)
class Session:
    """One tab. `handle` answers a message with frames; nothing that it keeps outlives `close`."""

    networks: list[Network]
    gallery: Gallery
    nearest: list[Any] = field(default_factory=list)
    image: Image.Image | None = None
    name: str = ""
    python: str = ""  # the image, as it is copied
    edits: list[dict[str, Any]] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    passes: dict[tuple[int, str], Pass] = field(default_factory=dict)
    wanted: dict[tuple[int, int], Any] = field(default_factory=dict)  # the view that was asked for last, by model
    version: int = 0  # of image and changes: what was asked for an older one is not computed any more

    def __post_init__(self) -> None:
        self.settings = [Setting() for _ in self.networks]

    def close(self) -> None:
        """Let go of the image and of everything computed from it."""
        self.version += 1
        self.image, self.edits = None, []
        self.passes.clear()

    def handle(self, message: Message) -> Iterator[bytes]:
        """Frames that answer a message."""
        match message["do"]:
            case "hello":
                yield pack({"do": "hello", **self.about()})
            case "thumbnail":
                yield self.thumbnail(whole(message, "number", len(self.gallery.offered)))
            case "pick":
                number = whole(message, "number", len(self.gallery.offered))
                self.take(*self.gallery.open(number), python=self.gallery.python(number))
                yield from self.answers()
            case "change":
                yield from self.change(message)
            case "place":
                yield self.place(message)
            case "map":
                yield self.map(message)
            case "save":
                yield pack({"do": "save", "name": "sightline.html", "html": page_of(self.looks(), self.name)})
            case "python":
                yield pack({"do": "python", "text": python_of(self.looks(), self.python, self.edits)})
            case other:
                raise ValueError(f"There is nothing to do for {other[:40]!r}.")

    def note(self, message: Message) -> None:
        """A message has arrived, and waits for its turn."""
        if message["do"] == "map":
            self.wanted[self.key(message)] = message.get("view")

    def key(self, message: Message) -> tuple[int, int]:
        return whole(message, "model", len(self.networks)), whole(message, "changed", 2)

    def upload(self, data: bytes) -> Iterator[bytes]:
        """Frames that answer an image."""
        self.take("your image", open_upload(data))
        yield from self.answers()

    def take(self, name: str, image: Image.Image, *, python: str = "'YOUR IMAGE'") -> None:
        """Look at another image; changes to the models stay, edits of the old image go."""
        self.name, self.image, self.python, self.edits = name, image, python, []
        self.passes.clear()
        self.version += 1

    def about(self) -> dict[str, Any]:
        """What the page needs to know before the first image."""
        offered = [(o.name, bool(o.path)) for o in self.gallery.offered]
        return {"models": [n.about() for n in self.networks], "offered": offered, "nearest": self.nearest}

    def thumbnail(self, number: int) -> bytes:
        small = np.asarray(self.gallery.thumbnail(number))
        return pack({"do": "thumbnail", "number": number}, {"image": small})

    # the answers

    def answers(self) -> Iterator[bytes]:
        """Of every model: untouched, and as it is changed."""
        version = self.version
        for which in WHICH:
            for model in range(len(self.networks)):
                if version != self.version:
                    return
                if which == "plain" or self.is_changed(model):
                    yield self.answer(model, which)
                else:
                    yield self.untouched(model)

    def untouched(self, model: int) -> bytes:
        """Nothing about this model is changed."""
        return pack({"do": "untouched", "model": model, "version": self.version})

    def answer(self, model: int, which: str) -> bytes:
        """The classes and the attention of every head; maps at a place are asked for separately."""
        p = self.compute(model, which)
        s, plain = p.observed, self.passes[model, "plain"]
        said = p.answer(TOP) if s.classes else None
        header = {
            "do": "answer",
            "model": model,
            "which": which,
            "version": self.version,
            "name": self.name,
            "top": [] if said is None else [list(row) for row in zip(said.names, said.indices, said.probabilities)],
            # of the same classes in the untouched model, for the difference
            "before": [] if said is None else [plain.probability(i) for i in said.indices],
            # and what became of the untouched model's own answer
            "was": [] if said is None else self.was(plain, p),
            "grids": [p.grid(i) for i in range(len(p.stream))],
            "places": [place.name for place in places(s)],
            "grid": s.grid,
            "prefix": p.prefix,
            "gone": p.gone,
            "off": p.off,
            "size": s.image.size,
            "view": visible(self.shown(which).size, s.image),
            "image": self.shown(which).size,
            "outliers": [np.flatnonzero(o).tolist() for o in p.outliers()] if p.attention is not None else [],
        }
        arrays = {"pixels": thumbnails(p.pixels, s.image, SHOWN)[0]}
        return pack(header, arrays | self.attention(p, None))

    def was(self, plain: Pass, p: Pass) -> list[Any]:
        """The untouched model's answer: its name, and its probability before and now."""
        first = plain.answer(1)
        return [first.name, first.probability, p.probability(first.indices[0])]

    def shown(self, which: str) -> Image.Image:
        """The image as it was given, or as it was edited."""
        if self.image is None:
            raise ValueError("There is no image yet: drop one on the page.")
        return edit_image(self.image, self.edits) if which == "changed" and self.edits else self.image

    def ready(self, model: int, which: str) -> Ready:
        """The model in question; the untouched one has the size that it came with."""
        setting, network = self.settings[model], self.networks[model]
        return network.at(setting.checkpoint, setting.size if which == "changed" else None)

    def compute(self, model: int, which: str) -> Pass:
        """The pass of one model, computed once."""
        key = (model, which)
        if key not in self.passes:
            off = self.settings[model].off if which == "changed" else ()
            self.passes[key] = run(self.ready(model, which).observed, self.shown(which), off)
        return self.passes[key]

    def is_changed(self, model: int) -> bool:
        setting = self.settings[model]
        return bool(self.edits or setting.off or setting.size)

    # changes

    def change(self, message: Message) -> Iterator[bytes]:
        """Switches, size and checkpoint of one model, and edits of the image; what did not change is kept."""
        model = whole(message, "model", len(self.networks))
        network, setting = self.networks[model], self.settings[model]
        made = Setting(tuple(words(message, "off")), self.size(message, network), self.checkpoint(message, network))
        with switch_off(network.at(made.checkpoint, made.size).observed, *made.off):
            pass  # refuse what cannot be switched off before anything is kept
        edits = message.get("edits", self.edits)
        check_edits(edits)
        if made.checkpoint != setting.checkpoint:
            self.passes.pop((model, "plain"), None)
        if edits != self.edits:
            self.passes = {key: p for key, p in self.passes.items() if key[1] == "plain"}
        self.passes.pop((model, "changed"), None)
        self.settings[model], self.edits = made, list(edits)
        self.version += 1
        if self.image is not None:
            yield from self.renew()
        yield pack({"do": "changed", "id": message.get("id")})

    def renew(self) -> Iterator[bytes]:
        """The answers that the last change made out of date; a model that is untouched again says so."""
        version = self.version
        for model in range(len(self.networks)):
            for which in WHICH:
                if version != self.version:
                    return
                wanted = which == "plain" or self.is_changed(model)
                if wanted and (model, which) not in self.passes:
                    yield self.answer(model, which)
            if not self.is_changed(model):
                yield self.untouched(model)

    def size(self, message: Message, network: Network) -> int | None:
        size = message.get("size") or None
        if size is not None and (type(size) is not int or size not in network.sizes()):
            raise ValueError(f"{network.name} is shown at {', '.join(map(str, network.sizes()))} pixels; got {size!r}.")
        return None if size == network.own.image.size[0] else size

    def checkpoint(self, message: Message, network: Network) -> int | None:
        if message.get("checkpoint") is None or not network.checkpoints:
            return None
        number = whole(message, "checkpoint", len(network.checkpoints))
        return None if number == network.first else number

    # maps

    def pass_of(self, message: Message) -> tuple[Pass, str, dict[str, Any]]:
        """The pass that a message is about, and what an answer to it begins with."""
        model, which = whole(message, "model", len(self.networks)), WHICH[whole(message, "changed", 2)]
        if which == "changed" and (model, which) not in self.passes:
            which = "plain"  # untouched, or not yet computed
        p = self.compute(model, which)
        return p, which, {"model": model, "which": which, "version": self.version, "id": message.get("id")}

    def attention(self, p: Pass, spot: Spot | None) -> dict[str, np.ndarray]:
        """Of every head of every block, from and to a place."""
        if p.attention is None:
            return {}
        found: dict[str, np.ndarray] = {}
        for name, maps_ in (("from", p.from_spot(spot)), ("to", p.to_spot(spot))):
            found[name], found[f"{name}Peaks"] = quantize(maps_)
            found[f"{name}Mean"], found[f"{name}MeanPeaks"] = quantize(maps_.mean(1))
        return found

    def place(self, message: Message) -> bytes:
        """Everything that is known of one place without another pass: attention, similarity at every depth."""
        if (whole(message, "model", len(self.networks)), "plain") not in self.passes:
            raise ValueError("That is still being computed.")
        p, _, header = self.pass_of(message)
        spot = spot_of(message)
        arrays = self.attention(p, spot)
        if spot is not None:
            for depth, cosines in enumerate(p.similarity(spot)):
                arrays[f"similarity{depth}"] = np.round(np.clip(cosines, 0, 1) * 255).astype(np.uint8)
        return pack({"do": "place", "x": message.get("x"), "y": message.get("y"), **header}, arrays)

    def map(self, message: Message) -> bytes:
        """One kind of map; the page asks for it when it is looked at."""
        view = message.get("view")
        if self.wanted.get(self.key(message), view) != view:  # nobody looks at it any more
            which = WHICH[self.key(message)[1]]
            return pack(
                {"do": "skipped", "id": message.get("id"), "model": message["model"], "which": which, "view": view}
            )
        p, which, header = self.pass_of(message)
        header |= {"do": "map", "view": view}
        target = self.target(message, p)
        match view:
            case "rollout" | "identity":
                if p.attention is None:
                    raise ValueError(f"{p.observed.name} has no attention to roll out.")
                return one_map(header, p.rollout(identity=view == "identity"))
            case "gradient_rollout" | "grad_cam":
                return one_map(header | {"target": target}, maps.attribution(p, view, target))
            case "field":
                return self.field(message, p, header)
            case "lens":
                return self.lens(p, which, header, target)
            case "features":
                found = maps.colors(p)
                arrays = {f"colors{i}": cells for i, (_, cells) in enumerate(found)}
                return pack(header | {"grids": [grid for grid, _ in found]}, arrays)
            case "norms":
                rows = {f"norm{i}": quantize(n) for i, n in enumerate(p.norms())}
                peaks = [float(peak) for _, peak in rows.values()]
                return pack(header | {"peaks": peaks}, {name: row for name, (row, _) in rows.items()})
        raise ValueError(f"There is no view {str(view)[:40]!r}.")

    def target(self, message: Message, p: Pass) -> int:
        """The class that a map is about: by default the untouched model's answer, so that both are comparable."""
        if not p.observed.classes:
            return 0
        if message.get("target") is not None:
            return whole(message, "target", p.observed.classes)
        return int(self.compute(message.get("model", 0), "plain").logits.argmax())

    def field(self, message: Message, p: Pass, header: dict[str, Any]) -> bytes:
        spot, depth = spot_of(message), whole(message, "depth", len(p.stream))
        found = maps.field(p, depth, spot or (0.5, 0.5))
        radii = found.radii[0].tolist()
        return one_map(
            header | {"depth": depth, "radii": radii, "own": float(found.own[0]), "center": found.centers[0].tolist()},
            found.maps[0],
        )

    def lens(self, p: Pass, which: str, header: dict[str, Any], target: int) -> bytes:
        found = maps.lens(p, self.ready(header["model"], which).head, target)
        names, _ = class_names(p.observed.model, p.observed.classes)
        used = sorted({int(i) for i in np.unique(found.top) if i >= 0} | {target})
        said = {
            "places": found.places,
            "grid": found.grid,
            "target": target,
            "answer": found.answer.tolist(),
            "classes": {str(i): names[i] for i in used},
        }
        planes = {name: quantize(getattr(found, name)) for name in ("probability", "rank")}
        arrays = {name: rows for name, (rows, _) in planes.items()}
        peaks = {f"{name}Peaks": top for name, (_, top) in planes.items()}
        return pack(header | said, arrays | peaks | {"top": np.maximum(found.top, 0).astype(np.int32)})

    def looks(self) -> list[Look]:
        """Every model as it is shown now, to be written down."""
        return [self.look(model) for model in range(len(self.networks))]

    def look(self, model: int) -> Look:
        which = "changed" if self.is_changed(model) else "plain"
        setting, network, p = self.settings[model], self.networks[model], self.compute(model, which)
        return Look(
            observed=p.observed,
            image=self.shown(which),
            off=p.off,
            source=network.source,
            size=setting.size,
            checkpoint="" if setting.checkpoint is None else network.checkpoints[setting.checkpoint],
            answer=p.answer(1) if p.observed.classes else None,
        )


def one_map(header: dict[str, Any], values: np.ndarray) -> bytes:
    """A single map."""
    rows, peak = quantize(values.reshape(-1))
    made = {**header, "peak": float(peak), "mass": float(np.nansum(values))}
    return pack(made, {"map": rows.reshape(values.shape)})
