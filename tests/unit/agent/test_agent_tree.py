"""Looking at processes, and what a machine has to give."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import tracemalloc

import pytest

from dgpu.agent import held, machine, tree
from dgpu.agent.corral import Corral
from dgpu.agent.fences import Fences
from dgpu.agent.frames import Decoder, FrameTooLarge, encode
from dgpu.agent.spawn import CannotStart, find_program
from dgpu.agent.tree import OrphanWatch, Survey, is_thread, markers, read_proc, send
from dgpu.entry.processes import command_line


@pytest.fixture
def child():
    environment = {"DGPU_LEASE_ID": "12", "DGPU_KEEPER": "k"}
    process = subprocess.Popen(["/bin/sleep", "1000"], env=environment)
    yield process
    process.kill()
    process.wait()


def test_a_process_is_read_whatever_its_name(tmp_path) -> None:
    program = tmp_path / "a) (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "1000"])
    try:
        proc = read_proc(process.pid)
        assert proc is not None
        assert (proc.pid, proc.ppid, proc.dead) == (process.pid, os.getpid(), False)
    finally:
        process.kill()
        process.wait()
    assert read_proc(process.pid) is None


def test_a_survey_finds_children_and_marks(child) -> None:
    survey = Survey()
    assert child.pid in survey.with_descendants([os.getpid()])
    assert markers(child.pid) == ("12", "k")
    assert list(survey.marked("k", 12)) == [child.pid]
    assert list(survey.marked("k", 13)) == []


def test_a_reused_pid_is_not_signalled(child) -> None:
    proc = read_proc(child.pid)
    assert proc is not None
    send(proc._replace(start_ticks=proc.start_ticks - 1), 9)
    assert child.poll() is None
    send(proc, 9)
    assert child.wait() == -9


def test_a_thread_is_not_taken_for_a_process() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id is not None
    assert is_thread(thread.native_id)
    assert not is_thread(os.getpid())
    done.set()
    thread.join()


def test_a_child_started_later_is_noticed(child) -> None:
    watch = OrphanWatch()
    assert watch.may_have_left(child.pid - 1, mains=())


def test_programs_are_found_in_the_tasks_own_path(tmp_path) -> None:
    program = tmp_path / "mine"
    program.write_text("")
    refused = find_program("mine", f"/nowhere:{tmp_path}")
    assert refused == CannotStart("cannot_start", 126, "mine: not executable")
    program.chmod(0o755)
    assert find_program("mine", f"/nowhere:{tmp_path}") == str(program)
    assert find_program("./mine", "") == "./mine"
    assert find_program("mine\n", "/bin") == CannotStart("cannot_start", 127, "mine?: command not found")


def test_frames_arrive_whole_however_they_are_cut() -> None:
    frames = [{"spawn": [{"lease": 1, "env": {"A": "ä\ud800"}}]}, {}, {"stop": [[1, 0, "stopped"]]}]
    stream = b"".join(encode(frame) for frame in frames)
    decoder = Decoder()
    found = [frame for at in range(len(stream)) for frame in decoder.feed(stream[at : at + 1])]
    assert found == frames


def test_a_frame_without_measure_is_refused() -> None:
    with pytest.raises(FrameTooLarge):
        Decoder().feed(b"\xff\xff\xff\xff")


def test_the_machine_knows_what_it_has() -> None:
    assert 0 < machine.cpus_milli() <= (os.cpu_count() or 1) * 1_000
    assert 0 < machine.ram_mb() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    assert len(machine.boot_id()) == 36


def test_the_keeper_needs_the_standard_library_only() -> None:
    """It must start fast, stay small, and not break with an installed package."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import dgpu.agent.guard; "
        "print(sorted({name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(machine.__file__)))  # noqa: PTH120
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "['__main__', 'dgpu']"


def test_many_trees_are_frozen_with_as_few_looks_as_one(tmp_path, monkeypatch) -> None:
    """The scheduler gives their leases away five seconds later, however many there are."""
    looks: list[int] = []

    class CountedSurvey(Survey):
        def __init__(self) -> None:
            looks.append(1)
            super().__init__()

    monkeypatch.setattr(held, "Survey", CountedSurvey)
    processes = [subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True) for _ in range(5)]
    corral = Corral("test")
    fences = Fences(corral, "test")
    try:
        trees = {
            process.pid: held.Held(
                {"lease": process.pid, "node": "n1", "grace_ms": 0, "timeout_ms": 0},
                pid=process.pid,
                now_ms=0,
                ticks=0,
            )
            for process in processes
        }
        keeping = held.Trees(keeper_id="test", mains=trees, live=trees, corral=corral, fences=fences)
        keeping.freeze(list(trees.values()), 1)
        assert len(looks) == 2
        assert {tree.frozen_since_ms for tree in trees.values()} == {1}
    finally:
        for process in processes:
            process.kill()
        fences.close()
        corral.close()
        for process in processes:
            process.wait()


def test_a_process_that_changes_its_program_keeps_its_mark(tmp_path) -> None:
    """In the middle of an exec it shows no environment; taken for unmarked, it would outlive its task."""
    script = tmp_path / "again.sh"
    script.write_text('exec sh "$0"\n')
    marked = {**os.environ, tree.LEASE_MARKER: "7", tree.KEEPER_MARKER: "k"}
    with subprocess.Popen(["sh", str(script)], env=marked) as process:
        try:
            while not markers(process.pid)[0]:
                pass
            seen = {markers(process.pid) for _ in range(2_000)}
        finally:
            process.kill()
    assert seen == {("7", "k")}


def test_an_empty_environment_is_an_answer() -> None:
    with subprocess.Popen(["sleep", "1000"], env={}) as process:
        try:
            while pathlib.Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
                pass
            while (size := tree._environ_size(process.pid)) == -1:  # the name comes a moment before the rest
                pass
            assert size == 0
            assert markers(process.pid) == ("", "")
        finally:
            process.kill()


# Names empty memory as its environment and as its arguments, as every process may.
ENDLESS = """
import ctypes, mmap, struct, sys, time
size = int(sys.argv[1])
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
stat = [0, 0, 0, *open("/proc/self/stat").read().rpartition(")")[2].split()]  # numbers as in proc(5)
code, stack, data = stat[26:28], stat[28], stat[45:48]
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
places = [*code, *data, libc.sbrk(0), stack, begin, begin + size, begin, begin + size, 0]
wanted = struct.pack("=12QIi", *map(int, places), 0, -1)
PR_SET_MM, PR_SET_MM_MAP = 35, 14
if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, wanted, ctypes.c_ulong(len(wanted)), 0):
    raise SystemExit(f"errno {ctypes.get_errno()}")
print("ready", flush=True)
time.sleep(1000)
"""


def test_an_endless_environment_costs_the_keeper_little() -> None:
    """A keeper was seen at 6.5 GiB, deaf for minutes, because of one other process on the node."""
    size = 128 << 20
    program = [sys.executable, "-c", ENDLESS, str(size)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            assert tree._environ_size(process.pid) == size
            tracemalloc.start()
            assert markers(process.pid) == ("", "")
            assert len(command_line(process.pid)) < size
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            process.kill()
    assert peak < 32 << 20
