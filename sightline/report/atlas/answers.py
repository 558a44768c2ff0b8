"""The three questions that the ViT paper leaves open, answered from the verdicts: a paragraph each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.studies.effects import decisive_effect, effect_text, requirement

Row = Mapping[str, Any]


@dataclass(frozen=True)
class AnswerPart:
    """One claim that bears on a question: what it says, and what follows if it holds."""

    claim: str
    that: str
    so: str = ""

    def sentence(self, rows: Sequence[Row]) -> str:
        """What the study found, with the effect that decides it; says so where nothing was measured."""
        row = next((r for r in rows if r["claim"] == self.claim and not r["smoke"]), None)
        effect = None if row is None else decisive_effect(row["effects"])
        if row is None or effect is None or not math.isfinite(effect["value"]):
            return f"{self.claim} is not measured yet."
        required = "" if row["state"] == "holds" else f"; required: {requirement(effect)}"
        numbers = f"({self.claim}: {effect['what']}, {effect_text(effect)}{required})"
        match row["state"]:
            case "holds":
                return f"{self.that[0].upper()}{self.that[1:]}{f', so {self.so}' if self.so else ''} {numbers}."
            case "does not hold":
                return f"We do not find that {self.that} {numbers}."
        return f"It is undecided whether {self.that} {numbers}."


QUESTIONS: dict[str, tuple[AnswerPart, ...]] = {
    "Does the residual connection of a Transformer act like that of a CNN?": (
        AnswerPart("C11", "skip connections carry more in the ViT than in the CNN", "they do not act alike"),
        AnswerPart(
            "C9",
            "the skips of the ViT, and not those of the CNN, keep a token's own patch dominant in its receptive field",
        ),
        AnswerPart("C13", "the layers before and after a block come apart where its skips are removed"),
    ),
    "Is the class token learned like the other tokens?": (
        AnswerPart(
            "C10",
            "the class token passes through skips more than the patches do up to some depth, and less from there on",
            "it is not treated like them",
        ),
        AnswerPart(
            "C12", "late changes of the class token come from the MLP, and its cosines cross over as its ratios"
        ),
        AnswerPart("C17", "the other tokens at the top predict the class better where training averages them"),
    ),
    "Do models with a class token and with average pooling learn the same representation?": (
        AnswerPart("V5", "both reach the same accuracy, each at its own learning rate"),
        AnswerPart("C19", "block by block both agree up to the middle and differ at the end", "they do not"),
        AnswerPart("C16", "average pooling loses where each token came from"),
        AnswerPart("C18", "probes by block follow the five curves of the paper, equal at the end"),
    ),
}


def answers(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Each question with its paragraph."""
    return [(question, " ".join(part.sentence(rows) for part in parts)) for question, parts in QUESTIONS.items()]
