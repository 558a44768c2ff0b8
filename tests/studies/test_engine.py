"""The engine: what decides a run is its key, the state is the file system, and a failure stays its own."""

import contextlib
import shutil
import subprocess
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import sightline as sl
from sightline.cli import main
from sightline.cli.study import levels
from sightline.files import lock
from sightline.studies.definitions.table import STUDIES
from sightline.studies.engine import slurm
from sightline.studies.engine.images import open_images
from sightline.studies.engine.local import Pool, Worker, run_local
from sightline.studies.engine.networks import initial, trained
from sightline.studies.engine.results import core_hours, write_results
from sightline.studies.engine.running import unfinished
from sightline.studies.engine.slurm import SlurmJob
from sightline.studies.engine.specs import recipe_of, sparse, task_of
from sightline.studies.engine.store import Store, with_needs, write
from sightline.studies.engine.study import Decides, Question, SeedNumbers, check_seeds
from sightline.studies.engine.work import do
from tests.studies.tiny import IMAGES, TINY, train


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(STUDIES, "tiny", TINY)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One seed of the tiny study, done in this process."""
    store = Store(tmp_path_factory.mktemp("studies") / "out")
    store.prepare()
    for task in with_needs(list(TINY.plan((0,))[0].values())):
        store.describe(task)
        assert do(store, task) == "done"
    return store


@pytest.mark.parametrize("name", [s.name for s in sl.studies.list_studies()])
def test_every_study_has_a_plan_and_claims_with_bounds(name):
    study = sl.studies.get_study(name)
    plan = study.plan((0,))[0]
    assert plan
    for task in with_needs(list(plan.values())):
        kind = "training" if isinstance(task, sl.studies.Training) else "measurement"
        assert task_of({kind: sl.spec.from_json(sl.spec.to_json(sparse(task)))}) == task
    for d in study.decides:
        assert d.questions or d.from_verdicts
        assert all(q.margin > 0 for q in d.questions if q.side == "within")


def test_a_key_is_everything_that_decides_and_nothing_else():
    one = train(1e-3, 0)
    others = [
        train(1e-2, 0),
        train(1e-3, 1),
        replace(one, images=replace(IMAGES, num=65)),
        replace(one, changes=(("depth", 2),)),
        replace(one, start=train(1e-3, 1)),
        replace(one, recipe=None),
    ]
    assert len({one.key, *(o.key for o in others)}) == len(others) + 1
    assert train(1e-3, 0).key == one.key


def test_a_field_that_has_its_default_is_not_in_the_key():
    recipe = sl.Recipe(lr=1e-3, batch=4, steps=2)
    assert sparse(recipe) == {"lr": 1e-3, "batch": 4, "steps": 2}
    augmented = replace(recipe, augment=sl.data.Augment(shift=0.1, crop_area=None), betas=(0.9, 0.95))
    assert recipe_of(sl.spec.from_json(sl.spec.to_json(sparse(augmented)))) == augmented


def test_what_is_done_is_not_done_again(done):
    task = train(1e-3, 0)
    before = {p: p.stat().st_mtime_ns for p in done.folder(task).rglob("*") if p.name != ".lock"}
    assert do(done, task) == "done"
    assert {p: p.stat().st_mtime_ns for p in done.folder(task).rglob("*") if p.name != ".lock"} == before
    assert done.spent(task) > 0
    assert "core_seconds" not in done.result(task)


def test_a_failed_run_is_kept_with_its_reason_and_the_others_go_on(done, tmp_path):
    store = Store(tmp_path / "out")
    store.prepare()
    bad = replace(train(1e-3, 0), changes=(("depth", 0),))
    measured = sl.studies.Measurement(name="accuracy", models=(bad,), images=(IMAGES,))
    for task in (bad, measured):
        store.describe(task)
        assert do(store, task) == "failed"
    assert "depth" in store.reason(bad)
    assert f"run {bad.key}" in store.reason(measured)
    assert store.state(bad) == "failed"


def test_a_training_that_diverges_is_an_outcome(tmp_path):
    store = Store(tmp_path / "out")
    wild = train(1e-3, 0)
    wild = replace(wild, recipe=replace(wild.recipe, lr=1e30, optimizer="sgd"))
    assert do(store, wild) == "done"
    assert "diverged" in store.result(wild)
    measured = sl.studies.Measurement(name="accuracy", models=(wild,), images=(IMAGES,))
    assert do(store, measured) == "done"
    numbers = {0: {("accuracy", (("rate", 1e-3),)): store.result(measured)}}
    assert sl.studies.Study.verdicts(TINY, numbers)[0].state == "undecided"


def test_results_are_judged_from_the_file_alone(done, tmp_path):
    path = write_results(done, "tiny", TINY.plan((0,)), smoke=False)
    rows = sl.studies.judge_results(path)
    assert [(r["claim"], r["state"], r["seeds"]) for r in rows] == [("T1", "undecided", 1)]
    assert rows[0]["controls"]["null"]["state"] == "undecided"
    page = sl.report.write_atlas(path.parent, tmp_path / "atlas.html").read_text()
    assert "T1 undecided" in page
    assert "It does." in page


def test_verdicts_follow_from_intervals_over_seeds():
    def seed(low: float, high: float) -> dict:
        return {("accuracy", (("rate", r),)): {"accuracy": a} for r, a in zip(TINY.axes["rate"], (low, high))}

    up = {0: seed(0.5, 0.3), 1: seed(0.52, 0.31), 2: seed(0.49, 0.28)}
    assert [v.state for v in TINY.verdicts(up)] == ["holds"]
    down = {k: seed(*[x["accuracy"] for x in reversed(list(v.values()))]) for k, v in up.items()}
    assert [v.state for v in TINY.verdicts(down)] == ["does not hold"]
    assert [v.state for v in TINY.verdicts({0: up[0], 1: up[1]})] == ["undecided"]
    s = SeedNumbers(TINY, up, 2)
    assert TINY.decides[0].null.of(s) == pytest.approx(0.49 - 0.5)
    low = TINY.decides[0].null.effect([SeedNumbers(TINY, up, seed) for seed in up])
    middle = (0.5 + 0.52 + 0.49) / 3
    assert low.value == pytest.approx(((0.5 - middle) - (0.52 - middle) + (0.49 - middle)) / 3)
    assert low.state == "undecided"
    equal = Decides(
        claim="T2", source="", statement="",
        questions=(Question(what="", of=lambda s: s.accuracy() - 0.5, side="within", margin=0.1),),
    )  # fmt: skip
    assert equal.verdict([SeedNumbers(TINY, up, seed) for seed in up]).state == "holds"


def test_images_are_drawn_once_and_a_permutation_keeps_every_patch(tmp_path):
    import numpy as np

    plain = open_images(IMAGES, tmp_path)
    assert np.array_equal(plain[3][0], sl.dataset("scenes/shape", num=64, size=16)[3][0])
    moved = open_images(replace(IMAGES, permuted=4), tmp_path)
    cut = [np.sort(d[3][0].reshape(4, 4, 4, 4, 3).swapaxes(1, 2).reshape(16, -1), axis=0) for d in (plain, moved)]
    assert np.array_equal(*cut)
    assert not np.array_equal(plain[3][0], moved[3][0])
    assert len(list((tmp_path / "images").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "dta"], "There is no study 'dta'. Did you mean data?"),
        (["run", "data", "--only", "sise=1"], "data has no axis 'sise'"),
        (["run", "data", "--only", "images=3"], "data has no images '3'"),
        (["run", "data", "--seeds", "0,1,1"], "seed 1 is given twice"),
        (["run", "data", "--seeds", "20261118"], "at most 1,000"),
        (["run", "data", "--jobs", "0"], "numbers above 0"),
        (["run", "data", "--minutes", "nan"], "numbers above 0"),
        (["run", "data", "--partition", "main"], "--partition is for jobs of Slurm: add --on slurm"),
        (["run", "data", "--num", "9"], "--num belongs to --models"),
        (["run", "seeing", "--models", "a,b", "--data", "c", "--seeds", "3"], "--seeds is for trainings"),
        (["run", "data", "--only", "images=1000", "--only", "images=3"], "data has no images '3'"),
        (["status", "--jobs", "0"], "jobs is a number above 0; got 0"),
        (["status", "--out", "nowhere"], "nowhere holds no studies"),
        (["report", "nowhere"], "There are no results of studies in nowhere"),
    ],
)
def test_mistakes_are_one_sentence(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["study", *arguments])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_a_folder_of_another_version_or_of_something_else_is_refused(tmp_path):
    (tmp_path / "studies.json").write_text('{"version": 0}')
    with pytest.raises(ValueError, match=r"runs of version 0 .* give another --out"):
        sl.studies.run_studies(["tiny"], out=tmp_path)
    (tmp_path / "studies.json").rename(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match=r"holds notes.txt and no studies"):
        sl.studies.run_studies(["tiny"], out=tmp_path)


def test_without_slurm_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="There is no sbatch on the path"):
        sl.studies.run_studies(["tiny"], out=tmp_path / "out", on=sl.studies.Cluster())
    assert not (tmp_path / "out").exists()


def test_a_job_waits_for_what_a_job_of_an_earlier_command_is_doing(done, monkeypatch):
    folder, waits = done.folder(train(1e-3, 0)), []
    with contextlib.ExitStack() as other:
        other.enter_context(lock(folder / ".lock"))
        clock = SimpleNamespace(sleep=lambda seconds: (waits.append(seconds), other.close()))
        monkeypatch.setattr(slurm, "time", clock)
        assert SlurmJob(str(done.path), 1)([str(folder)]) == ["done"]
    assert waits == [slurm.POLL]


def test_a_job_with_gpus_trains_and_measures_on_them(done, monkeypatch):
    submitted = []
    made = SimpleNamespace(
        update_parameters=lambda **given: submitted.append(given),
        map_array=lambda job, groups: submitted.append(job) or [SimpleNamespace(job_id="7_0")],
    )
    monkeypatch.setattr(slurm, "submitit", lambda: SimpleNamespace(SlurmExecutor=lambda **given: made))
    for gpus, device in ((0, "cpu"), (2, "cuda")):
        assert slurm.submit(done, [train(1e-3, 0)], sl.studies.Cluster(gpus=gpus), jobs=1) == "7"
        assert submitted[-2].get("gpus_per_node", 0) == gpus
        assert submitted[-1].device == device
    elsewhere = replace(done, device="meta")
    models = [trained(elsewhere, train(1e-3, 0)), initial(elsewhere, train(1e-3, 0), open_images(IMAGES, done.path))]
    assert all(next(model.parameters()).is_meta for model in models)


def test_a_task_whose_process_dies_again_and_again_fails_with_the_reason(tmp_path):
    store, task, said = Store(tmp_path), train(1e-3, 0), []
    pool = Pool(store, 1, 1, said.append, deque())
    for _ in range(3):
        worker = Worker(SimpleNamespace(join=lambda: None, exitcode=-9), None, task)
        pool.workers.append(worker)
        pool.lose(worker)
    assert store.reason(task) == "its process died 3 times, the last time with exit code -9."
    assert pool.failed == {task.key}
    assert len(pool.waiting) == 2  # once after each of the first two deaths


@pytest.mark.parametrize("hours", [float("inf"), float("nan"), 0.0])
def test_a_job_has_some_time_and_not_all_of_it(hours, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    with pytest.raises(ValueError, match="some time"):
        sl.studies.Cluster(hours=hours).check()


@pytest.mark.parametrize("seeds", [(), (0, -1), (0, 0.5), "01", 10**12])
def test_seeds_are_whole_numbers_and_not_too_many(seeds):
    with pytest.raises(ValueError, match=r"^seeds is "):
        check_seeds(seeds)


def test_an_axis_may_be_named_twice():
    assert levels(["images=1,2", "family=ViT", "images=3"]) == {"images": ("1", "2", "3"), "family": ("ViT",)}


def test_no_task_is_left_where_none_is_given(tmp_path):
    assert run_local(Store(tmp_path), [], jobs=1)


def test_what_two_studies_share_was_spent_once(tmp_path):
    for name, seconds in (("data", {"a": 3600, "b": 1800}), ("shots", {"a": 3600, "c": 900})):
        write(tmp_path / f"{name}.spent.json", {"core_hours": sum(seconds.values()) / 3600, "seconds": seconds})
    write(tmp_path / "decay.spent.json", {"core_hours": 2.0})  # written before there were seconds
    assert core_hours(tmp_path / f"{name}.json" for name in ("data", "shots", "decay")) == 1.75 + 2


def test_a_model_is_measured_as_soon_as_it_is_trained(monkeypatch):
    tasks = with_needs([m for rows in TINY.plan((0, 1)).values() for m in rows.values()])
    done, given = set(), []

    def give(self, task):
        given.append(task)
        self.workers.append(Worker(None, None, task))

    monkeypatch.setattr(Pool, "give", give)
    store = SimpleNamespace(state=lambda task: "done" if task.key in done else "waiting")
    pool = Pool(store, jobs=2, threads=1, say=print, waiting=deque(tasks))
    while pool.waiting or pool.workers:
        pool.assign()
        done.add(pool.workers.pop(0).task.key)
    assert {task.key for task in given} == {task.key for task in tasks}
    first = [task.key for task in given]
    for task in given:
        assert all(first.index(need.key) < first.index(task.key) for need in task.needs)
    trained, measured = given[0], given[2]  # the second worker took the next training meanwhile
    assert measured.needs == (trained,)


@pytest.fixture
def results(done, tmp_path):
    """A folder that holds the results of the tiny study alone, as on another machine."""
    write_results(done, "tiny", TINY.plan((0,)), smoke=False)
    shutil.copytree(done.path / "results", tmp_path / "copy" / "results")
    return tmp_path / "copy"


def test_results_alone_are_enough_to_resume(done, results):
    before = (results / "results" / "tiny.json").read_bytes()
    said = []
    (path,) = sl.studies.run_studies(["tiny"], out=results, seeds=1, say=said.append)
    assert path.read_bytes() == before
    assert not (results / "runs").exists()
    assert core_hours([path]) == pytest.approx(core_hours([done.path / "results" / "tiny.json"]))
    assert sl.studies.studies_status(results)[0]["hours left"] == 0


def test_what_results_lack_is_trained_and_nothing_else(results):
    path = results / "results" / "tiny.json"
    whole = path.read_bytes()
    held = sl.spec.from_json(whole.decode())
    del held["checksum"]
    held["rows"] = [row for row in held["rows"] if row["cell"]["rate"] == 1e-3]
    held["runs"].pop(train(1e-2, 0).key)
    write(path, held)
    sl.studies.run_studies(["tiny"], out=results, seeds=1, say=lambda text: None)
    assert [p.name for p in (results / "runs").iterdir()] == [train(1e-2, 0).key]
    assert path.read_bytes() == whole


def test_unfinished_results_resume_a_study_and_are_not_judged(results):
    path = results / "results" / "tiny.json"
    whole = path.read_bytes()
    for ending in (".json", ".spent.json"):
        path.with_suffix(ending).rename(path.with_name(f"tiny.unfinished{ending}"))
    with pytest.raises(ValueError, match="no results of studies"):
        sl.studies.judge_folder(path.parent)
    sl.studies.run_studies(["tiny"], out=results, seeds=1, say=lambda text: None)
    assert not (results / "runs").exists()
    assert path.read_bytes() == whole


def test_fewer_seeds_lose_no_measurement(results):
    path = results / "results" / "tiny.json"
    whole, hours = path.read_bytes(), core_hours([path])
    sl.studies.run_studies(["tiny"], out=results, seeds=1, only={"rate": ["0.01"]}, say=lambda text: None)
    sl.studies.run_studies(["tiny"], out=results, seeds=1, say=lambda text: None)
    assert not (results / "runs").exists()
    assert path.read_bytes() == whole  # with the images and products of every training
    assert core_hours([path]) == pytest.approx(hours)


def test_damaged_results_are_set_aside(results):
    path = results / "results" / "tiny.json"
    path.write_bytes(path.read_bytes().replace(b'"accuracy": 0', b'"accuracy": 1', 1))
    said = []
    store = Store(results)
    assert len(unfinished(store, with_needs(list(TINY.plan((0,))[0].values())), said.append)) > 3
    assert "tiny.json was damaged" in said[0]
    assert path.with_name("tiny.json.damaged").exists()


@pytest.mark.slow
def test_a_large_run_goes_through_torchrun(tmp_path, monkeypatch):
    store, started = Store(tmp_path / "out"), []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **how: started.append(command) or run(command, **how))
    alone = train(1e-3, 0, steps=2)
    shared = replace(alone, processes=2)
    for task in (alone, shared):
        store.describe(task)
        assert do(store, task) == "done", store.reason(task)
    assert store.result(shared) == store.result(alone)
    assert [c for c in started if "torch.distributed.run" in c and "--nproc-per-node=2" in c]
    ours, theirs = (trained(store, task).state_dict() for task in (alone, shared))
    for name, weights in ours.items():
        assert torch.allclose(weights, theirs[name], atol=1e-4), name  # 2e-5 between one process and two
