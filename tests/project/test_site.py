"""The site as a reader opens it: built, from disk, without network, in a browser of two widths."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html import unescape

import pytest
from paths import ROOT

PAGES = ("index.html", "use/getting-started.html", "use/choose-algorithms.html", "results/cpu-layers.html",
         "reference/convolution.html")  # fmt: skip
WIDTHS = (400, 1400)
PROBE = """<!doctype html><title>probe</title><body><script>
const results = [];
async function look(page, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px`;
  frame.src = page;
  await new Promise((done) => { frame.onload = done; document.body.append(frame); });
  const inside = frame.contentDocument, root = inside.documentElement;
  const code = [...inside.querySelectorAll(".highlight code")].filter((each) => each.querySelector(".gp"));
  const copied = code.map((each) => {
    each.setAttribute("data-md-copying", "");
    const text = each.innerText;
    each.removeAttribute("data-md-copying");
    return text;
  });
  results.push({page, width, wide: root.scrollWidth, heading: inside.querySelector("h1").innerText, copied});
  frame.remove();
}
(async () => {
  for (const page of PAGES) for (const width of WIDTHS) await look(page, width);
  document.body.innerHTML = `<pre id="results">${JSON.stringify(results).replace(/</g, "&lt;")}</pre>`;
})();
</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Every link and anchor, and every name of the reference: `make docs`."""
    for package in ("mkdocs", "mkdocstrings", "mkdocs_awesome_nav", "material"):
        pytest.importorskip(package, reason="the site's packages are not installed (make docs)")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The document of an address when its scripts have run; no host can be reached."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    profile = tmp_path_factory.mktemp("profile")

    def document(address, budget_ms=20_000):
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
        flags += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"]
        flags += [f"--virtual-time-budget={budget_ms}", "--dump-dom", address]
        return subprocess.run([browser, *flags], capture_output=True, text=True, timeout=300, check=True).stdout

    return document


def test_the_site_builds(site):
    assert "conv_transpose" in (site / "reference" / "convolution.html").read_text()


def test_pages_load_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]* rel="stylesheet"[^>]* href="([^"]+)"', text)
        assert not [each for each in loaded if re.match(r"(https?:)?//", each)], page


def test_search_works_from_disk_without_network(site, opened):
    text = opened(f"file://{site}/index.html?q=winograd")
    said = re.search(r'class="md-search-result__meta">([^<]*)<', text)[1].strip()
    assert re.fullmatch(r"\d+ matching documents", said), said
    assert "design/winograd.html" in text


def test_pages_fit_a_telephone_and_a_screen_and_copies_are_commands(site, opened, tmp_path):
    probe = site / "probe.html"
    probe.write_text(PROBE.replace("of PAGES", f"of {json.dumps(PAGES)}").replace("of WIDTHS", f"of {list(WIDTHS)}"))
    text = opened(f"file://{probe}")
    found = json.loads(unescape(re.search(r'<pre id="results">(.*?)</pre>', text, re.DOTALL)[1]))
    assert [(each["page"], each["width"]) for each in found] == [(page, width) for page in PAGES for width in WIDTHS]
    assert all(each["heading"] for each in found)
    assert not [each for each in found if each["wide"] > each["width"]]
    copied = "\n".join(text for each in found for text in each["copied"])
    assert "convdispatch find" in copied
    assert not re.search(r"^\$ ", copied, re.MULTILINE)


def test_titles_are_as_written(site):
    """A page whose title is made of its file's name is called "Cpu layers"."""
    titles = {page: re.search(r"<title>(.*?)</title>", page.read_text())[1] for page in site.glob("results/*.html")}
    assert not [title for title in titles.values() if re.match("Cpu|Gpu", title)]
