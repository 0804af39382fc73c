import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from elman.cli import main
from elman.data import Batch
from elman.errors import InputError, MissingExtraError
from elman.run import load, train
from elman.tasks import plots
from elman.tasks.image.model import ImageModelConfig, Painter, Reader, build, levels, to_levels
from elman.tasks.image.task import Generate, ImageConfig, ImageDataConfig, ImageTask, generate
from elman.training.loop import TrainingConfig
from elman.training.optim import OptimConfig

SIDE = 5


def bars(n, seed=0):
    """Images of one vertical or horizontal bar of grey: easy to learn, and wrong where a pixel disagrees."""
    random = np.random.default_rng(seed)
    images = np.zeros((n, SIDE, SIDE), np.uint8)
    for image in images:
        place = random.integers(0, SIDE)
        (image if random.random() < 0.5 else image.T)[place] = 200
    return images


def write(path, images, key="images"):
    np.savez(path, **{key: images})
    return str(path)


def config(folder, **data):
    return ImageConfig(
        data=ImageDataConfig(train=write(folder / "train.npz", bars(200)), batch_size=20, **data),
        model=ImageModelConfig(size=8, hidden=16, kernel=3),
        optim=OptimConfig(lr=0.02, warmup=2),
        training=TrainingConfig(steps=8, log_every=2, evaluate_every=4),
        out=str(folder / "run"),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("image")
    given = config(folder, binarise="threshold", test=write(folder / "test.npz", bars(50, 1)))
    return folder, *train(replace(given, training=TrainingConfig(steps=120, evaluate_every=120)))


@pytest.mark.slow
def test_it_learns_and_says_so(trained, capsys):
    """There are ten images, so no model is better than log 10 nats."""
    folder, model, history = trained
    assert np.log(10) - 0.2 < history[-1]["test"] < np.log(10) + 0.6
    assert main(["evaluate", str(folder / "run"), str(folder / "test.npz"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"nats_per_image", "bits_per_dimension", "binarisation", "images"}
    assert found["nats_per_image"] == history[-1]["test"] and found["images"] == 50
    assert found["binarisation"] == "threshold"
    assert found["bits_per_dimension"] == pytest.approx(found["nats_per_image"] / SIDE**2 / np.log(2))
    assert main(["evaluate", str(folder / "run"), str(folder / "test.npz"), "--batch_size", "7"]) == 0
    assert "binarisation threshold" in " ".join(capsys.readouterr().out.split())
    assert (folder / "run" / "previews" / "120.png").read_bytes().startswith(b"\x89PNG")


def test_samples_have_the_probability_that_the_scan_gives_them(trained):
    _, model, _ = trained
    drawn = model.draw(20, seed=3)
    torch.testing.assert_close(drawn.log_prob, model.log_prob(drawn.images), rtol=0, atol=1e-4)
    bars_ = {tuple(image.flatten()) for image in bars(400) // 200}
    assert sum(tuple(image.flatten().tolist()) in bars_ for image in drawn.images) > 10  # it draws what it has seen


def test_an_image_is_the_same_in_any_batch(trained):
    _, model, _ = trained
    many = model.draw(5, seed=3)
    assert torch.equal(model.draw(2, seed=3).images, many.images[:2])
    assert not torch.equal(model.draw(5, seed=4).images, many.images)


def test_each_pixel_is_computed_once(trained, monkeypatch):
    """An image costs one pass: every layer sees every pixel once, and nothing is scanned again."""
    _, model, _ = trained
    calls, layer = [], model.model.core.layers[0].layer
    for half in (layer.left, layer.right):
        half.register_forward_hook(lambda *_: calls.append(1))
    monkeypatch.setattr(type(layer.left), "scan", lambda *given: pytest.fail("a sample is not scanned"))
    monkeypatch.setattr(type(model.model.core), "scan", lambda core, x: (x, core.init_state(len(x))))
    model.draw(3)
    assert len(calls) == 2 * SIDE * SIDE
    for half in (layer.left, layer.right):
        half._forward_hooks.clear()


@pytest.mark.parametrize("rows", [0, 2, 4])
def test_completions_go_on_from_the_upper_rows(trained, rows):
    _, model, _ = trained
    whole = levels(prepared_images(model, bars(3, 2)), range(3))
    drawn = model.draw(2, seed=1, above=whole[:, :rows])
    assert torch.equal(drawn.images[:, :rows], whole[:, :rows].repeat_interleave(2, 0))
    upper = model.model.scan(drawn.images)[0].each(drawn.images)[:, :rows].double().sum((1, 2))
    torch.testing.assert_close(drawn.log_prob, model.log_prob(drawn.images) - upper.detach(), rtol=0, atol=1e-4)


def prepared_images(model, images):
    from elman.tasks.image.data import Images

    return to_levels(Images(images, 255.0), model.reader.binarise, "here")


def test_generate_writes_a_grid_and_arrays(trained, tmp_path, capsys):
    folder, model, _ = trained
    run = str(folder / "run")
    assert main(["generate", run, "--count", "6", "--out", str(tmp_path / "grid.png"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 6 and len(found["nats"]) == 6
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")
    half = write(tmp_path / "half.npz", bars(2)[:, :3])
    out = str(tmp_path / "whole.npz")
    assert main(["generate", run, "--complete", half, "--count", "3", "--out", out, "--seed", "1"]) == 0
    assert "6 images in" in capsys.readouterr().out
    whole = np.load(out)["images"]
    assert whole.shape == (6, SIDE, SIDE)
    np.testing.assert_array_equal(whole[::3, :3], bars(2)[:, :3] // 200)
    assert main(["generate", run, "--count", "0", "--out", str(tmp_path / "none.png")]) == 2
    assert "count is 0" in capsys.readouterr().err
    assert main(["generate", run, "--out", out]) == 2  # it is not overwritten
    assert main(["generate", run, "--out", str(tmp_path / "grid.gif")]) == 2
    assert main(["generate", run, "--out", str(tmp_path / "no" / "grid.png")]) == 2
    whole_images = write(tmp_path / "all.npz", bars(2))
    assert main(["generate", run, "--complete", whole_images, "--out", str(tmp_path / "b.png")]) == 2
    assert "leave out those to be drawn" in capsys.readouterr().err
    assert not (tmp_path / "b.png").exists()


def test_matplotlib_is_looked_for_before_anything_is_drawn(tmp_path, monkeypatch):
    reader, model = Reader(4, 4, 1.0, "fixed"), ImageModelConfig(size=2)
    painter = Painter(build(model, reader), model, reader)

    def missing():
        raise MissingExtraError("matplotlib", "plot")

    monkeypatch.setattr(plots, "check_plot", missing)
    monkeypatch.setattr(Painter, "draw", lambda *given, **named: pytest.fail("it was drawn"))
    with pytest.raises(MissingExtraError):
        generate(painter, Generate(out=str(tmp_path / "grid.png")))


def test_a_grid_shows_each_image(tmp_path):
    from matplotlib.image import imread

    images = np.zeros((3, 2, 2), np.int64)
    images[1, 0, 1] = 4
    path = tmp_path / "grid.png"
    path.write_bytes(plots.grid(images, 4))
    seen = imread(path)[..., 0]
    side = len(seen) // 7  # 1 + 2 * (2 + 1) pixels, each so large
    small = seen[side // 2 :: side, side // 2 :: side][:7, :7]
    assert small[1, 5] == 1 and small[1, 4] == 0 and small[4, 1] == 0 and 0.3 < small[0, 0] < 0.5


def test_binarisations():
    from elman.tasks.image.data import Images

    images = Images(np.array([[[0, 50], [200, 255]]], np.uint8), 255.0)
    assert to_levels(images, "threshold", "here").tolist() == [[[0, 0], [1, 1]]]
    share = to_levels(images, "sampled", "here").expand(4000, 2, 2)
    drawn = levels(share, range(4000), seed=1)
    torch.testing.assert_close(drawn.double().mean(0), share[0].double(), atol=0.03, rtol=0)
    assert torch.equal(levels(share, [5, 3], 1), drawn[[5, 3]])
    assert not torch.equal(levels(share, range(4000), 1, epoch=1), drawn)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (bars(3)[:, :4], "holds images of 4 x 5 pixels; this model was trained on 5 x 5"),
        (np.full((2, SIDE, SIDE), np.nan), "has the value nan in row 0, column 0"),
        (np.full((2, SIDE, SIDE), 300.0), "has the value 300 .* the largest is 255"),
        (np.zeros((0, SIDE, SIDE)), "holds no image"),
    ],
)
def test_bad_images_are_said(trained, tmp_path, images, message):
    _, model, _ = trained
    with pytest.raises(InputError, match=message):
        model.reader([write(tmp_path / "bad.npz", images)])


@pytest.mark.parametrize("readout", ["categorical", "logistic"])
def test_grey_levels_are_drawn_as_they_are_scanned(readout):
    torch.manual_seed(0)
    reader, settings = Reader(3, 4, 16.0, "none"), ImageModelConfig(layer="row", size=3, readout=readout, layers=2)
    model = Painter(build(settings, reader), settings, reader)
    drawn = model.draw(9)
    assert 2 < drawn.images.unique().numel() <= 17 and drawn.images.max() <= 16
    torch.testing.assert_close(drawn.log_prob, model.log_prob(drawn.images), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_lens_looks_at_rows_of_pixels(trained, capfd, tmp_path):
    folder, model, _ = trained
    command = ["inspect", str(folder / "run"), str(folder / "test.npz"), "--rows", "6", "--at", "init", "--json"]
    capfd.readouterr()
    assert main([*command, "--out", str(tmp_path / "page.html")]) == 0
    here, begun = json.loads(capfd.readouterr().out)
    assert [part["layer"] for part in here["reach"]] == ["0 maskedconvolution", "1 diagonalbilstm"]
    assert here["steps"] == SIDE and here["rows"] == 6 and "row of pixels" in here["about"] and here["context"]
    images = levels(model.reader([str(folder / "test.npz")]), range(6))
    assert here["loss"] == pytest.approx(-float(model.log_prob(images).mean()) / SIDE, rel=1e-4)
    (panel,), (other,) = here["panels"], begun["panels"]
    assert panel["pixels"] == images[0].tolist() == other["pixels"]
    assert np.sum(panel["nats"]) == pytest.approx(-float(model.log_prob(images[:1])[0]), rel=1e-4)
    assert np.sum(other["nats"]) > np.sum(panel["nats"])  # fresh weights
    # Nothing stands before the first pixel, so what is behind it says nothing of it, and its two values share all of P.
    first, pixels = panel["nats"][0][0], images[:1].numpy()
    flipped, others = pixels.copy(), 1 - pixels
    flipped[0, 0, 0], others[0, 0, 0] = 1 - pixels[0, 0, 0], pixels[0, 0, 0]
    for name, given in (("flipped", flipped), ("others", others)):
        part = model.reader([write(tmp_path / f"{name}.npz", (200 * given).astype(np.uint8))])
        nats = ImageTask().inspect_inputs(model, part, 1, SIDE).sample.panels[0]["nats"][0][0]
        expected = first if name == "others" else -np.log(-np.expm1(-first))
        assert nats == pytest.approx(expected, rel=1e-4), name


@pytest.mark.slow
def test_the_lens_shows_the_leaf_that_the_loss_depends_on(trained):
    """The row below reads h alone: of the right half, which is the last, c leads nowhere."""
    from elman.lens import inspect

    folder, model, _ = trained
    report = inspect(*ImageTask().inspect_inputs(model, model.reader([str(folder / "test.npz")]), 4, SIDE)[:2])
    assert [part.leaf for part in report.traces] == ["above", "h"]
    assert bool((report.traces[1].flow > 0).any())


def test_a_run_begins_with_another_model(trained, tmp_path, capsys):
    folder, model, _ = trained
    command = ["train", "--task", "image", "--init_from", str(folder / "run"), "--training.steps", "1", "--optim.lr"]
    more = write(tmp_path / "more.npz", bars(40, 3))
    assert main([*command, "1e-9", "--data.train", more, "--out", str(tmp_path / "run")]) == 0
    assert "binarisation threshold" in capsys.readouterr().err
    tuned, images = load(tmp_path / "run"), model.reader([str(folder / "test.npz")])
    assert tuned.reader == model.reader and tuned.config == model.config
    torch.testing.assert_close(tuned.log_prob(images), model.log_prob(images))
    wide = write(tmp_path / "wide.npz", np.zeros((20, SIDE, SIDE + 1), np.uint8))
    assert main([*command, "1e-9", "--data.train", wide, "--out", str(tmp_path / "wide")]) == 2
    assert f"{SIDE} x {SIDE + 1} pixels, and the model that this run begins with" in capsys.readouterr().err


def test_images_of_one_seed_have_random_numbers_of_their_own():
    """All pixels are as likely black as white, so two images agree at half of them, however one is moved."""
    reader = Reader(8, 8, 1.0, "fixed")
    model = build(ImageModelConfig(size=2), reader)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    first, second = Painter(model, ImageModelConfig(size=2), reader).draw(2, seed=3).images.flatten(1)
    for moved in range(32):
        for a, b in ((first, second), (second, first)):
            assert 0.1 < float((a[moved:] == b[: 64 - moved]).float().mean()) < 0.9


def test_bits_are_for_each_pixel_of_images_that_are_not_square():
    reader = Reader(2, 3, 1.0, "fixed")
    model = build(ImageModelConfig(size=2), reader)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    found = Painter(model, ImageModelConfig(size=2), reader).evaluate(torch.ones(4, 2, 3, dtype=torch.uint8)).numbers
    assert found == {"nats_per_image": pytest.approx(6 * np.log(2)), "bits_per_dimension": pytest.approx(1.0)}


def test_the_loss_of_a_batch_is_the_sum_of_those_of_its_images():
    """Nats a pixel, a term for each image."""
    torch.manual_seed(0)
    reader = Reader(2, 3, 1.0, "fixed")
    painter = Painter(build(ImageModelConfig(size=2), reader), ImageModelConfig(size=2), reader)
    x = torch.randint(0, 2, (5, 2, 3))
    batches = [Batch(part, part, torch.zeros(len(part), 2, dtype=torch.bool), torch.full((len(part),), 2))
               for part in (x, x[:2], x[2:])]  # fmt: skip
    found = [ImageTask().loss(painter.model, batch, None) for batch in batches]
    assert [count for _, count, _ in found] == [5, 2, 3]
    assert found[0][0].item() == pytest.approx(-painter.log_prob(x).sum().item() / 6, rel=1e-5)
    assert found[0][0].item() == pytest.approx(found[1][0].item() + found[2][0].item(), rel=1e-5)
