"""report.html of whole runs: what is in the file, and what a browser makes of it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from evaluation_data import write_data
from evaluation_double import FIXED, SeededEngine

from resetcli.base.errors import ResetError
from resetcli.base.reporting import CollectingReporter
from resetcli.data.sources import DataSource
from resetcli.evaluation.evaluate import run_eval
from resetcli.evaluation.published import LM_EVAL_RESULTS
from resetcli.evaluation.report.write import write_report
from resetcli.evaluation.runs import read_samples
from resetcli.policy.settings import PolicySettings

HOSTILE = (
    "</pre></details><script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\"> {{run}} "
)


class Hostile(SeededEngine):
    """Thinks before it answers, in markup."""

    def answer(self, request):
        done = super().answer(request)
        thought = f"<think>{HOSTILE}</think>" if done.finish_reason == "stop" else f"<think>{HOSTILE}"
        return replace(done, text=f"{thought}{done.text}" if done.finish_reason != "error" else "")


class Page(HTMLParser):
    """Samples of a page: (task, document, verdict, hidden) each; and whatever points out of it."""

    def __init__(self, text: str):
        super().__init__()
        self.samples: list[tuple[str, str, str, bool]] = []
        self.links: list[str] = []
        self.tags: dict[str, int] = {}
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.links += [found[name] for name in ("src", "href", "srcset", "action") if name in found]
        if tag == "article":
            self.samples.append((found["data-task"], found["data-doc"], found["data-why"], "hidden" in found))

    def handle_data(self, data):
        self.text += data


def evaluate(engine, data, output, **options):
    options = {"model": "double <b>", "fingerprint": "f" * 64, "max_new_tokens": 20, "repeats": 3, **options}
    return run_eval(lambda: engine, "aime,gpqa,wikitext", DataSource(data), FIXED, output=output, **options)


@pytest.fixture(scope="module")
def run(tiny_tokenizer, tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    evaluate(Hostile(tiny_tokenizer, broken=("aime/2022-I-1/1",)), write_data(root / "data"), root / "run", limit=4)
    return root / "run"


def test_the_page_has_every_sample_and_stands_alone(run) -> None:
    page = Page((run / "report.html").read_text())
    samples = [s for s in read_samples(run) if s["why"] != "loglikelihood"]
    assert sorted(page.samples) == sorted((s["task"], s["doc_id"], s["why"], False) for s in samples)
    assert page.links == [] and page.tags["script"] == 1 and "img" not in page.tags and "b" in page.tags
    for said in ("double <b>: aime, gpqa, wikitext", "the first 4 documents of a task", "1 samples failed",
                 "All 21 samples.", "word perplexity", HOSTILE, "<|im_start|>user"):  # fmt: skip
        assert said in page.text, said
    results = json.loads((run / "results.json").read_text())["results"]
    for task in ("aime", "gpqa"):
        low, high = (f"{100 * end:.1f} %" for end in results[task]["ci95"])
        assert f"{low} to {high}" in page.text and f"{100 * results[task]['avg@k']:.1f} %" in page.text


def test_the_policy_allows_the_pages_own_script_only(run) -> None:
    text = (run / "report.html").read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    import base64

    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in text


def test_lm_evals_results_file(run) -> None:
    theirs = json.loads((run / LM_EVAL_RESULTS).read_text())
    ours = json.loads((run / "results.json").read_text())
    assert LM_EVAL_RESULTS.startswith("results_") and theirs["model_source"] == "reset"
    for task, found in theirs["results"].items():
        assert all(ours["results"][task][k] == v for k, v in found.items() if k != "name")
    assert theirs["results"]["aime"]["exact_match,score"] == pytest.approx(ours["results"]["aime"]["avg@k"], abs=1e-12)
    assert (
        theirs["n-samples"]["aime"]["effective"] == 4 and theirs["configs"]["aime"]["output_type"] == "generate_until"
    )
    assert "custom_dataset" not in theirs["configs"]["aime"]


def test_a_finished_run_gets_its_page_back(tiny_tokenizer, run, tmp_path) -> None:
    data = run.parent / "data"
    evaluate(SeededEngine(tiny_tokenizer), data, tmp_path / "run", limit=1)
    (tmp_path / "run/report.html").unlink()
    evaluate(None, data, tmp_path / "run", limit=1)
    assert "All 6 samples." in (tmp_path / "run/report.html").read_text()


def test_a_page_that_cannot_be_written_is_a_warning(tiny_tokenizer, run, tmp_path) -> None:
    reporter = CollectingReporter()
    for name in ("report.html", LM_EVAL_RESULTS):
        (tmp_path / "run" / name).mkdir(parents=True)
    shutil.copytree(run, tmp_path / "run", dirs_exist_ok=True, ignore=shutil.ignore_patterns("report.html", "results*"))
    report = evaluate(SeededEngine(tiny_tokenizer), run.parent / "data", tmp_path / "run", limit=4, reporter=reporter)
    warned = [line for line in reporter.warnings if line.startswith("no ")]
    assert report["exit_code"] == 0 and "no report.html: cannot write" in warned[1]
    assert f"no {LM_EVAL_RESULTS}: cannot write" in warned[0] and not list((tmp_path / "run").glob(".tmp-*"))


def test_traces_of_a_real_engine(tiny_checkpoint, run, tmp_path) -> None:
    from resetcli.engines.factory import EngineOptions, open_engine

    def call(policy, output, repeats=1):
        settings = PolicySettings(**policy)
        return run_eval(
            lambda: open_engine(EngineOptions(path=tiny_checkpoint, device="cpu", batch_size=4)), "aime,gsm8k",
            DataSource(run.parent / "data"), settings, model="tiny", fingerprint="f" * 64, max_new_tokens=30, limit=2,
            output=output, repeats=repeats,
        )  # fmt: skip

    reset = {"name": "reset", "tau_0": 2.0, "t_low": 0.3, "tau_0_source": "option"}
    call(reset, tmp_path / "reset")
    lines = [json.loads(line) for line in (tmp_path / "reset/traces/aime.jsonl").read_text().splitlines()]
    (first,) = [s for s in read_samples(tmp_path / "reset") if (s["task"], s["doc_id"]) == ("aime", "2022-I-1")]
    assert lines[0]["policy"]["tau_0"] == 2.0 and {line["request"] for line in lines[1:]} == {"aime/2022-I-1/0"}
    assert len(lines) == first["n_tokens"] + 1 and all(line["entropy"] >= 0 for line in lines[1:])
    text = Page((tmp_path / "reset/report.html").read_text()).text
    assert "of each step of aime/2022-I-1/0" in text and "drawn at T_low" in text and "tau_0 2" in text
    # A sample is the same traced or not: the trace is there already when repeats are raised.
    before = (tmp_path / "reset/traces/aime.jsonl").read_bytes()
    call(reset, tmp_path / "reset", repeats=2)
    assert (tmp_path / "reset/traces/aime.jsonl").read_bytes() == before
    call({"name": "fixed"}, tmp_path / "fixed")
    assert "of each step of gsm8k/0/0" in Page((tmp_path / "fixed/report.html").read_text()).text


def test_large_runs_are_cut_and_say_so(run, tmp_path) -> None:
    for name in ("run.json", "results.json"):
        shutil.copy(run / name, tmp_path / name)
    (one, *_) = [s for s in read_samples(run) if s["task"] == "aime" and s["why"] == "truncated"]
    with open(tmp_path / "samples.jsonl", "w") as out:
        for i in range(3000):
            doc = {
                "doc_id": f"2022-I-{i}",
                "text": "<think>" + "y" * 9000,
                "why": "wrong" if i % 1000 == 7 else one["why"],
            }
            out.write(json.dumps({**one, **doc}) + "\n")
    path = write_report(tmp_path, most=50, characters=200_000)
    page = Page(path.read_text())
    assert path.stat().st_size < 450_000 and len(page.samples) == 50
    assert [doc for _, doc, why, _ in page.samples if why == "wrong"] == ["2022-I-7", "2022-I-1007", "2022-I-2007"]
    assert "50 of 3000 samples, shared evenly" in page.text and re.search(
        r"Of 50 the prompt or the text has over \d+ characters and is cut in the middle", page.text
    )
    assert "wrong (3)" in page.text and not list(tmp_path.glob(".tmp-*"))
    with pytest.raises(ResetError, match="no such file|cannot read|No such file"):
        write_report(tmp_path / "nowhere")


def test_long_prompts_are_whole_where_there_is_room(run, tmp_path) -> None:
    for name in ("run.json", "results.json"):
        shutil.copy(run / name, tmp_path / name)
    prompt = "Q" * 9000 + "the end"
    (tmp_path / "samples.jsonl").write_text(
        "".join(
            json.dumps({**s, "prompt": prompt[:4000] + s["doc_id"] + prompt[4000:]}) + "\n" for s in read_samples(run)
        )
    )
    text = write_report(tmp_path).read_text()
    assert "left out" not in text and text.count("the end") == 21 and "is cut" not in text
    assert "left out; line" in write_report(tmp_path, characters=100_000).read_text()


def test_a_page_of_a_gzip_run_names_its_file(tiny_tokenizer, run, tmp_path) -> None:
    evaluate(SeededEngine(tiny_tokenizer), run.parent / "data", tmp_path / "run", limit=1, packed=True)
    text = (tmp_path / "run/report.html").read_text()
    assert "line 1 of samples.jsonl.gz" in text and "samples.jsonl<" not in text
    text = write_report(tmp_path / "run", most=2).read_text()
    assert "All are in samples.jsonl.gz." in text


def test_what_was_put_into_results_is_escaped(run, tmp_path) -> None:
    shutil.copytree(run, tmp_path / "run")
    results = json.loads((run / "results.json").read_text())
    results["results"]["aime"] |= {"n": "<img src=x>", "repeats": "<img src=y>"}
    results["results"]["wikitext"] |= {"n": "<img src=z>", "tokens": "<img src=t>"}
    (tmp_path / "run/results.json").write_text(json.dumps(results))
    page = Page(write_report(tmp_path / "run").read_text())
    assert "img" not in page.tags and all(f"<img src={name}>" in page.text for name in "xyzt")


def test_a_damaged_trace_is_a_line_on_the_page(run, tmp_path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/traces").mkdir(exist_ok=True)
    token = {"request": "aime/1/0", "text": "a", "entropy": math.nan, "boundary": True, "uncertain": False,
             "temperature": 1.0}  # fmt: skip
    policy = {"name": "reset", "tau_0": 0.5, "t_low": 0.1}
    lines = ({"trace": 1, "policy": policy}, token)
    (tmp_path / "run/traces/aime.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reporter = CollectingReporter()
    text = write_report(tmp_path / "run", reporter=reporter).read_text()
    assert "The trace cannot be read." in text and "is no entropy" in reporter.warnings[0]


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian: apt-get install chromium)")
class TestInABrowser:
    """Headless Chromium shows what its scripts made of the page."""

    def dom(self, url: str, profile: Path) -> str:
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   f"--user-data-dir={profile}", "--allow-file-access-from-files", "--virtual-time-budget=4000",
                   "--dump-dom", url]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def test_filters(self, run, tmp_path) -> None:
        samples = [s for s in read_samples(run) if s["why"] != "loglikelihood"]
        url = f"file://{run}/report.html"
        for query, fits in [
            ("", lambda s: True),
            ("#why=unparsed", lambda s: s["why"] == "unparsed"),
            ("#why=wrong,truncated&task=gpqa&doc=1", lambda s: s["why"] in ("wrong", "truncated")
             and s["task"] == "gpqa" and "1" in s["doc_id"]),
        ]:  # fmt: skip
            text = self.dom(url + query, tmp_path)
            page = Page(text)
            shown = sorted((task, doc, why) for task, doc, why, hidden in page.samples if not hidden)
            wanted = sorted((s["task"], s["doc_id"], s["why"]) for s in samples if fits(s))
            assert shown == wanted and len(page.samples) == len(samples), query
            assert f"{len(wanted)} of {len(samples)} listed" in page.text
            assert re.search(r"<title>double &lt;b&gt;: aime, gpqa, wikitext</title>", text), "the page was taken over"
            for why in ("correct", "wrong", "truncated", "unparsed"):
                pressed = str(why in query.partition("why=")[2].partition("&")[0].split(",")).lower()
                assert re.search(rf'data-why="{why}" aria-pressed="{pressed}"', text), (query, why)

    def test_clicks(self, run, tmp_path) -> None:
        """A page around it presses the buttons, and writes down which samples are left each time."""
        (tmp_path / "around.html").write_text(
            f"""<iframe id="f" src="file://{run}/report.html"></iframe><pre id="log"></pre><script>
            const f = document.getElementById("f"), log = document.getElementById("log");
            const inside = () => f.contentDocument;
            const note = () => {{ log.textContent += [...inside().querySelectorAll("article:not([hidden])")]
              .map((a) => a.dataset.why).join(" ") + "|"; }};
            const pause = () => new Promise((done) => setTimeout(done, 200));
            f.onload = async () => {{
              for (const why of ["wrong", "truncated", "wrong", "truncated"]) {{
                inside().querySelector(`button[data-why=${{why}}]`).click(); await pause(); note();
              }}
              inside().getElementById("unfold").click(); await pause();
              log.textContent += [...inside().querySelectorAll("details.thought")].every((d) => d.open);
            }};</script>"""
        )
        text = Page(self.dom(f"file://{tmp_path}/around.html", tmp_path / "profile")).text
        (log,) = re.findall(r"[a-z |]*\|true", text)
        verdicts = [s["why"] for s in read_samples(run) if s["why"] != "loglikelihood"]
        for shown, kinds in zip(
            log.split("|"), ("wrong", "wrong truncated", "truncated", " ".join(verdicts)), strict=False
        ):
            assert sorted(shown.split()) == sorted(v for v in verdicts if v in kinds.split())
