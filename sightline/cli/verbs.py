"""The table of verbs: the file of each, and its line in `sightline --help`."""

from typing import NamedTuple


class Verb(NamedTuple):
    """The file of a verb, and its one-line help."""

    file: str
    help: str


VERBS = {
    "models": Verb("models", "List models, or published weights."),
    "show": Verb("models", "Describe a model and its cost."),
    "data": Verb("data", "List, fetch, describe, check and shard datasets."),
    "train": Verb("training", "Train a model from scratch."),
    "tune": Verb("training", "Fine-tune trained weights."),
    "runs": Verb("training", "List training runs with their curves."),
    "recipes": Verb("training", "List training recipes, or show one."),
    "predict": Verb("predict", "Classify images with a trained model."),
    "eval": Verb("evals", "Measure the accuracy of a classifier."),
    "fewshot": Verb("evals", "Measure the few-shot accuracy of frozen features."),
    "probe": Verb("evals", "Measure the accuracy of a probe on every layer."),
    "episodes": Verb("evals", "Measure K-way N-shot accuracy on unseen classes."),
    "vtab": Verb("evals", "Evaluate a model on a suite of tasks."),
    "look": Verb("analysis", "See inside a model: every analysis that applies."),
    "compare": Verb("analysis", "Compare two models layer by layer."),
    "open": Verb("app", "Look inside a model in the browser, with your own images."),
    "study": Verb("study", "Run the papers' experiments over training seeds."),
    "report": Verb("report", "Write one page about saved results."),
    "convert": Verb("weights", "Convert weights to another format."),
    "export": Verb("weights", "Export a model for ONNX Runtime, OpenVINO or PyTorch."),
    "serve": Verb("app", "Serve a classifier over HTTP."),
    "demo": Verb("demo", "See all of it in minutes: look, train, measure, one page."),
}
