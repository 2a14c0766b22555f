"""Headless Chromium by its DevTools protocol over a pipe: open a page, run a script in it, take a picture."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


_START = """import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])"""
"""The browser reads from file descriptor 3, and writes to 4."""


class Browser:
    """A browser with one page; `seen` are the events of the protocol so far."""

    def __init__(self, profile: Path, *flags: str) -> None:
        to_browser, ours = os.pipe()
        mine, from_browser = os.pipe()

        command = [
            sys.executable, "-c", _START, str(to_browser), str(from_browser), str(BROWSER),
            "--headless=new", "--no-sandbox", "--disable-gpu",
            "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run", *flags, "about:blank",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self.out, self.into = os.fdopen(mine, "rb", 0), os.fdopen(ours, "wb", 0)
        self.rest, self.number, self.session = b"", 0, ""
        self.seen: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.into.write(json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                read = self.out.read(1 << 16)
                if not read:
                    raise RuntimeError(f"the browser has ended: {self.process.wait(5)}")
                self.rest += read
            text, _, self.rest = self.rest.partition(b"\0")
            found = json.loads(text)
            if found.get("id") == self.number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                return found["result"]
            self.seen.append(found)

    def size(self, width: int, height: int, dark: bool = False) -> None:
        small = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=small)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", "error in the page"))
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := self.run(condition):
                return found
            time.sleep(0.03)
        raise TimeoutError(f"{condition} after {seconds} s")

    def picture(self, file: Path, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.into.close()
        self.out.close()
