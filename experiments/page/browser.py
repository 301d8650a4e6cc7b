"""A real browser for pictures and tests of the page: Chromium without a window, as the system's packages have it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "needs a browser: the packages chromium and chromium-driver"


@contextmanager
def browser(width: int = 1360, height: int = 900) -> Iterator[Any]:
    """A browser of its own, which remembers nothing and records what it asks of the network."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    given = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"]
    for argument in [*given, "--disable-background-networking", f"--window-size={width},{height}"]:
        options.add_argument(argument)
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")  # it has none for root
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


def emulate(driver: Any, *, width: int = 1360, height: int = 900, dark: bool = False) -> None:
    """Give the page another screen, and light or dark."""
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
