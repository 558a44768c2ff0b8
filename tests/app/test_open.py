"""The app's server: who is let in, what it takes, and that its numbers are the library's."""

import gc
import io
import json
import shutil
import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

import sightline as sl
from sightline.app.edits import edit_image
from sightline.app.gallery import SAMPLES, Gallery, open_upload
from sightline.app.nearest import nearest_layers
from sightline.app.networks import checkpoints, open_networks, resized
from sightline.app.passes import run
from sightline.app.protocol import pack, parse, quantize, unpack
from sightline.app.server import App
from sightline.app.sessions import Session
from sightline.observe.model import observe
from tests import peers
from tests.analysis.test_attention import timm_model

HOST = "127.0.0.1:8000"
ORIGIN = {"origin": f"http://{HOST}", "host": HOST}


@pytest.fixture(scope="module")
def networks():
    vit = peers.fill(sl.build("vit-nano4", classes=10, depth=3), std=0.2)
    cnn = peers.fill(sl.build("bit-nano", classes=10), std=0.2)
    return open_networks([vit, cnn])


@pytest.fixture(scope="module")
def app(networks):
    return App(networks, Gallery())


@pytest.fixture(scope="module")
def photograph():
    pixels = torch.rand(40, 60, 3, generator=torch.Generator().manual_seed(0)) * 255
    return Image.fromarray(pixels.numpy().astype(np.uint8))


@pytest.fixture
def session(networks, photograph):
    made = Session(networks, Gallery())
    list(made.upload(png(photograph)))
    return made


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def ask(session, do, **more):
    return [unpack(frame) for frame in session.handle({"do": do, **more})]


def dequantize(rows, peaks):
    return rows / 255 * peaks[..., None]


# who is let in


def client(app):
    return TestClient(app.asgi(), base_url=f"http://{HOST}")


def test_the_page_needs_its_token(app):
    web = client(app)
    assert web.get(f"/{app.token}/").status_code == 200
    assert web.get(f"/{app.token}/canvas.js").status_code == 200
    assert web.get("/").status_code == 404
    assert web.get("/wrong/").status_code == 403
    assert web.get(f"/{app.token}/../../etc/passwd").status_code in (403, 404)
    assert web.get(f"/{app.token}/%2e%2e/page.py").status_code in (403, 404)
    assert web.get(f"/{app.token}/index.html").status_code == 404  # names are looked up, not opened


def test_other_sites_and_rebound_names_are_refused(app):
    web = client(app)
    assert web.get(f"/{app.token}/", headers={"host": "evil.example:8000"}).status_code == 400
    assert web.get(f"/{app.token}/", headers={"origin": "http://evil.example"}).status_code == 403
    assert web.get(f"/{app.token}/", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    policy = web.get(f"/{app.token}/").headers
    assert policy["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in policy["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("{token}/live", {"host": HOST}),
        ("{token}/live", {"host": HOST, "origin": "http://evil.example"}),
        ("{token}/live", {"host": "evil.example", "origin": "http://evil.example"}),
        ("{token}/live", {"host": HOST, "origin": "http://127.0.0.1:9999"}),
        ("wrong/live", ORIGIN),
    ],
)
def test_a_websocket_of_another_page_is_refused(app, path, headers):
    # refused before it is accepted: by the name of its host, or by the server's own check
    opening = client(app).websocket_connect(path.format(token=app.token), headers=headers)
    with pytest.raises((WebSocketDisconnect, WebSocketDenialResponse)), opening:
        pass


# what it takes


def test_a_tab_gets_its_answer_and_frees_its_memory(app, photograph):
    with (
        client(app) as web,
        web.websocket_connect(f"/{app.token}/live", headers=ORIGIN) as one,
        web.websocket_connect(f"/{app.token}/live", headers=ORIGIN) as two,
    ):
        for tab in (one, two):
            tab.send_bytes(png(photograph))
        said = [[unpack(tab.receive_bytes())[0] for _ in range(4)] for tab in (one, two)]
        assert [h["do"] for h in said[0]] == ["answer", "answer", "untouched", "untouched"]
        assert said[0][0]["top"] == said[1][0]["top"]
        two.send_json({"do": "change", "model": 0, "off": ["block 1"]})
        assert unpack(two.receive_bytes())[0]["which"] == "changed"
        one.send_json({"do": "place", "model": 0, "x": 0.5, "y": 0.5, "changed": 1})
        assert unpack(one.receive_bytes())[0]["which"] == "plain"  # the other tab's switch is not this one's
        kept = [weakref.ref(p) for session in app.sessions for p in session.passes.values()]
        assert len(kept) == 5
    gc.collect()
    assert not app.sessions
    assert not any(ref() for ref in kept)


def test_mistakes_are_sentences_and_end_nothing(app, photograph):
    with client(app) as web, web.websocket_connect(f"/{app.token}/live", headers=ORIGIN) as tab:
        for text in (
            "no json",
            "[1]",
            '{"do": 3}',
            '{"do": "unknown"}',
            '{"do": "pick", "number": 999}',
            '{"do": "save"}',
        ):
            tab.send_text(text)
            assert unpack(tab.receive_bytes())[0]["do"] == "error"
        tab.send_bytes(b"not an image")
        assert "not an image" in unpack(tab.receive_bytes())[0]["error"]
        tab.send_bytes(png(photograph))
        assert [unpack(tab.receive_bytes())[0]["do"] for _ in range(4)][:2] == ["answer", "answer"]
        tab.send_json({"do": "change", "model": 0, "off": ["head 9.9"], "id": "c"})
        answer = unpack(tab.receive_bytes())[0]
        assert answer["id"] == "c"
        assert "blocks 0 to 2" in answer["error"]
        tab.send_json({"do": "change", "model": 0, "edits": [{"paint": [[1e9, 0]], "radius": 0.1}]})
        assert "An edit is" in unpack(tab.receive_bytes())[0]["error"]


def test_uploads_have_limits(monkeypatch):
    with pytest.raises(ValueError, match="at most 20"):
        open_upload(bytes(21_000_000))
    bomb = png(Image.new("1", (8000, 8000)))
    assert len(bomb) < 20_000
    with pytest.raises(ValueError, match="8000 x 8000"):
        open_upload(bomb)
    assert open_upload(png(Image.new("RGB", (8, 6)))).size == (8, 6)


def test_photographs_ship_with_their_sources():
    gallery = Gallery()
    names = [o.name for o in gallery.offered if o.path]
    sources = json.loads((SAMPLES / "SOURCES.json").read_text())
    assert {f"{name}.jpg" for name in names} == set(sources) - {"about"}
    assert all({"author", "license"} <= set(sources[f"{name}.jpg"]) for name in names)
    assert min(gallery.open(names.index("cat"))[1].size) == 256


def test_only_images_inside_the_folder_are_offered(tmp_path, photograph):
    inside, outside = tmp_path / "inside", tmp_path / "outside.png"
    inside.mkdir()
    photograph.save(outside)
    photograph.save(inside / "own.png")
    (inside / "link.png").symlink_to(outside)
    gallery = Gallery(str(inside))
    assert [o.name for o in gallery.offered if o.path] == ["own.png"]
    assert gallery.open(0)[1].size == photograph.size
    assert gallery.open(1)[0] == "scene 1"
    (inside / "own.png").unlink()
    (inside / "own.png").symlink_to(outside)  # after the list was made
    with pytest.raises(ValueError, match="no longer"):
        gallery.open(0)
    with pytest.raises(ValueError, match="no folder"):
        Gallery(str(outside))


def test_frames_come_back_as_they_were():
    arrays = {"a": np.arange(5, dtype=np.uint8), "b": np.ones((2, 3), np.float32), "c": np.zeros((0, 4), np.int32)}
    header, found = unpack(pack({"do": "x", "n": float("inf")}, arrays))
    assert header["do"] == "x"
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values)
    with pytest.raises(ValueError, match="JSON"):
        parse("[" * 100_000)
    rows, peaks = quantize(np.array([[0.0, 0.5, 0.25], [0, 0, 0]]))
    assert rows.tolist() == [[0, 255, 128], [0, 0, 0]]
    assert peaks.tolist() == [0.5, 0]


# numbers are the library's


def test_the_answer_is_the_library_s(session, networks, photograph):
    for model, network in enumerate(networks):
        said, _ = unpack(session.answer(model, "plain"))
        wanted = sl.predict(network.own.model, photograph)[0]
        assert [row[0] for row in said["top"]] == list(wanted.names)
        np.testing.assert_allclose([row[2] for row in said["top"]], wanted.probabilities, atol=1e-5)


def test_attention_at_a_place_is_the_library_s(session, networks, photograph):
    vit = networks[0].own.model
    heads = sl.head_attention(vit, [photograph], n=1)
    (_, found), *_ = ask(session, "place", model=0, x=0.4, y=0.7)
    query = 1 + int(0.7 * 8) * 8 + int(0.4 * 8)
    np.testing.assert_allclose(found["fromPeaks"], heads.peaks[0, :, :, query], atol=1e-6)
    assert np.abs(found["from"].astype(int) - heads.attention[0, :, :, query]).max() <= 1
    own = sl.analysis.attention_maps(vit, [photograph], block=1, query=query - 1).maps[0].reshape(4, -1)
    np.testing.assert_allclose(
        dequantize(found["from"], found["fromPeaks"])[1], own, atol=found["fromPeaks"].max() / 400
    )
    column = np.stack([heads.row(0, 2, 3, q) for q in range(1, 65)])[:, query - 1]
    np.testing.assert_allclose(dequantize(found["to"], found["toPeaks"])[2, 3], column, atol=0.01)


def test_similarity_is_the_cosine_at_every_depth(session, networks, photograph):
    for model, network in enumerate(networks):
        (_, found), *_ = ask(session, "place", model=model, x=0.9, y=0.1)
        own = network.own
        paths = [p.path for p in own.block_outputs]
        with sl.record(own.model, *paths) as tape, torch.no_grad():
            own.model(sl.data.normalize(peers_pixels(photograph, own), own.image))
        last = tape[paths[-1]]
        cells = last[0, own.prefix :] if last.ndim == 3 else last[0].flatten(1).mT
        grid = own.grid if last.ndim == 3 else tuple(last.shape[2:])
        at = int(0.1 * grid[0]) * grid[1] + int(0.9 * grid[1])
        cosines = torch.nn.functional.cosine_similarity(cells, cells[at : at + 1], dim=-1).clamp(0, 1)
        name = max((n for n in found if n.startswith("similarity")), key=lambda n: int(n[10:]))
        np.testing.assert_allclose(found[name] / 255, cosines.numpy(), atol=0.003)


def peers_pixels(photograph, own):
    from sightline.data.images import resize_and_crop, to_tensor

    return to_tensor([resize_and_crop(photograph, own.image)])


def test_maps_are_the_library_s(session, networks, photograph):
    vit, cnn = (n.own.model for n in networks)
    wanted = {
        (0, "rollout"): sl.attention_rollout(vit, [photograph]).maps[0],
        (0, "identity"): sl.attention_rollout(vit, [photograph], identity=True).maps[0],
        (0, "gradient_rollout"): sl.attention_rollout(vit, [photograph], gradient=True).maps[0],
        (0, "grad_cam"): sl.attribution(vit, [photograph], steps=1).maps[0],
        (1, "grad_cam"): sl.attribution(cnn, [photograph], steps=1).maps[0],
    }
    for (model, view), values in wanted.items():
        (header, found), *_ = ask(session, "map", model=model, view=view)
        assert header["peak"] == pytest.approx(values.max(), rel=1e-4), view
        np.testing.assert_allclose(found["map"] / 255 * header["peak"], values, atol=max(header["peak"], 1e-9) / 400)
    field = sl.receptive_field(cnn, [photograph], layers=[1], at=(2, 3), n=1)
    (header, _), *_ = ask(
        session,
        "map",
        model=1,
        view="field",
        depth=1,
        x=3.5 / header_grid(session, 1)[1],
        y=2.5 / header_grid(session, 1)[0],
    )
    np.testing.assert_allclose(header["radii"], field.radii[0])


def header_grid(session, depth):
    return unpack(session.answer(1, "plain"))[0]["grids"][depth]


def test_the_lens_and_the_outliers_are_the_library_s(session, networks, photograph):
    vit = networks[0].own.model
    lens, found = sl.analysis.logit_lens(vit, [photograph], n=1), sl.analysis.outlier_tokens(vit, [photograph])
    (header, arrays), *_ = ask(session, "map", model=0, view="lens")
    assert header["target"] == lens.targets[0]
    np.testing.assert_allclose(header["answer"], lens.answer[0], atol=1e-5)
    np.testing.assert_array_equal(arrays["top"], lens.top[0, :, 1:])
    answer, _ = unpack(session.answer(0, "plain"))
    assert answer["outliers"] == [np.flatnonzero(o).tolist() for o in found.outlier[0]]
    (header, _), *_ = ask(session, "map", model=0, view="norms")
    np.testing.assert_allclose(header["peaks"], found.norm[0].max(-1), rtol=1e-5)


# what if


@pytest.mark.parametrize("off", [["head 1.2"], ["token 3", "token 60"], ["attention 0", "mlp 2", "prefix 0"]])
def test_a_switch_is_the_library_s(session, networks, photograph, off):
    frames = ask(session, "change", model=0, off=off, id="now")
    assert [h["do"] for h, _ in frames] == ["answer", "untouched", "changed"]
    said = frames[0][0]
    vit = networks[0].own.model
    with sl.observe.switch_off(vit, *off):
        wanted = sl.predict(vit, photograph)[0]
    np.testing.assert_allclose([row[2] for row in said["top"]], wanted.probabilities, atol=1e-5)
    whole = sl.predict(vit, photograph, top=10)[0]
    before = dict(zip(whole.indices, whole.probabilities))
    np.testing.assert_allclose(said["before"], [before[row[1]] for row in said["top"]], atol=1e-5)
    assert said["was"][:2] == [whole.names[0], pytest.approx(whole.probabilities[0], abs=1e-5)]
    for view in ("rollout", "gradient_rollout", "grad_cam", "lens", "features", "norms"):
        (header, found), *_ = ask(session, "map", model=0, view=view, changed=1)
        assert header["which"] == "changed"
        for patch in (3, 60) if view in ("rollout", "grad_cam") and "token 3" in off else ():
            assert found["map"].reshape(-1)[patch] == 0
    assert [h["do"] for h, _ in ask(session, "change", model=0, off=[])] == ["untouched", "untouched", "changed"]


def test_edits_and_sizes_change_both(session, networks, photograph):
    edits = [{"paint": [[0.2, 0.2], [0.6, 0.5]], "radius": 0.1}, {"move": [0, 0, 0.3, 0.3], "to": [0.5, 0.5]}]
    frames = ask(session, "change", model=0, size=48, edits=edits)
    assert [(h["do"], h.get("model")) for h, _ in frames[:2]] == [("answer", 0), ("answer", 1)]
    assert frames[0][0]["grid"] == [12, 12]
    edited = edit_image(photograph, edits)
    larger = sl.models.resize(networks[0].own.model, 48)
    wanted = sl.predict(larger, edited)[0], sl.predict(networks[1].own.model, edited)[0]
    for (said, _), one in zip(frames, wanted):
        np.testing.assert_allclose([row[2] for row in said["top"]], one.probabilities, atol=1e-5)
    text = ask(session, "python")[0][0]["text"]
    compile(text, "copied", "exec")
    assert "size=48" in text
    assert "edit_image" in text
    with pytest.raises(ValueError, match="is shown at"):
        ask(session, "change", model=0, size=10_000)


def test_what_is_copied_runs_and_says_the_same(networks, photograph, tmp_path, capsys):
    path = sl.save(networks[0].own.model, tmp_path / "vit.safetensors")
    photograph.save(tmp_path / "own.png")
    session = Session(open_networks([str(path)]), Gallery(str(tmp_path)))
    ask(session, "pick", number=0)
    edits = [{"paint": [[0.5, 0.5]], "radius": 0.2}]
    (said, _), *_ = ask(session, "change", model=0, off=["head 0.1"], size=48, edits=edits)
    exec(ask(session, "python")[0][0]["text"], {})
    printed = float(capsys.readouterr().out.split("probabilities=(")[1].split(",")[0])
    assert printed == pytest.approx(said["top"][0][2], abs=1e-5)
    ask(session, "pick", number=1)
    assert "scenes/objects" in ask(session, "python")[0][0]["text"]


def test_a_page_is_the_report_s(session):
    ask(session, "change", model=0, off=["head 1.0"])
    html = ask(session, "save")[0][0]["html"]
    assert "without head 1.0" in html
    for part in ('data-widget="headAttention"', 'data-widget="featurePca"', "const sightline", "<style>"):
        assert part in html
    assert "http://" not in html.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


def test_a_run_folder_has_a_slider_over_its_checkpoints(tmp_path, networks, photograph):
    assert checkpoints("vit-nano4") == []
    (tmp_path / "run.json").write_text("{}")
    sl.save(networks[0].own.model, tmp_path / "model.safetensors")
    sl.save(sl.build("vit-nano4", classes=10, depth=3, seed=5), tmp_path / "step-100.safetensors")
    shutil.copy(tmp_path / "step-100.safetensors", tmp_path / "step-20.safetensors")
    session = Session(open_networks([tmp_path]), Gallery())
    about = session.about()["models"][0]
    assert about["checkpoints"] == ["untrained", "step-20", "step-100", "model"]
    assert about["checkpoint"] == 3
    trained = unpack(next(session.upload(png(photograph))))[0]["top"]
    frames = ask(session, "change", model=0, checkpoint=2)
    assert frames[0][0]["which"] == "plain"  # another model, untouched
    early = sl.predict(sl.load(tmp_path / "step-100.safetensors"), photograph)[0]
    np.testing.assert_allclose([row[2] for row in frames[0][0]["top"]], early.probabilities, atol=1e-5)
    assert ask(session, "change", model=0, checkpoint=0)[0][0]["top"] != trained
    compile(ask(session, "python")[0][0]["text"], "copied", "exec")
    assert ask(session, "change", model=0, checkpoint=3)[0][0]["top"] == trained


def test_the_nearest_layers_come_from_saved_results(tmp_path, networks):
    a, b = (n.own for n in networks)
    found = sl.cka(a, b, torch.rand(8, 3, 32, 32), layers="blocks")
    found.save(tmp_path / "cka.npz")
    rows = nearest_layers(tmp_path, a, b)
    best = np.nanargmax(found.similarity, axis=1)
    assert [r["other"] for r in rows[0]] == best.tolist()
    assert rows[0][1]["cka"] == pytest.approx(np.nanmax(found.similarity[1]))
    assert nearest_layers(tmp_path, b, a)[1] == rows[0]
    with pytest.raises(ValueError, match="no CKA of these two"):
        nearest_layers(tmp_path, a, observe(sl.build("bit-nano", classes=3)))


def test_a_model_of_another_library_is_resized_and_one_without_classes_is_shown(photograph):
    made = resized(observe(sl.adopt(timm_model(), image=sl.ImageSpec(size=(32, 32)))), 48)
    assert made.image.size == (48, 48)
    assert run(made, photograph).attention.shape[-1] == made.prefix + made.grid[0] * made.grid[1]
    session = Session(open_networks([sl.build("vit-nano4", classes=0, depth=2)]), Gallery())
    (header, found), *_ = [unpack(f) for f in session.upload(png(photograph))]
    assert header["top"] == []
    assert found["from"].shape == (2, 4, 64)
    for view in ("grad_cam", "lens"):
        with pytest.raises(ValueError, match="no classes"):
            ask(session, "map", model=0, view=view)
    assert "predict" not in ask(session, "python")[0][0]["text"]


def test_a_mixer_has_fields_and_switches_but_no_attention(photograph):
    (network,) = open_networks([peers.fill(sl.build("mixer-nano4", classes=10, depth=2), std=0.2)])
    about = network.about()
    assert (about["kind"], about["blocks"], about["heads"], about["sizes"]) == ("mixer", 2, 0, [32])
    session = Session([network], Gallery())
    list(session.upload(png(photograph)))
    frames = {h["do"]: h for h, _ in ask(session, "change", model=0, off=["mixing 1"])}
    with sl.observe.switch_off(network.own.model, "mixing 1"):
        wanted = sl.predict(network.own.model, photograph)[0]
    np.testing.assert_allclose([row[2] for row in frames["answer"]["top"]], wanted.probabilities, atol=1e-5)
    header, found = ask(session, "map", model=0, view="field", depth=2, x=0.3, y=0.6)[0]
    assert header["depth"] == 2
    assert found["map"].any()


def test_opening_says_what_is_wrong(tmp_path):
    vit = sl.build("vit-nano4", classes=3)
    with pytest.raises(ValueError, match="one model or two"):
        sl.open_app(browser=False)
    with pytest.raises(ValueError, match="port is a number"):
        sl.open_app(vit, port=70_000, browser=False)
    running = sl.open_app(vit, browser=False, wait=False)
    port = int(running.address.split(":")[2].split("/")[0])
    with pytest.raises(ValueError, match="cannot be used"):
        sl.open_app(vit, port=port, browser=False)
    running.stop()
