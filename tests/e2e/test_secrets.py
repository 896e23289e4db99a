"""A secret through real processes, kills and a rotation: the task has it, and no file and no command line keeps it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import pathlib
import re
import signal
import subprocess

import pytest

from dgpu.agent.keeper_settings import KeeperSettings
from dgpu.agent.secret_dirs import secrets_dir_of

from .conftest import PATIENCE_SECONDS, eventually, files_in
from .test_isolation import isolated_site, run, running

pytestmark = pytest.mark.slow

KEY, CERT, VALUE = "xyzzy-of-the-variable", "plugh-of-the-file\n", "plover-of-the-environment"
WORDS = [word.strip().encode() for word in (KEY, CERT, VALUE)]
# It shows digests and modes, waits for a file, and ends.
COMMAND = """
printf %s "$KEY" | sha256sum | cut -d' ' -f1
sha256sum < "$DGPU_SECRETS_DIR/tls.pem" | cut -d' ' -f1
printf %s "$VALUE" | sha256sum | cut -d' ' -f1
stat -c %a "$DGPU_SECRETS_DIR" "$DGPU_SECRETS_DIR/tls.pem"
until [ -e "$GO" ]; do sleep 0.05; done
"""


def test_a_secret_survives_kills_and_a_rotation_and_is_kept_nowhere_in_clear(site, tmp_path):
    site.up("--fake", "1xV100")
    set_secrets(site, tmp_path)
    task = submit(site)
    site.started(task)
    eventually(lambda: site.good("logs", task).out.count("\n") >= 5, "the task's output")
    assert any(secrets_dir(site).iterdir())
    assert holders(site) == [], "while it runs"
    assert talkative_processes() == []

    for name in ("scheduler", "agent"):
        kill(site, name)
    eventually(lambda: site.dgpu("show", task).code == 0, "the scheduler to be back")
    (site.home / "go").touch()
    check_run(site, task)
    assert not secrets_dir(site).exists()

    assert "2 secrets, variables of 1 tasks" in site.good("secret", "rotate").out
    kill(site, "scheduler")
    eventually(lambda: site.dgpu("ps").code == 0, "the scheduler to be back")
    again = site.good("retry", task, "-o", "name").out.strip()
    check_run(site, again)
    assert holders(site) == [], "after a rotation and a retry"

    assert re.search(r"^secrets +KEY, cert", site.good("show", again).out, re.MULTILINE)
    site.interrupt()
    assert holders(site) == [], "with the snapshot of an orderly end"
    (key_file,) = site.data_dir.rglob("secrets.key")
    assert (key_file.stat().st_mode & 0o777, len(key_file.read_text().split())) == (0o600, 2)


def test_a_killed_keeper_leaves_no_file_with_a_secret(site, tmp_path):
    site.up("--fake", "1xV100")
    set_secrets(site, tmp_path)
    task = submit(site)
    site.started(task)
    left = list(secrets_dir(site).iterdir())
    assert left
    for keeper in site.keepers():
        os.kill(keeper.pid, signal.SIGKILL)
    eventually(lambda: not any(path.exists() for path in left), "the files of the killed run to go")
    (site.home / "go").touch()
    eventually(lambda: site.task(task)["status"] == "success", "the second attempt to end")
    assert not secrets_dir(site).exists()
    assert holders(site) == []


def test_a_deleted_secret_ends_the_task_with_a_clear_message(site, tmp_path):
    site.up("--fake", "1xV100")
    set_secrets(site, tmp_path)
    first = submit(site)
    second = submit(site)
    site.good("secret", "delete", "KEY")
    (site.home / "go").touch()
    eventually(lambda: site.task(first)["status"] == "success", "the first task to end")
    eventually(lambda: site.task(second)["status"] == "failed", "the second task to fail")
    assert "secret KEY of tenant default was deleted" in site.task(second)["error"]
    refused = site.dgpu("submit", "--secret", "KEY", "--", "true")
    assert refused.code != 0
    assert "dgpu secret set KEY -A default" in refused.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root runs tasks as other users")
def test_a_task_of_its_own_user_reads_its_file_and_another_tenant_does_not():
    with isolated_site() as place:
        send(place, KEY, "secret", "set", "KEY", "-A", "a")
        uses = {"KEY": {"file": "key"}}
        show = 'id -u; stat -c "%a %u" "$DGPU_SECRETS_DIR" "$DGPU_SECRETS_DIR/key"; sha256sum < "$DGPU_SECRETS_DIR/key"'
        task, pid = running(place, "a", f"{show}; sleep 1000", secrets=uses)
        out = eventually(
            lambda: (told := place.good("logs", task).out).count("\n") >= 5 and told, "its output"
        )
        uid, folder, file, digest = out.splitlines()[1:5]
        assert (folder, file) == ("750 0", f"400 {uid}")
        assert uid.startswith("7000")
        assert digest.split()[0] == hashlib.sha256(KEY.encode()).hexdigest()
        found = secrets_dir(place)
        (own,) = found.iterdir()
        hostile = f"ls {found}; ls {own}; cat {own}/key; cat /proc/{pid}/environ; mkdir {found}/x; echo tried"
        told = run(place, "b", hostile)
        assert told.strip().endswith("tried")
        assert told.count("denied") == 5, told
        place.good("cancel", task)
        eventually(lambda: not own.exists(), "its files to go")


def set_secrets(site, folder: pathlib.Path) -> None:
    given = send(site, KEY + "\n", "secret", "set", "KEY")
    assert "version 1" in given
    (folder / "cert").write_text(CERT)
    site.good("secret", "set", "cert", "--from-file", folder / "cert")
    listed = site.good("secret", "list").out
    assert "KEY" in listed and "cert" in listed
    assert not any(word.decode() in given + listed for word in WORDS)


def send(site, text: str, *arguments: str) -> str:
    done = subprocess.run(
        site.command(*arguments),
        env=site.env,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return done.stdout + done.stderr


def submit(site) -> str:
    uses = ("--secret", "KEY", "--secret", "cert:file=tls.pem", "-e", "VALUE", "-e", f"GO={site.home}/go")
    return site.good("submit", *uses, "--", COMMAND, env={"VALUE": VALUE}).out.strip()


def check_run(site, task: str) -> None:
    eventually(lambda: site.task(task)["status"] == "success", f"{task} to succeed")
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (KEY, CERT, VALUE)]
    assert site.good("logs", task).out.split() == [*digests, "700", "400"]


def kill(site, name: str) -> None:
    pid = eventually(lambda: site.record.get(name, {}).get("pid"), f"the {name} to be there")
    os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: site.record.get(name, {}).get("pid") not in {None, pid}, f"the {name} to be started again"
    )


def secrets_dir(site) -> pathlib.Path:
    (keeper,) = (site.data_dir / "agent").rglob("keeper.json")
    return pathlib.Path(
        secrets_dir_of(KeeperSettings(directory=str(keeper.parent), work_dir="", output_dir=""))
    )


def holders(site) -> list[pathlib.Path]:
    """Files of dgpu that have a value, also as base64."""
    texts = [form for word in WORDS for form in (word, base64.b64encode(word)[:-4])]
    return [path for path, content in files_in(site.home) if any(text in content for text in texts)]


def talkative_processes() -> list[str]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if any(word in line for word in WORDS):
                found.append(line.decode(errors="replace"))
    return found
