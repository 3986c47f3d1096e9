"""A real browser for tests: headless Chromium through its own driver, spoken to in plain HTTP."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"left": "\ue012", "up": "\ue013", "right": "\ue014", "down": "\ue015", "enter": "\ue007", "escape": "\ue00c"}


def browser_or_skip() -> tuple[str, str]:
    """Where Chromium and its driver are; the test is skipped where one of them is not."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs a real browser: install chromium and chromedriver (Debian: chromium chromium-driver)")
    return chromium, driver


class Browser:
    """One window."""

    def __init__(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        chromium, driver = browser_or_skip()
        self.process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        found = None
        while found is None:
            line = self.process.stdout.readline()
            assert line, "chromedriver ended before it said its port"
            found = re.search(r"successfully on port (\d+)", line)
        self.base = f"http://127.0.0.1:{found[1]}/session"
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        scheme = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
        options = {"binary": chromium, "args": [*flags, *scheme, f"--window-size={width},{height}"]}
        answer = self.call("POST", "", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})
        self.base += "/" + answer["sessionId"]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", metrics)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait()

    def call(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, content, {"Content-Type": "application/json"}, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as problem:
            raise AssertionError(problem.read().decode()) from None

    def command(self, name: str, parameters: dict[str, Any]) -> Any:
        """A command of Chromium's own."""
        return self.call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def script(self, text: str) -> Any:
        """What a piece of JavaScript returns."""
        return self.call("POST", "/execute/sync", {"script": text, "args": []})

    def keys(self, *names: str) -> None:
        """Press keys one after the other, as a person does."""
        for name in names:
            key = KEYS.get(name, name)
            actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
            self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def text(self, selector: str = "body") -> str:
        return self.script(f"return document.querySelector({json.dumps(selector)})?.innerText ?? ''") or ""

    def wait(self, condition: str, seconds: float = 600) -> Any:
        """Until a piece of JavaScript is true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = self.script(f"return {condition}")
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {condition}\n{self.text()}")

    def picture(self, path: Path) -> None:
        """A picture of the page."""
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def complaints(self) -> list[str]:
        """What the browser complained about: blocked by the policy, thrown by a script."""
        found = self.call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in found]
