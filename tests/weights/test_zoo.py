"""The zoo and its downloads, against a server on this machine."""

import hashlib
import http.server
import json
import multiprocessing
import re
import struct
import threading

import pytest
import torch

import sightline as sl
from sightline.cli import main
from sightline.data import download
from sightline.weights import published
from tests.peers import fill


def container(body: bytes) -> bytes:
    """A file of weights with these bytes in it."""
    entry = {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)]}
    text = json.dumps({"a": entry}).encode()
    return struct.pack("<Q", len(text)) + text + body


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one file with ranges; `cut` breaks the first answers off after so many bytes."""

    data, etag, ranges, cut, asked, sent = b"", '"one"', True, 0, 0, {}

    def do_GET(self):
        cls = type(self)
        cls.asked += 1
        if self.path.endswith("missing.npz"):
            self.send_error(404)
            return
        start = 0
        wanted = self.headers.get("Range")
        if wanted and cls.ranges and self.headers.get("If-Range") == cls.etag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            self.send_response(206)
        else:
            self.send_response(200)
        self.send_header("ETag", cls.etag)
        for name, value in {"Content-Length": str(len(cls.data) - start), **cls.sent}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        body = cls.data[start:]
        if cls.cut:
            body, cls.cut = body[: cls.cut], 0
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SIGHTLINE_OFFLINE", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "TIMEOUT", 5.0)
    handler = type("Handler", (Server,), {"data": container(bytes(range(256)) * 4000), "asked": 0})
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    handler.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    yield handler
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def entry(server):
    """An entry of the zoo that the server holds; keywords change it."""

    def make(**changes) -> sl.weights.Weights:
        return sl.weights.Weights(**{"name": "vit-nano4.served", "source": f"{server.url}/a.npz", **changes})

    return make


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "weights" / "vit-nano4.served"


def test_an_interrupted_download_is_resumed(server, entry, folder):
    server.cut = 300_000
    mine = entry(sha256=sha(server.data))
    with pytest.raises(sl.weights.WeightsError, match=r"not on this machine.*ended early"):
        mine.fetch()
    assert not (folder / "a.npz").exists()
    assert (folder / "a.npz.part").stat().st_size == 300_000
    assert mine.fetch() == folder / "a.npz"
    assert (folder / "a.npz").read_bytes() == server.data
    assert {p.name for p in folder.iterdir()} <= {"a.npz", ".a.npz.lock"}
    asked = server.asked
    mine.fetch()
    assert server.asked == asked  # once is enough


@pytest.mark.parametrize("how", ["file changed", "no ranges"])
def test_a_part_of_another_file_is_thrown_away(how, server, entry):
    server.cut = 300_000
    with pytest.raises(sl.weights.WeightsError):
        entry().fetch()
    if how == "file changed":
        server.etag, server.data = '"two"', container(bytes(reversed(range(256))) * 3000)
    else:
        server.ranges = False
    assert entry().fetch().read_bytes() == server.data


def test_a_wrong_checksum_is_refused_and_removed(server, entry, folder):
    with pytest.raises(sl.weights.WeightsError, match="does not have the checksum"):
        entry(sha256="0" * 64).fetch()
    assert not [p for p in folder.iterdir() if p.suffix in (".npz", ".part")]
    entry(sha256=sha(server.data)[:8]).fetch()  # the beginning is enough


@pytest.mark.parametrize(
    ("body", "sent", "why"),
    [
        (b"<!DOCTYPE html><html>Please log in", {}, "a web page instead of the file"),
        (b"", {}, "is empty"),
        (container(bytes(100))[:-10], {"Content-Length": ""}, "cut short"),
        (container(bytes(100)), {"x-goog-hash": "crc32c=AAAAAA==,md5=AAAAAAAAAAAAAAAAAAAAAA=="}, "the checksum md5:00"),
        (container(bytes(100)), {"Content-Length": str(1 << 50)}, "at most"),
    ],
    ids=["login page", "empty", "truncated", "checksum of the server", "too large"],
)
def test_a_wrong_body_is_never_kept(body, sent, why, server, entry, folder):
    server.data, server.sent = body, sent
    with pytest.raises(sl.weights.WeightsError, match=why):
        entry().fetch()
    assert not [p for p in folder.iterdir() if p.suffix in (".npz", ".part")]


def test_a_server_that_drips_does_not_hold_us_for_ever(server, entry, monkeypatch):
    monkeypatch.setattr(download, "DEADLINE", 0.0)
    with pytest.raises(sl.weights.WeightsError, match="not complete after"):
        entry().fetch()


def test_revisions_are_pinned_and_repositories_checked(monkeypatch, tmp_path, caplog):
    """Of three repositories no revision is on record; everything else on the hub has one."""
    hub = [w for w in sl.weights.zoo() if w.source.startswith("hf:")]
    loose = {w.name for w in hub if not re.fullmatch(r"hf:[\w/-]+@[0-9a-f]{40}", w.source)}
    assert loose == {"vit-l16.hf-i21k-i1k", "vit-h14.hf-i21k", "bit-r50x1.hf-i1k"}
    meta = [w for w in sl.weights.zoo() if "fbaipublicfiles" in w.source]
    assert all(w.sha256 for w in meta)
    huggingface_hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "model.safetensors").write_bytes(b"another model")
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda repo, **how: asked.append(how["revision"]) or str(tmp_path)
    )
    with pytest.raises(sl.weights.WeightsError, match="does not have the checksum"):
        sl.load("vit-s14.hf-dinov2")
    assert asked == [published.REVISIONS["facebook/dinov2-small"]]
    assert not (tmp_path / "model.safetensors").exists()
    assert "no revision" not in caplog.text
    sl.weights.hub.download_repository("google/bit-50")
    assert f"no revision of it is on record: hf:google/bit-50@{tmp_path.name} names these files" in caplog.text


def test_what_the_server_refuses(server, entry):
    with pytest.raises(sl.weights.WeightsError, match="answered 404"):
        entry(source=f"{server.url}/missing.npz").fetch()


def _fetch(weights: sl.weights.Weights) -> None:
    weights.fetch()


def test_two_processes_share_one_download(server, entry, folder):
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_fetch, args=(entry(),)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [p.exitcode for p in both] == [0, 0]
    assert (folder / "a.npz").read_bytes() == server.data
    assert server.asked == 1


def test_an_own_entry_is_fetched_loaded_and_kept(server, tmp_path):
    model = fill(sl.build("vit-nano4", classes=10))
    file = sl.save(model, tmp_path / "model.safetensors", to="timm", probes=False)
    server.data = file.read_bytes()
    image = {"mean": (0.1, 0.2, 0.3)}
    mine = sl.weights.Weights(
        name="vit-nano4.served", source=f"{server.url}/m.safetensors", sha256=sha(server.data), classes=10, image=image
    )
    sl.weights.add_weights(mine, keep=True)
    again = sl.load("vit-nano4.served")
    assert torch.equal(again.head.weight, model.head.weight)
    assert again.loaded.source == "vit-nano4.served"
    published.ADDED.clear()  # another process sees what was kept
    assert sl.weights.zoo("*.served")[0].sha256 == mine.sha256
    lying = sl.weights.Weights(name="vit-micro4.served", source=f"{server.url}/m.safetensors", classes=10)
    sl.weights.add_weights(lying)
    with pytest.raises(sl.weights.WeightsError, match="should have width=128"):
        sl.load("vit-micro4.served")
    published.ADDED.clear()


def test_offline_is_one_sentence_with_the_way_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path))
    monkeypatch.setenv("SIGHTLINE_OFFLINE", "1")
    with pytest.raises(
        sl.weights.WeightsError, match=r"vit-b16\.augreg-i21k is not on this machine.*sightline convert FILE"
    ):
        sl.load("vit-b16.augreg-i21k")
    monkeypatch.delenv("SIGHTLINE_OFFLINE")
    nowhere = sl.weights.Weights(name="vit-nano4.nowhere", source="http://127.0.0.1:9/model.npz")
    with pytest.raises(sl.weights.WeightsError, match=r"127\.0\.0\.1:9\S* cannot be reached"):
        nowhere.fetch()
    with pytest.raises(SystemExit):
        main(["convert", "vit-b16.augreg-i99k", str(tmp_path / "out.safetensors")])
    assert "Did you mean vit-b16.augreg-i21k" in capsys.readouterr().err
    assert not (tmp_path / "out.safetensors").exists()


def test_every_entry_is_whole(monkeypatch):
    monkeypatch.setattr(published, "ADDED", {})  # examples elsewhere add entries of their own
    for w in sl.weights.zoo():
        assert w.config.classes == w.classes
        assert len(w.spec.mean) == 3
        assert w.spec.size == w.config.size
        assert w.license
        assert w.source.startswith(("https://", "hf:")) or w.name in sl.weights.shipped()
        assert w.sha256 is None or len(w.sha256) in (8, 64)
    names = [w.name for w in sl.weights.zoo()]
    assert len(names) == len(set(names))
    assert {"vit-b16.augreg-i21k", "bit-r50x1.i21k", "r50-vit-b16.i21k", "vit-ti16.deit-i1k"} <= set(names)


def test_the_zoo_is_listed(capsys):
    main(["models", "vit-b16", "--weights", "--json"])
    assert "vit-b16.augreg-i21k" in capsys.readouterr().out
    main(["models", "bit-*", "--weights"])
    assert "bit-r50x1.i21k-i1k" in capsys.readouterr().out


def test_bad_entries_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path))
    with pytest.raises(sl.weights.WeightsError, match="a variant, a dot and a tag"):
        sl.weights.add_weights(sl.weights.Weights(name="mine", source="x"))
    with pytest.raises(sl.weights.WeightsError, match="taken by the built-in zoo"):
        sl.weights.add_weights(sl.weights.Weights(name="vit-b16.i21k", source="x"))
    with pytest.raises(sl.weights.WeightsError, match="nothing is there"):
        sl.weights.Weights(name="vit-b16.gone", source=str(tmp_path / "gone.npz")).fetch()
    (tmp_path / "zoo.json").write_text("[1")
    with pytest.raises(sl.weights.WeightsError, match="is damaged"):
        sl.weights.zoo()


def test_the_hub_needs_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(sl.weights.WeightsError, match=r"pip install 'sightline\[hub\]'"):
        sl.load("hf:google/vit-base-patch16-224")


def test_a_repository_of_the_hub_is_a_folder(monkeypatch, tmp_path):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    from tests.weights.makers import PEERS

    PEERS["hf"].ready().float().save_pretrained(tmp_path / "repo")
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda repo, **how: asked.append(repo) or str(tmp_path / "repo")
    )
    model = sl.load("hf:someone/vit")
    assert (asked, model.config.heads, model.loaded.source) == (["someone/vit"], 2, "hf:someone/vit")

    def fail(repo, **how):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(sl.weights.WeightsError, match=r"hf:someone/vit is not on this machine.*no route"):
        sl.load("hf:someone/vit")
