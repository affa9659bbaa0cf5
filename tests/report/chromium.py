"""A headless Chromium that opens reports, and keeps what it saw."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver

# Where screenshots are kept, for people to look at; by default pytest's temporary folder.
SCREENSHOTS = "FLEXLEGION_SCREENSHOTS"


@contextmanager
def chromium() -> Iterator[WebDriver]:
    """The system's Chromium; scripts/setup.sh dev installs it."""
    driver = shutil.which("chromedriver")
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    assert driver, "chromedriver is missing; scripts/setup.sh dev installs it"
    assert binary, "chromium is missing; scripts/setup.sh dev installs it"
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, Service(driver))
    try:
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http://*", "https://*"]})
        yield browser
    finally:
        browser.quit()


def look(browser: WebDriver, width: int, dark: bool = False, scale: int = 1) -> None:
    """Show pages at a width, in light or dark; with so many pixels of the screen a pixel."""
    preferences = {
        "prefers-color-scheme": "dark" if dark else "light",
        # Pages scroll at once then: a link that still glides away is not where it is clicked.
        "prefers-reduced-motion": "reduce",
    }
    features = [{"name": name, "value": value} for name, value in preferences.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 900, "deviceScaleFactor": scale, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def open_page(browser: WebDriver, page: Path) -> None:
    """Open a file; the console forgets what was before."""
    browser.get_log("browser")
    browser.get(page.absolute().as_uri())


def console(browser: WebDriver) -> list[dict[str, Any]]:
    """What pages complained of."""
    return [dict(entry) for entry in browser.get_log("browser")]


def keep_screenshot(browser: WebDriver, folder: Path, name: str) -> None:
    """The whole page, as far as it is not longer than 16,000 pixels."""
    folder = Path(os.environ.get(SCREENSHOTS, folder))
    folder.mkdir(parents=True, exist_ok=True)
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True}
    )
    (folder / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
