"""The page in a real browser, Debian's chromium through playwright: where both are installed, and always in
`make test-browser`, which sets ELMAN_BROWSER=1: with that, a missing browser is a failure."""

import json
from dataclasses import replace

import pytest
import torch

import elman
from elman import lens
from elman.lens.document import render
from elman.lens.report import UnitTraces
from elman.nn.embed import Embedding
from elman.nn.readout import Softmax

TEXT = [*'A "quoted" word,\n<script>alert(1)</script> and (12) more & so on', "<img src=x onerror=alert(2)>"]
RIBBON = {
    "title": "Posterior <b>", "rows": ["state 0", "state 1"], "values": [[0.2] * len(TEXT), [0.8] * len(TEXT)],
    "path": ["state 1"] * len(TEXT), "table": {"header": ["", "stay"], "rows": [["state 0", "3"]]},
}  # fmt: skip

TREE = {
    "kind": "tree", "title": "Tree", "about": "A tree.", "labels": ["0", "1", "2"], "parents": [2, 2, 4, 4, -1],
    "place": [0.0, 1.0, 0.5, 2.0, 1.25], "height": [0.0, 0.0, 1.0, 0.0, 2.0],
    "words": ["it <b>", "works", "", "well", ""],
    "said": ["1", "1", "2", "0", "2"], "chance": [0.5, 0.6, 0.7, 0.8, 0.9], "truth": ["1", "1", "2", "2", "2"],
    "gradient": [0.01, 0.02, 0.1, 0.2, 0.5], "way": [0, 2, 4],
}  # fmt: skip

IMAGE = {
    "kind": "image", "title": "Image", "about": "An image.", "pixels": [[0, 1, 1], [1, 0, 0]], "white": 1,
    "nats": [[0.7, 0.1, 0.25], [0.5, 1.5, 0.0]],
}  # fmt: skip


def look(title, cell="gru"):
    torch.manual_seed(0)
    model = elman.SequenceModel(Embedding(9, 4), elman.stack(cell, 4, 6, layers=2), Softmax(6, 9))
    with torch.no_grad():
        for parameter in model.core.parameters():
            parameter.mul_(4)  # gates that shut and open, each unit at other times
    x = torch.randint(0, 9, (3, len(TEXT)))
    report = lens.inspect(model, x, x.roll(-1, 1), names=[TEXT] * 3, title=title)
    lines = [{"step": step, "update_ratio": 1e-3 * step, "lens_horizon": 3.0 * step} for step in (1, 2, 3)]
    own = {"model.cell": cell, "out": "</script>"}
    return replace(report, panels=(RIBBON, TREE, IMAGE), config=own, command="elman inspect <x>", training=lines)


@pytest.fixture(scope="module")
def report():
    return look("runs/book <i>")


@pytest.fixture(scope="module")
def folder(report, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    report.save(folder / "one.html")
    report.save(folder / "two.html", [look("other", "lstm")])
    return folder


class Visit:
    """A page that was opened from the disk, and what went wrong there."""

    def __init__(self, browser, path, width=1280, address="", scheme="light"):
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.wrong, self.asked = [], []
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(f"file://{path}{address}")
        self.page.wait_for_selector("html[data-ready=yes]")
        self.page.wait_for_timeout(150)


PAINTED = """() => [...document.querySelectorAll("canvas")].map(canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
  for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 24 ^ data[i + 1] << 16 ^ data[i + 2] << 8 ^ data[i + 3]);
  return seen.size;
})"""


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_it_opens_from_the_disk_and_asks_for_nothing(browser, folder, name, width, scheme):
    visit = Visit(browser, folder / f"{name}.html", width, scheme=scheme)
    assert visit.wrong == [] and visit.asked == [f"file://{folder / name}.html"]
    painted = visit.page.evaluate(PAINTED)
    assert len(painted) > 12 and min(painted) > 1, painted
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.page.close()


def test_the_panels_stand_in_their_order_and_strings_are_text(browser, folder):
    page = Visit(browser, folder / "one.html").page
    order = page.evaluate("[...document.querySelectorAll('section')].map(s => s.id)")
    assert order == [
        "verdict", "reach", "flow", "text", "context", "gates", "spectrum", "lyapunov", "task-0-0", "task-0-1",
        "task-0-2", "health", "config",
    ]  # fmt: skip
    assert page.locator("#strip span").nth(len(TEXT) - 1).inner_text() == TEXT[-1]
    assert page.locator("img, b.x, script:not([id])").count() == 6  # the scripts that stand in the file
    assert "runs/book <i>" in page.locator("h1").inner_text() and "<x>" in page.locator("pre").inner_text()
    page.close()


def shown(value):
    """As draw.js writes numbers: four digits."""
    if value is None:
        return "none"
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{mantissa}e{'-' if int(power) < 0 else '+'}{abs(int(power))}"
    return f"{float(f'{value:.4g}'):g}" if abs(value) < 1e4 else str(int(float(f"{value:.4g}")))


def test_numbers_on_the_screen_are_those_of_the_json(browser, folder, report):
    page, content = Visit(browser, folder / "one.html").page, report.to_json()
    cells = page.evaluate(
        "[...document.querySelectorAll('#reach .scroll tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    assert cells == [
        [r["layer"], *(shown(r[key]) for key in ("half_life", "horizon", "slope")), shown(r["raw"][0])]
        for r in content["reach"]
    ]
    assert page.locator("#verdict li").all_inner_texts() == content["verdict"]
    assert page.locator("#kind").inner_text() == content["kind"]
    with page.expect_download() as download:
        page.click("#json")
    assert json.loads(download.value.path().read_text()) == content
    page.close()


def test_a_click_on_a_unit_is_followed_by_every_panel(browser, folder, report):
    page = Visit(browser, folder / "one.html").page
    before = page.evaluate("[...document.querySelectorAll('canvas')].map(c => c.toDataURL())")
    colours = page.evaluate("[...document.querySelectorAll('#strip span')].map(s => s.style.background)")
    at = page.evaluate("lens.at.unit")
    place = {"x": 300, "y": 25 if at != 2 else 45}  # rows are ten pixels high
    page.locator("canvas[aria-label=flow-units]").click(position=place)
    unit = page.evaluate("lens.at.unit")
    assert unit != at and f"unit={unit}" in page.url and page.input_value("#unit") == str(unit)
    assert f"h {unit}" in page.inner_text("#chosen")
    assert page.evaluate("[...document.querySelectorAll('#strip span')].map(s => s.style.background)") != colours
    after = dict(zip(page.evaluate("[...document.querySelectorAll('canvas')].map(c => c.getAttribute('aria-label'))"),
                     zip(before, page.evaluate("[...document.querySelectorAll('canvas')].map(c => c.toDataURL())"),
                         strict=True), strict=True))  # fmt: skip
    for name in ("flow-units", "states", "gate-0", "gate-1", "timescales"):
        assert after[name][0] != after[name][1], f"{name} did not follow"
    page.click(".chips button >> nth=3")
    assert page.evaluate("lens.at.unit") == int(page.get_attribute(".chips button >> nth=3", "data-unit"))
    page.close()


def test_a_tree_is_drawn_with_its_words_and_a_click_on_its_way_chooses_a_step(browser, folder):
    page = Visit(browser, folder / "one.html").page
    canvas = page.locator("#task-0-1 canvas").first
    drawn = "() => document.querySelector('#task-0-1 canvas').toDataURL()"
    by_label = page.evaluate(drawn)
    page.locator("#task-0-1 button[data-tree=gradient]").click()
    assert page.evaluate(drawn) != by_label
    box = canvas.bounding_box()
    canvas.hover(position={"x": 12, "y": 20 * 1.75 + 4})  # the root
    assert page.locator(".tip").inner_text() == "says 2 (90 %), is 2, |dL/ds| 0.5 for the loss at the root"
    canvas.click(position={"x": 12, "y": 20 * 1.75 + 4})
    assert "t=2" in page.url and box["height"] == 3 * 20 + 8
    with page.expect_download() as found:
        page.locator("#task-0-1 .head button", has_text="SVG").click()
    text = found.value.path().read_text()
    assert "it &#60;b&#62;" in text and "<b>" not in text
    page.close()


def test_an_image_tells_what_each_pixel_costs(browser, folder):
    page = Visit(browser, folder / "one.html").page
    canvas = page.locator("#task-0-2 canvas").nth(1)
    size = canvas.bounding_box()["height"] - 4
    canvas.hover(position={"x": size * 0.75, "y": size * 0.75})  # of two rows and three columns
    assert page.locator(".tip").inner_text() == "row 1, column 1: level 0, 1.5 nats"
    canvas.click(position={"x": size * 0.75, "y": size * 0.75})
    assert "t=1" in page.url
    page.close()


def test_addresses_lead_to_what_was_chosen_and_pictures_can_be_saved(browser, folder):
    visit = Visit(browser, folder / "two.html", address="#report=1&layer=1&unit=4&t=50&colour=gradient")
    page = visit.page
    assert page.evaluate("JSON.stringify(lens.at)") == '{"report":1,"layer":1,"unit":4,"t":50,"colour":"gradient"}'
    assert page.locator("#strip span.here").count() == 1
    assert page.get_attribute("[data-kind=gradient]", "aria-pressed") == "true"
    for panel, name, start in (("#reach", "PNG", b"\x89PNG"), ("#reach", "SVG", b"<svg"), ("#flow", "SVG", b"<svg")):
        with page.expect_download() as download:
            page.click(f"{panel} .head button:has-text('{name}')")
        assert download.value.path().read_bytes().startswith(start)
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark" and visit.wrong == []
    page.close()


def test_odd_reports_are_shown_too(browser, tmp_path):
    """One unit and one step; a state that is not a number; no state at all."""
    broken = elman.cell("gru", 2, 3)
    with torch.no_grad():
        broken.b[0] = torch.nan
    for core, steps in ((elman.cell("gru", 2, 1), 1), (broken, 9), (elman.Dense(2, 3), 9)):
        lens.inspect(core, torch.randn(2, steps, 2)).save(tmp_path / "odd.html")
        visit = Visit(browser, tmp_path / "odd.html")
        assert visit.wrong == [] and visit.page.locator("section").count() >= 7
        visit.page.close()


@pytest.mark.slow
def test_a_policy_names_the_scripts_and_nothing_closes_them_early(report):
    text = render([report])
    assert "default-src 'none'" in text and text.count("'sha256-") == 8 and "unsafe" not in text.partition("</head>")[0]
    assert text.count("<script") == 7 and text.count("</script>") == 7
    assert "alert(" not in text  # texts are inside the packed data
    assert "Leon Sorokin" in text and "Permission is hereby granted" in text


def test_a_thousand_steps_of_512_units_are_less_than_a_megabyte_and_a_half(report):
    torch.manual_seed(0)
    wide = UnitTraces("0 gru", "h", list(range(512)), torch.randn(1000, 512).cumsum(0).tanh(), torch.rand(250, 512))
    page = render([replace(report, traces=[wide])])
    assert len(page) < 1_500_000, len(page)


def test_a_page_that_cannot_be_written(report, tmp_path):
    with pytest.raises(elman.errors.FileError, match="cannot write the page"):
        report.save(tmp_path / "missing" / "report.html")
