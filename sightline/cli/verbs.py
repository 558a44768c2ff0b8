"""The table of contents: every verb, the file of this room that holds it, and its line in `sightline --help`."""

from typing import NamedTuple


class Verb(NamedTuple):
    """Where a verb is, and what it does."""

    file: str
    help: str


VERBS = {
    "models": Verb("models", "List models, or published weights."),
    "show": Verb("models", "Describe a model and what it costs."),
    "data": Verb("data", "List, fetch, describe, check and shard datasets."),
    "train": Verb("training", "Train a model from scratch."),
    "tune": Verb("training", "Fine-tune trained weights."),
    "runs": Verb("training", "List training runs with their curves."),
    "recipes": Verb("training", "List training recipes, or show one."),
    "predict": Verb("predict", "Classify images with a trained model."),
    "eval": Verb("evals", "Measure the accuracy of a classifier."),
    "fewshot": Verb("evals", "Measure the few-shot accuracy of frozen features."),
    "probe": Verb("evals", "Measure the accuracy of a probe at every layer."),
    "episodes": Verb("evals", "Measure accuracy over K-way N-shot episodes."),
    "vtab": Verb("evals", "Measure a model on a suite of tasks."),
    "look": Verb("analysis", "Run every analysis that applies to a model."),
    "compare": Verb("analysis", "Compare two models layer by layer."),
    "study": Verb("study", "Run the papers' experiments over training seeds."),
    "report": Verb("report", "Write one page about saved results."),
    "convert": Verb("weights", "Convert weights to another format."),
    "demo": Verb("demo", "Train, measure and analyze small models, and write a page."),
}
