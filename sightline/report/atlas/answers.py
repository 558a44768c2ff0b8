"""The three questions that the ViT paper leaves open, answered from the verdicts: a paragraph each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.spec import legible

Row = Mapping[str, Any]


@dataclass(frozen=True)
class AnswerPart:
    """One claim that bears on a question, and what each of its verdicts means for the answer."""

    claim: str
    holds: str
    fails: str

    def sentence(self, rows: Sequence[Row]) -> str:
        """What the study found, with the effect that decides it; says so where nothing was measured."""
        row = next((r for r in rows if r["claim"] == self.claim and not r["smoke"]), None)
        effect = None if row is None else deciding(row)
        if row is None or effect is None or not math.isfinite(effect["value"]):
            return f"{self.claim} is not measured yet."
        known = math.isfinite(effect["low"])
        found = f"{effect['value']:.3g}" + (f" [{effect['low']:.3g}, {effect['high']:.3g}]" if known else "")
        numbers = f"({self.claim}: {effect['what']}, {legible(found)})"
        match row["state"]:
            case "holds":
                return f"{self.holds} {numbers}."
            case "does not hold":
                return f"{self.fails} {numbers}."
        return f"Undecided is whether {self.holds[0].lower()}{self.holds[1:]} {numbers}."


def deciding(row: Row) -> dict[str, Any] | None:
    """The effect that a verdict rests on: a refuted one, else an undecided one, else the weakest."""
    order = ("does not hold", "undecided", "holds")
    return min(row["effects"], key=lambda e: (order.index(e["state"]), margin(e)), default=None)


def margin(e: Mapping[str, Any]) -> float:
    """How far an effect is on the claimed side of its bound, in half widths of its interval."""
    half = (e["high"] - e["low"]) / 2
    gap = e["value"] - e["bound"]
    inside = {"above": gap, "below": -gap}.get(e["side"], e["margin"] - abs(gap))
    return inside / half if math.isfinite(half) and half > 0 else math.nan


QUESTIONS: dict[str, tuple[AnswerPart, ...]] = {
    "Does the residual connection of a Transformer act like that of a CNN?": (
        AnswerPart(
            "C11",
            "Skip connections carry more in the ViT than in the CNN, so they do not act alike",
            "Skip connections do not carry more in the ViT than in the CNN",
        ),
        AnswerPart(
            "C9",
            "They are what keeps a token's own patch dominant in its receptive field, which a CNN does not show",
            "Not everything that the paper says of the own patch's share in receptive fields is found",
        ),
        AnswerPart(
            "C13",
            "Where the skips of a block are removed, the layers before and after it come apart",
            "Removing the skips of a block does not do what the paper says",
        ),
    ),
    "Is the class token learned like the other tokens?": (
        AnswerPart(
            "C10",
            "The class token passes through the skips more than the patches do up to some depth and less from there "
            "on, so it is not treated like them",
            "The class token does not change from skip to branch at some depth as the paper says",
        ),
        AnswerPart(
            "C12",
            "What it receives late comes from the MLP more than from attention",
            "What it receives late does not come from the MLP more than from attention",
        ),
        AnswerPart(
            "C17",
            "The other tokens at the top predict the class poorly, and well where they are averaged in training",
            "The other tokens at the top predict the class as well as where they are averaged in training",
        ),
    ),
    "Do models with a class token and with average pooling learn the same representation?": (
        AnswerPart(
            "V5",
            "They reach the same accuracy, each at its own learning rate",
            "They do not relate in accuracy as the paper says",
        ),
        AnswerPart(
            "C19",
            "Block by block they agree up to the middle and differ at the end",
            "They do not agree up to the middle and differ at the end",
        ),
        AnswerPart(
            "C16",
            "Average pooling loses where each token came from",
            "Average pooling does not lose where each token came from",
        ),
        AnswerPart(
            "C18",
            "Probed as they were trained, both end up equal",
            "Probes by block do not follow the five curves of the paper",
        ),
    ),
}


def answers(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Each question with its paragraph."""
    return [(question, " ".join(part.sentence(rows) for part in parts)) for question, parts in QUESTIONS.items()]
