"""The part of the REST API that functions need, in front of real worker processes: no scheduler, no agent."""

from __future__ import annotations

import base64
import contextlib
import http.server
import io
import json
import pathlib
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from dgpu.worker import frames
from worker_process import AgentEnd, WorkerProcess

_STATUS = {"returned": "success", "cancelled": "cancelled"}


class FunctionServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tasks: list[dict[str, Any]] = []
        self.ended: dict[str, dict[str, Any]] = {}
        self.cancelled: list[str] = []
        self.content: dict[str, bytes] = {}
        self.news = threading.Condition()
        self._workers: dict[str, tuple[WorkerProcess, AgentEnd]] = {}
        self._directory = pathlib.Path(tempfile.mkdtemp(prefix="functions-"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def submit(self, task: dict[str, Any]) -> str:
        with self.news:
            self.tasks.append(task)
            number = len(self.tasks)
            _, agent = self._worker(task)
            body = base64.b64decode(task["args_msgpack"]) if "args_msgpack" in task else b""
            file = ""
            if ref := task.get("args_ref"):
                file = f"args-{number}"
                (self._workers[self._key(task)][0].path.parent / file).write_bytes(self.content[ref])
            agent.send(
                frames.Call(
                    lease=number,
                    task_id=number,
                    entrypoint=task["entrypoint"],
                    args=body,
                    args_file=file,
                    model=task.get("model_name", ""),
                )
            )
        return f"task-{number}"

    def results(self, task_ids: list[str], wait: float) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            return [self.ended[task_id] for task_id in task_ids if task_id in self.ended]

        with self.news:
            self.news.wait_for(found, timeout=wait)
            return found()

    def stop(self) -> None:
        self.shutdown()
        for worker, _ in self._workers.values():
            worker.stop()
        self.server_close()

    def _key(self, task: dict[str, Any]) -> str:
        return json.dumps([task.get("python_path"), task.get("upload"), task.get("preload"), task.get("env")])

    def _worker(self, task: dict[str, Any]) -> tuple[WorkerProcess, AgentEnd]:
        key = self._key(task)
        if key not in self._workers:
            directory = self._directory / str(len(self._workers))
            directory.mkdir()
            if upload := task.get("upload"):
                with tarfile.open(fileobj=io.BytesIO(self.content[upload])) as archive:
                    archive.extractall(directory, filter="data")
            setup = {"python_path": task.get("python_path", []), "preload": task.get("preload", [])}
            worker = WorkerProcess(directory, env=task.get("env"), **setup)
            agent = worker.connect()
            agent.socket.settimeout(None)
            self._workers[key] = worker, agent
            threading.Thread(target=self._listen, args=(worker, agent), daemon=True).start()
        return self._workers[key]

    def _listen(self, worker: WorkerProcess, agent: AgentEnd) -> None:
        decoder = frames.AgentDecoder()
        while data := agent.socket.recv(1 << 20):
            for frame in decoder.feed(data):
                if isinstance(frame, frames.Done):
                    self._finish(worker, frame)
                    agent.send(frames.Taken(leases=(frame.lease,)))

    def _finish(self, worker: WorkerProcess, done: frames.Done) -> None:
        task_id = f"task-{done.lease}"
        answer = {
            "task_id": task_id,
            "status": _STATUS.get(done.outcome, "failed"),
            "reason": "" if done.outcome == "returned" else done.outcome,
            "error": done.error,
            "traceback": done.traceback,
        }
        if done.result_file:
            self.content[task_id] = (worker.path.parent / done.result_file).read_bytes()
            answer["ref"] = done.sha256
        elif done.outcome == "returned":
            answer |= {"result": base64.b64encode(done.result).decode(), "encoding": "msgpack"}
        with self.news:
            self.ended[task_id] = answer
            self.news.notify_all()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FunctionServer

    def log_message(self, *_: Any) -> None:
        """Silent."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        match url.path.split("/")[3:]:
            case ["tasks", task_id, "result"]:
                wait = float(parse_qs(url.query).get("wait", ["0"])[0])
                found = self.server.results([task_id], wait)
                self._answer(found[0] if found else {"task_id": task_id, "status": "running"})
            case ["tasks", task_id, "result", "content"]:
                found_content = self.server.content.get(task_id)
                if found_content is None:
                    self._send(410, b'{"code": "result_expired", "title": "", "status": 410, "detail": ""}')
                else:
                    self._send(200, found_content)
            case ["uploads"]:
                self._answer(
                    {"tenant_id": "default", "max_bytes": 1 << 30, "tenant_bytes": 1 << 30, "used_bytes": 0}
                )
            case _:
                self._answer({"title": "Not found", "status": 404, "code": "not_found"}, 404)

    def do_PUT(self) -> None:
        sha256 = urlsplit(self.path).path.split("/")[-1]
        self.server.content[sha256] = self.rfile.read(int(self.headers["Content-Length"]))
        size = len(self.server.content[sha256])
        self._answer({"sha256": sha256, "tenant_id": "default", "size_bytes": size})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match urlsplit(self.path).path.split("/")[3:]:
            case ["tasks"]:
                self._answer({"task_id": self.server.submit(body), "status": "pending", "created_at": ""})
            case ["tasks", "batch"]:
                ids = [self.server.submit({**body["task"], "args_msgpack": args}) for args in body["calls"]]
                self._answer({"task_ids": ids})
            case ["tasks", "results"]:
                found = self.server.results(body["task_ids"], body["wait"])
                self._answer({"results": found, "pending": len(body["task_ids"]) - len(found)})
            case ["tasks", "cancel"]:
                self.server.cancelled += body["task_ids"]
                self._answer({"cancelled": len(body["task_ids"]), "task_ids": body["task_ids"]})

    def _answer(self, value: Any, status: int = 200) -> None:
        self._send(status, msgspec.json.encode(value))

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def function_server() -> Iterator[FunctionServer]:
    server = FunctionServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.stop()
