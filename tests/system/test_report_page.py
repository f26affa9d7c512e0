"""The page of a report in a browser: it sorts, reads values by pointer and keys, asks for nothing, fits a phone."""

import json
import re

import pytest
from browser import CHROMIUM, Browser
from report_runs import add_details, make_run

from fedfeat.commands.report import main

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
EVIL = "<img src=//e.eu onerror=alert(1)>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three methods, one of which would be a picture if it were not text."""
    folder = tmp_path_factory.mktemp("runs")
    for method, acc in (("fedavg", 0.5), ("fed2", 0.6), (EVIL, 0.4)):
        for seed in range(3):
            published = {"global/acc": 0.65}
            run = make_run(
                folder / method[:6] / str(seed), seed, method, acc + 0.1 * seed, published=published
            )
            add_details(run, seed, classes=(EVIL, "b"))
    main([str(folder), "--x", "algorithm", "--html", "--out", str(folder / "out")])
    return folder / "out" / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def column(browser, number):
    cells = f"[...document.querySelectorAll('#settings tbody tr')].map(r => r.cells[{number}].textContent)"
    return browser.value(cells)


def test_tables_sort_by_numbers_and_by_words_there_and_back(page, browser):
    browser.open(page)
    before = column(browser, 0)
    browser.click("#settings th:nth-child(3) button")
    assert [text[:4] for text in column(browser, 2)] == ["0.7 ", "0.6 ", "0.5 "]
    assert browser.value("document.querySelector('#settings th:nth-child(3)').ariaSort") == "descending"
    browser.click("#settings th:nth-child(3) button")
    assert [text[:4] for text in column(browser, 2)] == ["0.5 ", "0.6 ", "0.7 "]
    browser.click("#settings th:nth-child(1) button")
    assert column(browser, 0) == sorted(before)
    browser.value("document.querySelector('#settings th:nth-child(1) button').focus()")
    assert browser.value("document.querySelectorAll('#settings [aria-sort]').length") == 1


def legend(browser):
    texts = "l => [l.querySelector('span').textContent, l.lastChild.textContent]"
    return dict(browser.value(f"[...document.querySelectorAll('.legend li')].map({texts})"))


def test_curves_are_read_by_pointer_and_by_keys(page, browser):
    """Accuracies grow evenly from round 0 to 4; fed2 ends at 0.6, 0.7 and 0.8."""
    browser.open(page)
    assert set(legend(browser).values()) == {""}
    browser.move(".chart", 0.999)
    assert legend(browser) == {"fedavg": "0.6 ± 0.1", "fed2": "0.7 ± 0.1", EVIL: "0.5 ± 0.1"}
    assert browser.value("document.querySelector('#curves .where').textContent") == "round: 4"
    browser.value("document.querySelector('.chart').focus()")
    browser.press("ArrowLeft")
    assert legend(browser)["fed2"] == "0.525 ± 0.075"
    assert "round: 3: " in browser.value("document.querySelector('#curves [aria-live]').textContent")
    browser.press("Home")
    browser.press("ArrowRight")
    assert legend(browser)["fed2"] == "0.175 ± 0.025"
    browser.press("Escape")
    assert set(legend(browser).values()) == {""}


def test_curves_hide_and_change_their_axis(page, browser):
    browser.open(page)
    assert browser.value("document.querySelectorAll('.chart .line').length") == 3
    browser.click(".legend li:nth-child(2) button")
    assert browser.value("document.querySelectorAll('.chart .line').length") == 2
    browser.value(
        "(list => { list.value = 'bytes'; list.dispatchEvent(new Event('change')); })"
        "(document.querySelectorAll('.controls select')[1])"
    )
    browser.move(".chart", 0.999)
    assert browser.value("document.querySelector('#curves .where').textContent").endswith("4 k")


def test_cells_and_clients_are_read_by_pointer_and_by_keys(page, browser):
    browser.open(page)
    browser.move("#splits canvas", 0.25, 0.5)
    text = "document.querySelector('#splits .where').textContent"
    assert browser.value(text) == f"client 1, class {EVIL}: 20 training examples of 20"
    browser.value("document.querySelector('#maps canvas').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        browser.press(key)
    said = browser.value("document.querySelector('#maps .where').textContent")
    # Client 1 has the classes 0, 1, none and 0; neuron 1 is of class 1.
    assert said == "client 1, neuron 1: class b"
    browser.value("document.querySelector('#clients .strip').focus()")
    browser.press("End")
    assert "accuracy 0.75, 3" in browser.value(
        "document.querySelector('#clients > .host > .where').textContent"
    )


@pytest.mark.parametrize(("width", "height", "mobile"), [(390, 844, True), (1280, 900, False)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_is_readable(page, browser, width, height, mobile, scheme):
    """Nothing but what scrolls by itself is wider than the window; text is far from its background."""
    browser.open(page, width, height, scheme, mobile)
    assert browser.value("document.documentElement.scrollWidth") == width
    colors = browser.value("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
    text, back = (sum(map(int, re.findall(r"\d+", color))) / 765 for color in colors)
    assert (text < 0.2 and back == 1) if scheme == "light" else (text > 0.8 and back < 0.2)


def test_on_paper_it_is_light_and_shows_whole_tables(page, browser):
    browser.open(page, 718, 1000, "dark")
    browser.media("dark", "print")
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.value("getComputedStyle(document.querySelector('.scroll')).overflow") == "visible"
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.media()


def test_it_asks_for_nothing_and_runs_nothing_of_the_runs(page, browser):
    """Also not where a script would: the policy stops it."""
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(page)
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.complaints == []
    assert browser.value("[...document.images].every(i => i.src.startsWith('data:') && i.naturalWidth > 0)")
    assert EVIL in column(browser, 0)
    assert browser.value("document.querySelectorAll('script').length") == 2
    browser.requests.clear()
    browser.value("document.body.append(Object.assign(new Image(), {src: 'https://e.eu/a.png'}))")
    browser.value(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.evil = 1'}))"
    )
    assert browser.value("typeof window.evil") == "undefined"
    assert not [url for url in browser.requests if "e.eu" in url]
    assert any("Content Security Policy" in text for text in browser.complaints), json.dumps(
        browser.complaints
    )
