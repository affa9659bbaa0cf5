"""Reports in a real browser: nothing fails, every view works, and figures are the simulation's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium, console, keep_screenshot, look, open_page
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.expected_conditions import url_contains
from selenium.webdriver.support.wait import WebDriverWait

import flexlegion as fl
from flexlegion.console.text import duration, memory

MOST_BYTES = 3_000_000
# Until a click has its effect, which a busy machine delays.
MOST_SECONDS = 20
TORCH = "scripts/examples/torch_net.py:model"
VIEWS = ("times", "graph", "devices", "timeline", "memory", "links", "why", "search", "sources")


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def nmt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A strategy that was searched for, and its report: the same path, but ``.html``."""
    path = tmp_path_factory.mktemp("found") / "nmt.json"
    fl.search("nmt", "p100x16", "3s", progress=False).save(path)
    fl.report_on("nmt", "p100x16", path, progress=False).save(path.with_suffix(".html"))
    return path


def opened(browser: WebDriver, page: Path, width: int = 1280, dark: bool = False) -> dict[str, Any]:
    """Open a page; its figures."""
    look(browser, width, dark)
    open_page(browser, page)
    data = browser.find_element(By.ID, "data").get_attribute("textContent")
    assert data is not None
    result = json.loads(data)
    assert isinstance(result, dict)
    return result


def check(browser: WebDriver, page: Path, model: str, machine: str, strategy: Any) -> None:
    """What is true of every report."""
    assert page.stat().st_size < MOST_BYTES
    data = opened(browser, page)
    simulated = fl.simulate(model, machine, strategy)
    facts = json.loads(simulated.to_json())
    assert {key: data["facts"][key] for key in facts} == facts
    heading = browser.find_element(By.TAG_NAME, "header").text
    assert duration(simulated.iteration_time_ns) in heading
    for number, nodes in enumerate(data["graphs"]):
        drawn = browser.find_elements(By.CSS_SELECTOR, f"[data-level='{number}'] .node")
        assert len(drawn) == len(nodes)
        operators = sum(node["operators"] for node in nodes)
        assert operators == len(simulated.setting.problem.graph.operators)
    tracks = data["timeline"]["devices"]
    assert [track["name"] for track in tracks] == list(simulated.setting.problem.devices.names)
    for track in tracks:
        busy = sum(track["track"][1::4])
        assert busy == simulated.timeline.load_ns[track["name"]]
    rows = browser.find_elements(By.CSS_SELECTOR, "#memory tbody tr")
    held = simulated.timeline.allocated_bytes
    assert 1 <= len(rows) <= len(held)  # equal ones are one row
    assert len(rows) >= len(set(map(memory, held.values())))
    wide = browser.execute_script(
        """return [...document.querySelectorAll(".level:not([hidden]) .scroll")].map(
            (place) => [place.scrollWidth, place.clientWidth, place.querySelector("svg").viewBox
                .baseVal.width])"""
    )
    for all_of_it, seen, natural in wide:  # a picture is drawn smaller before it has to be scrolled
        assert all_of_it <= max(seen, 0.75 * natural)
    click_everything(browser)
    assert console(browser) == []


def click_everything(browser: WebDriver) -> None:
    """Each view by its link, each button, each layer."""
    for view in VIEWS:
        link = browser.find_element(By.CSS_SELECTOR, f"nav a[href='#{view}']")
        link.click()
        WebDriverWait(browser, MOST_SECONDS).until(url_contains(f"#{view}"))
        section = browser.find_element(By.ID, view)
        assert section.is_displayed()
    for button in browser.find_elements(By.CSS_SELECTOR, "main button"):
        browser.execute_script("arguments[0].click()", button)
    for node in browser.find_elements(By.CSS_SELECTOR, ".level:not([hidden]) .node")[:40]:
        browser.execute_script(
            "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", node
        )
        name = node.get_attribute("aria-label")
        assert name is not None
        title = browser.find_element(By.CSS_SELECTOR, "#node h3").text
        assert name.startswith(title.split(" ×")[0])


def test_a_strategy_that_was_searched_for(browser: WebDriver, nmt: Path, tmp_path: Path) -> None:
    page = nmt.with_suffix(".html")
    check(browser, page, "nmt", "p100x16", str(nmt))
    for width in (360, 1280, 3840):
        for dark in (False, True):
            opened(browser, page, width, dark)
            scrolled = "return document.documentElement.scrollWidth"
            assert browser.execute_script(scrolled) <= width
            keep_screenshot(browser, tmp_path, f"nmt-{width}-{'dark' if dark else 'light'}")
            background = browser.find_element(By.TAG_NAME, "body").value_of_css_property(
                "background-color"
            )
            assert background.startswith("rgba(15," if dark else "rgba(246,")
    assert console(browser) == []


def test_views_are_reached_by_keyboard(browser: WebDriver, nmt: Path) -> None:
    opened(browser, nmt.with_suffix(".html"))
    reached = set()
    for _ in range(200):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        at = browser.switch_to.active_element
        if at.tag_name == "body":
            break
        reached.add(at.get_attribute("hash") or at.get_attribute("id") or at.tag_name)
        if at.tag_name == "g":
            at.send_keys(Keys.ENTER)
            assert at.get_attribute("aria-pressed") == "true"
    assert {f"#{view}" for view in VIEWS} <= reached
    assert {"theme", "simulated", "linkloads", "g", "button"} <= reached
    span = browser.find_element(By.ID, "span").text
    canvas = browser.find_element(By.ID, "simulated")
    ActionChains(browser).scroll_to_element(canvas).perform()
    browser.execute_script("arguments[0].focus()", canvas)
    for key in ("+", Keys.ARROW_RIGHT, Keys.ARROW_DOWN, "."):
        ActionChains(browser).send_keys(key).perform()
    assert browser.find_element(By.ID, "span").text != span
    assert browser.find_element(By.ID, "task").text.startswith("gpu:1: ")
    assert console(browser) == []


def test_many_operators(browser: WebDriver, tmp_path: Path) -> None:
    page = tmp_path / "inception.html"
    fl.report_on("inception_v3", "p100x16", "expert", progress=False).save(page)
    check(browser, page, "inception_v3", "p100x16", "expert")
    keep_screenshot(browser, tmp_path, "inception")


def test_an_imported_model(browser: WebDriver, tmp_path: Path) -> None:
    page = tmp_path / "imported.html"
    fl.report_on(TORCH, "a100x4", "model", progress=False).save(page)
    check(browser, page, TORCH, "a100x4", "model")
    keep_screenshot(browser, tmp_path, "imported")


def test_hostile_names_are_text(browser: WebDriver, tmp_path: Path) -> None:
    hostile = "</script><script>document.title='x'</script><img src=x onerror=alert(1)>"
    model = fl.Model(8)
    x = model.input((4,), name='"><svg onload=alert(2)>')
    model.softmax(model.dense(x, 3, name=hostile), name="'&lt;{{ 7 * 7 }}")
    result = fl.report_on(model, "p100x2", "data", progress=False)
    result.save(tmp_path / "hostile.html")
    opened(browser, tmp_path / "hostile.html")
    click_everything(browser)
    assert browser.find_elements(By.CSS_SELECTOR, "img, main script, [onload], [onerror]") == []
    assert browser.title == "model (batch 8) on p100x2"
    assert "{{ 7 * 7 }}" in browser.find_element(By.ID, "graph").text
    result.picture.save(tmp_path / "hostile.svg")
    text = (tmp_path / "hostile.svg").read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    open_page(browser, tmp_path / "hostile.svg")  # an XML parser, which forgives nothing
    assert browser.find_element(By.TAG_NAME, "svg").is_displayed()
    assert console(browser) == []
