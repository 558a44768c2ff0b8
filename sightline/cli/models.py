"""Verbs about models: `models` lists them, `show` tells everything about one."""

from __future__ import annotations

from typing import Any

import click

import sightline as sl
from sightline.cli.shell import show as print_table
from sightline.cli.shell import verb
from sightline.cli.weights import zoo_rows


@verb
@click.argument("glob", default="*")
@click.option("--weights", is_flag=True, help="List published weights instead.")
def models(glob: str, weights: bool, as_json: bool) -> None:
    """List the models that match GLOB, such as "vit-*"."""
    if weights:
        print_table(zoo_rows(glob), as_json, title="sl.load(NAME) fetches it once; a local file works as well.")
        return
    rows = [row(name) for name in sl.models.names(glob)]
    if not rows:
        raise ValueError(f"No model matches {glob!r}. Type `sightline models` for all of them.")
    print_table(rows, as_json, title="Any patch size (vit-b8) and any width (bit-r50x2) can be built, too.")


def row(name: str) -> dict[str, Any]:
    c = sl.models.config(name)
    model = sl.build(c, device="meta")
    encoder = c.vit if isinstance(c, sl.models.HybridConfig) else c if isinstance(c, sl.models.ViTConfig) else None
    units = "-".join(map(str, getattr(c, "units", ())))
    return {
        "model": name,
        "size": c.size,
        "tokens": encoder.tokens if encoder else None,
        "depth": "+".join(filter(None, (units, str(encoder.depth) if encoder else ""))),
        "width": encoder.width if encoder else c.width,  # type: ignore[union-attr]
        "heads": encoder.heads if encoder else None,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


@verb
@click.argument("name")
@click.option("--size", help="Image size in pixels: 384, or 384x256 (height x width).")
@click.option("--classes", type=int, help="Number of classes; 0 for features only.")
@click.option("--parts", is_flag=True, help="List every recordable tensor with its module path.")
@click.option("--growth", is_flag=True, help="Show how attention grows as patches shrink to pixels.")
def show(name: str, size: str | None, classes: int | None, parts: bool, growth: bool, as_json: bool) -> None:
    """Tell what the model NAME is and what it costs."""
    changes: dict[str, Any] = {}
    if size is not None:
        changes["size"] = pixels(size)
    if classes is not None:
        changes["classes"] = classes
    c = sl.models.config(name, **changes)
    if parts:
        model = sl.build(c, device="meta")
        print_table([vars(p) for p in sl.anatomy(model)], as_json, title=name)
        return
    if growth:
        print_table(sl.models.attention_growth(c), as_json, title=f"{name}: cost of attention by patch size")
        return
    print_table(facts(name, c), as_json, title=name)


def pixels(text: str) -> int | tuple[int, int]:
    """`384` or `384x256`."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(s.strip().isdigit() for s in sides):
        raise ValueError(f"--size is a number of pixels or HEIGHTxWIDTH; got {text!r}. Try --size 384.")
    numbers = [int(s) for s in sides]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def facts(name: str, c: Any) -> dict[str, Any]:
    spent = sl.cost(c)
    encoder = c.vit if isinstance(c, sl.models.HybridConfig) else c
    head = {"model": name, "family": {"ViT": "ViT", "BiT": "BiT", "Hybrid": "hybrid"}[type(c).__name__[:-6]]}
    fields = {k: v for k, v in vars(encoder).items() if v is not None}
    if encoder is not c:
        fields |= {f"backbone {k}": v for k, v in vars(c).items() if k != "vit"}
    return {
        **head,
        **fields,
        **({"grid": c.grid, "tokens": spent.tokens} if spent.tokens else {"stride": c.stride}),
        "parameters": spent.parameters,
        "parameter memory": memory(spent.parameter_bytes),
        "GMAC per image": round(spent.gmacs, 3),
        **({"of these in attention products": f"{spent.attention_macs / spent.macs:.1%}"} if spent.tokens else {}),
        "training activations per image": memory(spent.activation_bytes),
        "pixel mean": c.image.mean,
        "pixel std": c.image.std,
    }


def memory(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.2f} GiB"
