"""What the papers report where we measure the same thing, in words: from the reference tables, never typed by hand."""

from sightline.evals.accuracy import Classification
from sightline.evals.few_shot import FewShot
from sightline.evals.multilabel import MultiLabel, ReaL
from sightline.evals.shift.test_sets import TestSets
from sightline.evals.vtab_protocol import Vtab
from sightline.references.matching import published_rows
from sightline.references.rows import ACCURACIES, Reference, find, tables
from sightline.views.view import VIT, Paper


def of_accuracy(r: Classification | MultiLabel) -> Paper | None:
    """Published accuracies of this architecture on this dataset; None where there are none."""
    return _paper(published_rows(str(r.how.get("variant")), str(r.how.get("dataset"))))


def of_real(r: ReaL) -> Paper | None:
    """Of this architecture on the reassessed labels; of the best model of the ViT paper if it is another one."""
    same = published_rows(str(r.how.get("variant")), "imagenet-real")
    return _paper(same or find("vit-2", model="vit-h14", dataset="imagenet-real"))


def of_few_shots(r: FewShot) -> Paper:
    """Published accuracies with as many images per class, and what the papers' figures show in any case."""
    name, data = str(r.how.get("variant")), str(r.how.get("dataset"))
    same = [row for shots in r.shots if isinstance(shots, int) for row in published_rows(name, data, shots=shots)]
    found = _paper(tuple(same))
    general = Paper(f"{VIT}, figure 4; BiT, figure 4", "More shots and more pre-training data help.")
    return Paper(f"{general.where}; {found.where}", f"{general.finding} {found.finding}") if found else general


def of_test_sets(r: TestSets) -> Paper | None:
    """Of this architecture on these test sets, top-1 and top-5."""
    name, kinds = str(r.how.get("variant")), dict(r.how.get("kinds", {}))
    return _paper(
        tuple(row for kind in kinds.values() for m in ACCURACIES for row in published_rows(name, kind, metric=m))
    )


def of_vtab(r: Vtab) -> Paper | None:
    """The means of table 9."""
    return _paper(find("vit-9", dataset="vtab"))


def _paper(rows: tuple[Reference, ...]) -> Paper | None:
    """What each table says, with its conditions."""
    if not rows:
        return None
    names = dict.fromkeys(row.table for row in rows)
    parts = [f"{', '.join(_cell(r) for r in rows if r.table == name)}: {tables()[name].about}" for name in names]
    return Paper("; ".join(tables()[name].source for name in names), " ".join(parts))


def _cell(row: Reference) -> str:
    spread = "" if row.std is None else f" ± {100 * row.std:.2f}"
    rank = "" if row.metric == "top-1" else f"{row.metric} "
    return f"{row.printed} {rank}{100 * row.value:.1f} %{spread}" + (f" ({row.conditions})" if row.conditions else "")
