"""Which scheduler the SDK finds, and to whom it shows a token."""

from __future__ import annotations

import json

import pytest

from dgpu.client.server import DEFAULT_URL, Server, locate


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    for name in ("DGPU_SERVER", "DGPU_TOKEN", "DGPU_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def record(folder, url: str = "http://127.0.0.1:4711", token: str = "recorded") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(token + "\n")
    (folder / "up.json").write_text(json.dumps({"url": url, "token_file": str(folder / "token"), "pid": 1}))


def test_without_anything_it_is_the_default_address() -> None:
    assert locate() == Server(url=DEFAULT_URL, token="")


def test_what_up_recorded_is_found_with_its_token(bare) -> None:
    record(bare / "dgpu")
    assert locate() == Server(url="http://127.0.0.1:4711", token="recorded")


def test_a_data_directory_of_ones_own_is_looked_into(bare, monkeypatch) -> None:
    record(bare / "dgpu", url="http://127.0.0.1:1")
    record(bare / "mine", url="http://127.0.0.1:2", token="mine")
    monkeypatch.setenv("DGPU_DATA_DIR", str(bare / "mine"))
    assert locate() == Server(url="http://127.0.0.1:2", token="mine")


def test_the_environment_comes_before_the_record_and_the_argument_before_both(bare, monkeypatch) -> None:
    record(bare / "dgpu")
    monkeypatch.setenv("DGPU_SERVER", "http://env:1/")
    monkeypatch.setenv("DGPU_TOKEN", "of-env")
    assert locate() == Server(url="http://env:1", token="of-env")
    assert locate("argument:2", "given") == Server(url="http://argument:2", token="given")


def test_the_recorded_token_is_never_shown_to_another_server(bare) -> None:
    record(bare / "dgpu")
    assert locate("http://elsewhere:80").token == ""
    assert locate("http://127.0.0.1:4711/").token == "recorded"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": 5}', "\xff"])
def test_a_damaged_record_is_as_none(bare, content) -> None:
    (bare / "dgpu").mkdir()
    (bare / "dgpu" / "up.json").write_text(content)
    assert locate().url == DEFAULT_URL


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "unix:///run/x", "http://127.0.0.1:abc", "127.0.0.1:99999", "127.0.0.1:0"]
)
def test_what_is_no_address_is_said_to_be_none(url) -> None:
    with pytest.raises(ValueError, match="address"):
        locate(url)


def test_a_token_is_not_in_the_repr() -> None:
    assert "s3cret" not in repr(Server(url="http://x", token="s3cret"))
