"""The report as a reader sees it: opened in headless Chromium at the width of a desk and of a phone.

Skipped where no Chromium is installed, unless MARIN_REPRO_REQUIRE_BROWSER is set, as CI does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from repro.cli.main import exit_code

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = os.environ.get("MARIN_REPRO_REQUIRE_BROWSER", "") not in ("", "0")
WIDTHS = (1280, 390)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and not REQUIRED, reason="no Chromium: apt-get install chromium, or another package of it"
    ),
]

# An iframe of the width that is asked for: headless Chromium does not open windows narrower than 500 pixels.
PROBE = """<!doctype html><meta charset="utf-8"><body style="margin:0"><iframe id="page" src="report.html"
style="width:WIDTHpx;height:3000px;border:0"></iframe><pre id="seen"></pre><script>
document.getElementById("page").addEventListener("load", event => {
  const page = event.target.contentDocument, width = event.target.contentWindow.innerWidth;
  for (const one of page.querySelectorAll("details")) one.open = true;
  const wide = [...page.querySelectorAll("body *:not(svg *)")].filter(
    one => one.getBoundingClientRect().right > width + 0.5 || one.scrollWidth > one.clientWidth + 1 && one.clientWidth);
  const figures = [...page.querySelectorAll("figure svg")].map(one => one.getBoundingClientRect());
  document.getElementById("seen").textContent = "SEEN" + JSON.stringify({
    width, scroll: page.documentElement.scrollWidth,
    wide: wide.slice(0, 5).map(one => one.tagName + " " + one.textContent.trim().slice(0, 40)),
    figures: figures.map(box => [box.width, box.height]),
    headings: page.querySelectorAll("article h3").length}) + "NEES";
});</script>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert exit_code(["audit", "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows_and_all_figures_are_visible(width: int, report: Path, tmp_path: Path) -> None:
    probe = report / f"probe-{width}.html"
    probe.write_text(PROBE.replace("WIDTH", str(width)))
    seen = look(probe, tmp_path)
    assert seen["width"] == width
    assert seen["scroll"] <= width, seen["wide"]
    assert not seen["wide"]
    assert seen["headings"] == len(json.loads((report / "report.json").read_bytes())["findings"])
    assert len(seen["figures"]) == 2
    assert all(w > 250 and h > 150 for w, h in seen["figures"])


def test_the_probe_sees_what_overflows(tmp_path: Path) -> None:
    """Its twin: a page with a line that cannot be broken is caught."""
    (tmp_path / "report.html").write_text("<meta charset=utf-8><p style='width:600px'>wide</p>")
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.replace("WIDTH", "390"))
    assert look(probe, tmp_path)["wide"] == ["P wide"]


def look(probe: Path, tmp_path: Path) -> dict[str, object] | dict[str, list[object]]:
    assert CHROMIUM is not None, "MARIN_REPRO_REQUIRE_BROWSER is set, but no Chromium is installed"
    result = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", "--allow-file-access-from-files"),
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1400,1000",
            "--virtual-time-budget=10000",
            "--dump-dom",
            probe.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    match = re.search(r"SEEN(\{.*\})NEES", result.stdout, flags=re.DOTALL)
    assert match is not None, result.stderr[-2000:]
    return json.loads(match[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
