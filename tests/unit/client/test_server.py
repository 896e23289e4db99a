"""Which scheduler the SDK finds, and to whom it shows a token."""

from __future__ import annotations

import json
import stat

import pytest

from dgpu.client.credentials import forget_tokens, store_token
from dgpu.client.server import DEFAULT_URL, BadToken, Server
from dgpu.client.server import locate as locate_all


def locate(server=None, token=None) -> Server:
    (found,) = locate_all(server, token)
    return found


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    for name in ("DGPU_SERVER", "DGPU_TOKEN", "DGPU_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
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


# what `dgpu login` stored


def test_a_stored_token_is_sent_to_its_own_scheduler_only(bare) -> None:
    path = store_token(["http://10.0.0.1:8080"], "of-one")
    assert locate("10.0.0.1:8080/").token == "of-one"
    assert locate("http://10.0.0.2:8080").token == ""
    assert locate("https://10.0.0.1:8080").token == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_login_goes_before_the_recorded_token_and_behind_an_explicit_one(bare, monkeypatch) -> None:
    record(bare / "dgpu")
    store_token(["http://127.0.0.1:4711"], "stored")
    assert locate().token == "stored"
    assert locate(token="given").token == "given"
    monkeypatch.setenv("DGPU_TOKEN", "of-env")
    assert locate().token == "of-env"


def test_a_forgotten_token_is_gone_and_others_stay(bare) -> None:
    path = store_token(["http://a:1"], "one")
    store_token(["http://b:1"], "two")
    assert forget_tokens(["http://a:1", "http://c:1"]) == ("http://a:1",)
    assert forget_tokens(["http://a:1"]) == ()
    assert (locate("http://a:1").token, locate("http://b:1").token) == ("", "two")
    assert "one" not in path.read_text()


def test_credentials_that_others_can_read_are_refused_by_name(bare) -> None:
    store_token(["http://a:1"], "one").chmod(0o640)
    with pytest.raises(BadToken, match=r"has mode 640, expected 600"):
        locate("http://a:1")
    assert locate("http://a:1", "given").token == "given"


def test_a_damaged_file_of_credentials_is_like_none(bare) -> None:
    path = store_token(["http://a:1"], "one")
    for content in ("", "[]", '{"tokens": 3}', '{"tokens": {"http://a:1": 3}}'):
        path.write_text(content)
        assert locate("http://a:1").token == ""


# several schedulers


@pytest.mark.parametrize(
    "given", ["http://a:1, b:2/,http://a:1", ["http://a:1", "b:2", "http://a:1/"], ("http://a:1", " b:2 ")]
)
def test_several_addresses_are_a_list_or_have_commas_between(given) -> None:
    assert [server.url for server in locate_all(given)] == ["http://a:1", "http://b:2"]


def test_several_addresses_come_from_the_environment_too(monkeypatch) -> None:
    monkeypatch.setenv("DGPU_SERVER", "https://a:1,https://b:2")
    monkeypatch.setenv("DGPU_TOKEN", "of-env")
    assert locate_all() == (Server("https://a:1", "of-env"), Server("https://b:2", "of-env"))


@pytest.mark.parametrize("given", [",", " , ", ["", " "]])
def test_a_list_without_an_address_is_an_error(given) -> None:
    with pytest.raises(ValueError, match="no scheduler's address"):
        locate_all(given)


def test_one_bad_address_of_several_is_named(bare) -> None:
    with pytest.raises(ValueError, match="ftp://b"):
        locate_all("http://a:1,ftp://b")


def test_each_scheduler_gets_its_own_token(bare) -> None:
    record(bare / "dgpu", url="http://a:1")
    store_token(["http://b:1", "http://c:1"], "stored")
    tokens = [server.token for server in locate_all("http://a:1,http://b:1,http://c:1,http://d:1")]
    assert tokens == ["recorded", "stored", "stored", ""]
