"""A real browser for tests: headless Chromium, driven over two pipes by its DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
_ENOUGH = 120.0  # seconds, on a busy machine


class Browser:
    """One page of a browser that is alone; `requests` are what was asked for and not blocked."""

    def __init__(self, profile: Path) -> None:
        (down, self._out), (self._in, up) = os.pipe(), os.pipe()
        words = [CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        # The protocol's pipes are descriptors 3 and 4; they may be those of this process already.
        script = f'exec 8<&{down} 9>&{up}; exec 3<&8 4>&9; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],
            pass_fds=(down, up),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(down)
        os.close(up)
        self._number, self._rest, self._session = 0, b"", None
        self.requests, self.complaints, self._urls = [], [], {}
        targets = self._wait_for_page()
        attached = self.call("Target.attachToTarget", targetId=targets, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(timeout=_ENOUGH)
        os.close(self._in)
        os.close(self._out)

    def call(self, method, **params):
        """Call a method of the protocol and give its result; what comes in between is noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                return found["result"]
            self._note(found)

    def open(self, path, width=1280, height=900, scheme="light", mobile=False):
        """Show a file in a window of a size, by a colour scheme, and wait until its script is done."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        self.media(scheme)
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        end = time.monotonic() + _ENOUGH
        while self.value("document.readyState + (document.documentElement?.dataset.ready ?? '')") != (
            "completeyes"
        ):
            if time.monotonic() > end:
                raise TimeoutError(f"{path} was not ready: {self.complaints}")
            time.sleep(0.05)

    def media(self, scheme="light", kind=""):
        """Choose light or dark, screen or print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def value(self, expression):
        """Evaluate an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def move(self, selector, across=0.5, down=0.5):
        """Move the pointer to a place within an element."""
        box = self.value(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.left, b.top, b.width, b.height]; }})(document.querySelector({json.dumps(selector)}))"
        )
        at = {"x": box[0] + across * box[2], "y": box[1] + down * box[3]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        return at

    def click(self, selector):
        """Click on the middle of an element."""
        at = self.move(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def press(self, key):
        """Press a key in the element that has the focus."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path):
        """Write the whole page as PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(found["data"]))

    def _wait_for_page(self):
        end = time.monotonic() + _ENOUGH
        while time.monotonic() < end:
            pages = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
            if pages:
                return pages[0]["targetId"]
            time.sleep(0.05)
        raise TimeoutError("the browser opened no page")

    def _next(self):
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], _ENOUGH)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
            self._urls[params["requestId"]] = params["request"]["url"]
        elif method == "Network.loadingFailed" and params.get("blockedReason"):
            self.requests.remove(self._urls[params["requestId"]])
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(
                params["exceptionDetails"].get("exception", {}).get("description", "error")
            )
