"""What a browser draws of a page: link rows, read from their pixels, and the labels of charts."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from chromium import chromium, console, look, open_page
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

import flexlegion as fl
from flexlegion.cli.main import main
from flexlegion.report.html.measurements import accuracy_page, tune_page
from flexlegion.report.html.page import save_page
from flexlegion.report.html.tracks import LINK_BINS, LINKS_DRAWN

Floats = npt.NDArray[np.float64]

# Of a load between 0 and 1: colours have 8 bits, and the page's data thousandths.
TOLERANCE = 0.012


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    with chromium() as opened:
        yield opened


def loads_of_trace(path: Path) -> dict[str, Floats]:
    """For each link of a trace, which share of each bin it is busy."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    end = max(e["ts"] + e["dur"] for e in slices)
    edges = np.linspace(0, end, LINK_BINS + 1)
    loads: dict[str, Floats] = {}
    for e in slices:
        if e["cat"] == "transfer":
            begin, stop = (
                np.clip(edges[:-1], e["ts"], None),
                edges[1:].clip(None, e["ts"] + e["dur"]),
            )
            row = loads.setdefault(names[e["tid"]], np.zeros(LINK_BINS))
            row += (stop - begin).clip(0) / (end / LINK_BINS)
    return loads


class LinkRows:
    """The canvas of links as it is on the screen."""

    def __init__(self, browser: WebDriver, scale: int) -> None:
        self.scale = scale
        place = browser.execute_script(
            """const canvas = document.getElementById("linkloads");
            canvas.scrollIntoView({block: "center"});
            const { x, y, width, height } = canvas.getBoundingClientRect();
            const style = getComputedStyle(document.documentElement);
            const move = (at) => canvas.dispatchEvent(
                new PointerEvent("pointermove", {clientX: x + at, clientY: y + 8, bubbles: true}));
            const tip = document.getElementById("tip");
            // Labels are to the left of what is drawn, and there nothing is told.
            let left = 0;
            for (tip.hidden = true; tip.hidden && left < width; left++) move(left);
            tip.hidden = true;
            const rem = parseFloat(style.fontSize);
            const colour = (name) => {
                const pen = document.createElement("canvas").getContext("2d");
                pen.fillStyle = style.getPropertyValue(name).trim();
                pen.fillRect(0, 0, 1, 1);
                return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
            };
            return { x: x + scrollX, y: y + scrollY, width, height, left: left - 1,
                row: Math.max(Math.round(rem), 8),
                link: colour("--link"), ground: colour("--bg") };"""
        )
        x, y = int(place["x"]), int(place["y"])
        size = {"width": place["width"] + 1, "height": place["height"] + 1, "scale": 1}
        shot = browser.execute_cdp_cmd(
            "Page.captureScreenshot",
            {"format": "png", "clip": {"x": x, "y": y} | size, "captureBeyondViewport": True},
        )
        image = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
        right, down = round((place["x"] - x) * scale), round((place["y"] - y) * scale)
        self.pixels = np.asarray(image, np.float64)[down:, right:]
        self.left = place["left"] * scale
        self.columns = round(place["width"] * scale) - self.left
        self.row_height = place["row"] * scale
        self.link, self.ground = (np.asarray(place[key], float) for key in ("link", "ground"))

    def drawn(self, number: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """The load that each column of pixels of a row shows; and where no line of a time is."""
        begin, end = number * self.row_height, (number + 1) * self.row_height
        # Between rows are lines of times alone. The canvas begins and ends with the page's colour.
        row, between = (
            self.pixels[at, self.left : self.left + self.columns]
            for at in ((begin + end) // 2, begin if number else end - 1)
        )
        direction = self.link - self.ground
        opacity = (row - self.ground) @ direction / (direction @ direction)
        load = ((opacity - 0.12) / 0.88).clip(0)
        line = np.abs(between - self.ground).max(axis=1) > 1
        return load, ~(line | np.roll(line, 1) | np.roll(line, -1))


def compare(
    browser: WebDriver, loads: dict[str, Floats], scale: int, part: tuple[float, float]
) -> int:
    """Every column of every row that is drawn against a trace; how many rows there are.

    `part` is the visible part of the iteration: where it begins and ends, from 0 to 1.
    """
    rows = LinkRows(browser, scale)
    names = browser.find_elements(By.CSS_SELECTOR, "#links tbody th")
    drawn = [name.get_attribute("textContent") or "" for name in names][:LINKS_DRAWN]
    edges = np.linspace(part[0], part[1], rows.columns + 1) * LINK_BINS
    bins = edges.astype(int)
    for number, name in enumerate(drawn):
        so_far = np.concatenate([[0], np.cumsum(loads[name])])
        wanted = np.diff(np.interp(edges, np.arange(LINK_BINS + 1), so_far)) / np.diff(edges)
        load, clear = rows.drawn(number)
        # The canvas may begin within a pixel of the screen: one may show a bit of the next.
        near = np.stack([np.roll(wanted, shift) for shift in (-1, 0, 1)])
        low, high = near.min(axis=0) - TOLERANCE, near.max(axis=0) + TOLERANCE
        wrong = np.flatnonzero(clear & ((load < low) | (load > high)))
        assert not len(wrong), (name, wrong[:9], load[wrong[:9]], wanted[wrong[:9]])
        if rows.columns > 3 * len(set(bins)):
            missing = set(bins[:-1]) - set(bins[:-1][clear])
            assert not missing, (name, missing)
    return len(drawn)


@pytest.mark.parametrize(
    ("model", "machine", "strategy"),
    [
        ("nmt", "p100x16", "expert"),
        ("lenet", "p100x4", "model"),
    ],
)
def test_link_rows_agree_with_the_trace_in_every_bin(
    browser: WebDriver, tmp_path: Path, model: str, machine: str, strategy: str
) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    asked = ["--model", model, "--machine", machine]
    assert main(["report", strategy, *asked, "--out", str(page)]) == 0
    assert main(["simulate", *asked, "--strategy", strategy, "--trace", str(trace)]) == 0
    loads = loads_of_trace(trace)
    assert any(((load > 0.05) & (load < 0.95)).any() for load in loads.values())
    look(browser, 3840)  # five pixels a bin
    open_page(browser, page)
    assert compare(browser, loads, 1, (0, 1)) == min(len(loads), LINKS_DRAWN)
    for _ in range(3):
        browser.execute_script("document.querySelector('[data-zoom=in]').click()")
    compare(browser, loads, 1, (7 / 16, 9 / 16))
    look(browser, 420, dark=True, scale=2)  # less than a pixel a bin
    open_page(browser, page)
    compare(browser, loads, 2, (0, 1))
    assert console(browser) == []


# What is drawn as a text has to lie within its picture, and apart from other texts.
TEXTS = """
return [...document.querySelectorAll("svg.chart")].map((chart) => {
    const outer = chart.getBoundingClientRect();
    return [...chart.querySelectorAll("text")].map((text) => {
        const { left, right, top, bottom } = text.getBoundingClientRect();
        return { text: text.textContent, left: left - outer.left, right: outer.right - right,
            top: top - outer.top, bottom: outer.bottom - bottom,
            box: [left, right, top, bottom] };
    }).filter(({ box }) => box[1] > box[0]);
});
"""


def check_labels(browser: WebDriver, page: Path) -> list[str]:
    """All labels of a page's charts are complete; their texts."""
    texts = []
    for width in (700, 1280, 3840):
        look(browser, width)
        open_page(browser, page)
        for chart in browser.execute_script(TEXTS):
            assert chart
            for label in chart:
                margins = [label[side] for side in ("left", "right", "top", "bottom")]
                assert min(margins) >= 0, (width, label)
                texts.append(label["text"])
            boxes = sorted((label["box"], label["text"]) for label in chart)
            for number, (one, text) in enumerate(boxes):
                for other, another in boxes[number + 1 :]:
                    apart_in_x = one[1] <= other[0] or other[1] <= one[0]
                    # Lines of text may touch where they have their ascents and descents.
                    low, high = max(one[2], other[2]), min(one[3], other[3])
                    assert apart_in_x or high - low < 6, (width, text, another)
    return texts


def story(times: list[int]) -> dict[str, Any]:
    trace = [[10 * number, time] for number, time in enumerate(times, 1)]
    return {"start_times_ns": {"data": times[0]}, "iteration_time_ns": times[-1], "trace": trace}


@pytest.mark.parametrize(
    ("times", "labels"),
    [
        ([245_400_000, 180_000_000, 101_700_000], ["245.4 ms", "101.7 ms"]),
        ([1_234_000_000_000, 1_233_000_000_000], ["1,234 s", "1,233 s"]),
        ([999_900, 888], ["999.9 us", "888 ns"]),
    ],
)
def test_labels_of_a_search_are_complete(
    browser: WebDriver, tmp_path: Path, times: list[int], labels: list[str]
) -> None:
    path = tmp_path / "found.json"
    fl.search("lenet", "p100x2", proposals=1, chains=1, progress=False).save(path)
    found = json.loads(path.read_text())
    found["found"] = {**found.get("found", {}), **story(times)}
    path.write_text(json.dumps(found))
    page = tmp_path / "page.html"
    fl.report_on("lenet", "p100x2", path, progress=False).save(page)
    assert set(labels) <= set(check_labels(browser, page))


def test_labels_of_what_was_measured_are_complete(browser: WebDriver, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for least, most in ((101_000_000, 245_400_000), (999, 10**12), (333_000, 334_000)):
        rows = [
            {
                "strategy": name,
                "iteration_time_ns": time,
                "measured_iteration_time_ns": time,
                "measured_interval_ns": [time, time],
                "error": 0.0,
                "calibrated_error": 0.0,
                "difference_ns": {"tasks": 0, "launches": 0, "waits": 0},
                "transfer_time_ns": 0,
            }
            for name, time in (("data", most), ("expert", least))
        ]
        facts = {
            "strategies": rows,
            "reference": rows[0],
            "calibrated": {"mean_error": 0.0, "worst_error": 0.0},
            "calibration": {"factor": 1.0, "runtime": 1.0},
            "rest": {"verdict": "at rest", "restless": False, "drift": 1.0},
            "tasks_measured": 2,
            "mean_error": 0.0,
            "worst_error": 0.0,
            "kendall_tau": 1.0,
            "pairs_compared": 1,
            "passes": 2,
            "seed": 0,
        }
        save_page(page, accuracy_page("lenet on 2 CPUs", facts))
        check_labels(browser, page)
    for speedups in ([0.9, 1.1], [0.99, 245.4], [0.01, 1.0]):
        duel = {"speedups": speedups, "rounds": 2, "won": 1, "median_speedup": speedups[0]}
        finalists = [
            {"name": name, "iteration_time_ns": 1000, "measured_iteration_time_ns": 1000, **more}
            for name, more in (
                ("data", {}),
                ("expert", duel | {"interval": speedups, "verdict": ""}),
            )
        ]
        tuned = facts | {
            "finalists": finalists,
            "baseline": "data",
            "chosen": "expert",
            "reason": "it is faster",
            "rounds": 2,
            "proposals": 10,
            "seconds": 1.0,
            "gain": 0.02,
            "confidence": 0.99,
        }
        save_page(page, tune_page("lenet on 2 CPUs", tuned))
        assert f"{max(speedups[1], 1.1):.2f}×" in check_labels(browser, page)


def test_only_labels_are_cut(browser: WebDriver, tmp_path: Path) -> None:
    """The data of a page is complete, and so are its sentences; of a long name a label is shown."""
    long = "layer_" + "0123456789" * 90
    model = fl.Model(8)
    model.softmax(model.dense(model.input((4,)), 3, name=long), name="end")
    page = tmp_path / "page.html"
    fl.report_on(model, "p100x2", "model", progress=False).save(page)
    look(browser, 1280)
    open_page(browser, page)
    data = json.loads(browser.find_element(By.ID, "data").get_attribute("textContent") or "")
    assert long in [label for _, label in data["timeline"]["labels"]]
    assert all(len(link["bins"]) == LINK_BINS for link in data["timeline"]["links"])
    shown = [row.text for row in browser.find_elements(By.CSS_SELECTOR, ".heat tbody th")]
    assert any(name.startswith("layer_") and len(name) <= 200 for name in shown)
    assert all(a != b for a, b in pairwise(shown))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 1280
    assert console(browser) == []
