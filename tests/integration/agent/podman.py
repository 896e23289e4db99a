"""A real container engine for tests: Debian's Podman with its own storage, serving the Docker API on a socket."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import time

import pytest

from dgpu.agent.containers.engine import Engine, EngineError

IMAGE = "localhost/busybox:test"
_SECONDS = 60.0
_APPLETS = "sh cat echo sleep env id ls kill true false head dd test touch pwd grep stty tty httpd"
_CONFIG = """
[containers]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
"""


class Podman:
    """Raises Unusable, with the reason, where no container can run."""

    def __init__(self) -> None:
        for program in ("podman", "runc", "busybox"):
            if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
                raise Unusable(f"{program} is not installed")
        if os.geteuid() != 0:
            raise Unusable("containers with limits need root here")
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="dgpu-podman-"))
        self.socket = str(self.home / "sock")
        (self.home / "containers.conf").write_text(_CONFIG)
        self._env = {**os.environ, "CONTAINERS_CONF": str(self.home / "containers.conf")}
        self._service: subprocess.Popen[bytes] | None = None
        try:
            self._import_image()
            self.start()
            self._try()
        except Unusable:
            self.close()
            raise

    def start(self) -> None:
        self._service = subprocess.Popen(
            [*self._command, "system", "service", "--time=0", f"unix://{self.socket}"],
            env=self._env,
            cwd=self.home,  # conmon leaves a file there
            stdout=subprocess.DEVNULL,
            stderr=(self.home / "service.log").open("ab"),
            start_new_session=True,
        )
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                return Engine(self.socket).ping()
            except EngineError as error:
                if time.monotonic() > deadline:
                    raise Unusable(f"podman does not serve: {error}") from error
                time.sleep(0.05)

    def kill(self) -> None:
        """Only the service: its containers go on."""
        if self._service is not None:
            self._service.kill()
            self._service.wait()
            self._service = None

    def containers(self) -> list[str]:
        """Names of all containers, running or not."""
        return self.run("ps", "--all", "--format", "{{.Names}}").split()

    def inspect(self, name: str) -> dict:
        return json.loads(self.run("inspect", name))[0]

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            env=self._env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise Unusable(f"podman {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def close(self) -> None:
        subprocess.run(
            [*self._command, "rm", "--all", "--force", "--time", "0"],
            env=self._env,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def _command(self) -> list[str]:
        return [
            "podman",
            *("--root", str(self.home / "root"), "--runroot", str(self.home / "runroot")),
            *("--runtime", "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "vfs"),
        ]

    def _import_image(self) -> None:
        tree = self.home / "image"
        (tree / "bin").mkdir(parents=True)
        (tree / "tmp").mkdir()
        (tree / "tmp").chmod(0o1777)
        shutil.copy(shutil.which("busybox"), tree / "bin" / "busybox")
        for applet in _APPLETS.split():
            (tree / "bin" / applet).symlink_to("busybox")
        (tree / "bin" / "not-executable").touch(0o644)
        archive = self.home / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(tree, arcname=".")
        self.run("import", "--change", "ENV=FROM_IMAGE=yes", "--change", "USER=0", str(archive), IMAGE)

    def _try(self) -> None:
        limits = ("--memory=64m", "--pids-limit=50", "--ulimit=nproc=1024:1024", "--ulimit=nofile=1024:1024")
        self.run("run", "--rm", *limits, IMAGE, "/bin/true")


class Unusable(Exception):  # noqa: N818 - a fact about this machine
    pass


@pytest.fixture(scope="module")
def podman():
    try:
        engine = Podman()
    except Unusable as why:
        pytest.skip(f"no container can run here: {why}")
    yield engine
    engine.close()
