"""A report's page in Chromium with the network off: it asks for nothing, and its curves answer. Needs playwright."""

import dataclasses
import shutil

import pytest

from plm_jax.experiments import report
from tests.support import logs, tiny

api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")
HARMFUL = "<img src=x onerror=alert(1)>"


def run_of(seed, rate=1e-3):
    train = dataclasses.replace(tiny.PLAIN.train, steps=60, seed=seed)
    schedule = dataclasses.replace(tiny.PLAIN.schedule, learning_rate=rate)
    return dataclasses.replace(tiny.PLAIN, train=train, schedule=schedule)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A page about a run, three seeds of another, and one with markup in its name and no times of steps."""
    folder = tmp_path_factory.mktemp("report")
    evaluation = [{"step": step, "s/accuracy": step / 100} for step in (30, 60)]
    paths = [logs.write(folder / "one", logs.rows(60), run_of(0, 2e-3), evaluation)]
    paths += [logs.write(folder / f"many-seed{seed}", logs.rows(60, seed), run_of(seed)) for seed in (0, 1, 2)]
    untimed = [{k: v for k, v in row.items() if k != "train/step_seconds"} for row in logs.rows(60)]
    paths.append(logs.write(folder / HARMFUL, untimed, run_of(0, 3e-3)))
    report.write(paths, str(folder / "report.html"))
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium():
    with api.sync_playwright() as playwright:
        # As root in a container, where tests may run, there is no sandbox.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(params=[1280, 390], ids=["desk", "phone"])
def page(request, path, chromium):
    """The page at a width; at the end nothing was asked for but itself, and nothing went wrong."""
    context = chromium.new_context(viewport={"width": request.param, "height": 800}, offline=True)
    page, wrong, asked = context.new_page(), [], []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asking: asked.append(asking.url))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.goto(path.as_uri())
    page.wait_for_selector(".curve")
    yield page
    page.wait_for_timeout(50)
    assert (wrong, asked) == ([], [path.as_uri()])
    context.close()


def paths(page, selector=".card.first .curve"):
    """What is drawn: the lines of the first picture."""
    return page.eval_on_selector_all(selector, "found => found.map(path => path.getAttribute('d'))")


def label(page):
    return page.text_content(".card.first svg .name")


def test_nothing_stands_beyond_the_window_and_no_name_is_markup(page):
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert page.locator("img").count() == 0 and page.locator(f'text="{HARMFUL}"').count() >= 2
    # Three variants, each with its validation.
    assert len(paths(page)) == 6 and all(path.startswith("M") and "NaN" not in path for path in paths(page))


def test_each_axis_draws_other_curves(page):
    drawn = {"step": paths(page)}
    assert label(page) == "step"
    for axis, said in (
        ("tokens", "tokens, including padding"),
        ("flops", "model FLOPs"),
        ("seconds", "time of steps, seconds"),
    ):
        page.click(f"[data-axis={axis}]")
        assert label(page) == said and page.get_attribute(f"[data-axis={axis}]", "aria-pressed") == "true"
        drawn[axis] = paths(page)
    # All steps are alike, so other axes are other units of one line; but one run's times are not known.
    assert drawn["step"] == drawn["tokens"] == drawn["flops"]
    assert len(drawn["seconds"]) == 4 and "not logged" in page.text_content(".panel")
    page.click("#log-x")
    assert paths(page) != drawn["seconds"]
    before = paths(page)
    page.click(".card.first header button")
    assert paths(page) != before


def test_the_legend_hides_runs_and_smoothing_smooths(page):
    before = paths(page)
    page.click(".chip >> text=many ×3")
    assert page.get_attribute(".chip >> nth=1", "aria-pressed") == "false"
    assert len(paths(page)) == 4
    page.click("text=none")
    assert paths(page) == []
    page.click("text=all")
    assert paths(page) == before
    page.locator("input[type=range]").fill("0.9")
    assert paths(page) != before and len(paths(page, ".card.first .raw")) == 2  # Of a mean of seeds there is none.


def test_seeds_are_a_mean_and_a_band_or_lines_of_their_own(page):
    assert len(paths(page, ".card.first [fill-opacity]")) == 2 and page.locator(".chip").count() == 3
    page.click("text=Individual seeds")
    assert len(paths(page)) == 10 and page.locator(".chip").count() == 5
    assert paths(page, ".card.first [fill-opacity]") == []


def test_what_is_pointed_at_is_told(page):
    chart = page.locator(".card.first .plot > svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    tooltip = page.text_content(".card.first .tooltip")
    assert tooltip.startswith("step ") and "many ×3" in tooltip and HARMFUL in tooltip
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 40)
    assert not page.is_visible(".card.first .tooltip")


def test_a_picture_shows_the_measure_that_is_chosen(page):
    card = page.locator(".card", has_text="Other metrics")
    select = card.locator("select")
    assert select.locator("option").all_text_contents() == ["accuracy", "a/loss", "b/loss"]
    before = card.locator(".curve").first.get_attribute("d")
    caption = card.locator("header small")
    assert caption.text_content() == "%; dashed: validation"
    select.select_option("a/loss")
    assert caption.text_content() == "dashed: validation"
    assert card.locator(".curve").first.get_attribute("d") != before
