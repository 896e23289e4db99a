"""The examples of functions run as they are printed, on simulated GPUs, with a tiny model made here."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest

from e2e.doc_commands import ROOT

pytestmark = pytest.mark.slow


def python(site, *arguments: object, cwd: pathlib.Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**site.env, **env},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_example_of_the_page_runs_as_printed(running_site, tmp_path):
    page = (ROOT / "docs" / "functions.md").read_text()
    [script] = re.findall(r"cat > hello.py <<'END'\n(.*?)^END$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "hello.py").write_text(script)
    one, many = python(running_site, "hello.py", cwd=tmp_path).splitlines()
    assert re.fullmatch(r"task-\d+ 49", one)
    assert many == "[0, 1, 4, 9, 16]"
    called = running_site.good("call", "hello:square", "7", "--json-args", "--wait", cwd=tmp_path)
    assert called.out == "49\n"


def test_batch_inference_loads_its_model_once_per_worker(running_site, tmp_path):
    (tmp_path / "bigrams.json").write_text(json.dumps({" ": "ab", "a": "b ", "b": "a "}))
    (tmp_path / "prompts.txt").write_text("hello a\nhi b\n")
    out = python(
        running_site,
        ROOT / "examples" / "batch_inference.py",
        tmp_path / "prompts.txt",
        *("--length", 8),
        cwd=tmp_path,
        DGPU_EXAMPLE_WEIGHTS=str(tmp_path),
    )
    first, second = out.splitlines()
    assert re.fullmatch("hello a[ab ]{8}", first)
    assert re.fullmatch("hi b[ab ]{8}", second)


def test_the_sweep_names_its_best_rate(running_site, tmp_path):
    out = python(running_site, ROOT / "examples" / "sweep_functions.py", "--rates", 0.01, 0.1, cwd=tmp_path)
    assert len(re.findall(r"^rate ", out, re.MULTILINE)) == 2
    assert "best rate: " in out


def test_the_model_server_streams(tmp_path):
    import http.client
    import os

    (tmp_path / "bigrams.json").write_text(json.dumps({" ": "ab", "a": "b ", "b": "a "}))
    env = {**os.environ, "DGPU_EXAMPLE_WEIGHTS": str(tmp_path), "DGPU_PORT": "0"}
    with subprocess.Popen(
        [sys.executable, ROOT / "examples" / "serve_llm.py"], env=env, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            [port] = re.findall(r"serving on port (\d+)", server.stdout.readline())
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
            connection.request("POST", "/generate", json.dumps({"prompt": "a", "length": 20}))
            answer = connection.getresponse()
            assert answer.getheader("Transfer-Encoding") == "chunked"
            assert re.fullmatch("[ab ]{20}", answer.read().decode())
            connection.request("POST", "/generate", b"nonsense")
            assert connection.getresponse().status == 400
        finally:
            server.kill()
