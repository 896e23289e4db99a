"""Executes the outputs of one node's machine: streams, probe, runner, timer. asyncio, no decisions."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from dgpu.agent.channel import OpenChannel
from dgpu.agent.channel_stream import ChannelStream, open_channels
from dgpu.agent.disk_watch import DiskWatch
from dgpu.agent.epoch import Joined, JoinedFile, NotJoined
from dgpu.agent.file_stream import FilesDesk, FileStream
from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.lifecycle_words import (
    CheckRelease,
    DropOutput,
    ForgetRuns,
    KeepOutput,
    OutputStored,
    StartRuns,
    StopRuns,
    ThawRuns,
    Woke,
)
from dgpu.agent.memory import with_leases
from dgpu.agent.new_node import new_node
from dgpu.agent.node import NodeInput, NodeOutput, StreamOpened
from dgpu.agent.options import AgentOptions, NodeOptions
from dgpu.agent.output_host import OutputDesk, OutputHost
from dgpu.agent.probe.check import check_card
from dgpu.agent.probe.detect import GpuSelection, detect
from dgpu.agent.probe.probe import FoundGpu, Probe, ProbeError, Sample
from dgpu.agent.probe.simulated import SimulatedProbe
from dgpu.agent.release_watch import ReleaseWatch
from dgpu.agent.run.runner import Runner, RunnerWord
from dgpu.agent.run_meter import RunMeter
from dgpu.agent.session import NEVER_MS
from dgpu.agent.session_words import (
    CardChecked,
    CheckCard,
    Dial,
    Disconnected,
    EpochSaved,
    Flush,
    GpusFound,
    HangUp,
    Heard,
    NodeGpu,
    Note,
    Opened,
    Received,
    Sampled,
    SaveEpoch,
    Send,
    TakeSamples,
    Written,
)
from dgpu.agent.stream import MainStream
from dgpu.agent.workers.host import WorkerHost
from dgpu.agent.workers.samples import busy_gpus, with_simulated_memory
from dgpu.core.model.ids import GpuId, LeaseId

_GOODBYE_SECONDS = 5.0


class NodeHost:
    def __init__(
        self,
        options: AgentOptions,
        node: NodeOptions,
        *,
        joined: JoinedFile,
        desk: OutputDesk,
        files: FilesDesk,
        disk: DiskWatch,
        boot_id: str,
        open_channel: OpenChannel,
    ) -> None:
        self.id = node.id
        self._options = options
        self._node = node
        self._joined = joined
        self._open_channel = open_channel
        self._log = structlog.get_logger("dgpu.agent").bind(node=node.id)
        self._runner: Runner | None = None
        self._probe: Probe | None = None
        self._selection: GpuSelection | None = None
        self._machine = new_node(options, node, joined.joined, boot_id)
        self._output = OutputHost(
            node_id=node.id,
            desk=desk,
            is_running=self._machine.is_running,
            run_of=self._machine.run_of,
            on_settled=lambda lease_id: self._feed(OutputStored(lease_ids=(lease_id,))),
        )
        self._workers = WorkerHost(
            node.id,
            output_dir=desk.shelf.directory,
            output_cap_bytes=options.output_cap_bytes,
            uploads=files.uploads,
            feed=self._feed,
        )
        self._release = ReleaseWatch(node.id, feed=self._feed, spawn=self._spawn)
        self._disk = disk
        self._inbox: collections.deque[NodeInput] = collections.deque()
        self._working = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = NEVER_MS
        self._streams: dict[str, MainStream] = {}  # by the address of the scheduler
        self._opened = ""  # the address of the scheduler that has sent a welcome
        self._desk = files
        self._files: FileStream | None = None
        self._channels: ChannelStream | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def find_gpus(self) -> None:
        found = await asyncio.to_thread(
            detect,
            self._node.detection_method,
            node_id=self._node.id,
            simulated=self._node.simulated,
            max_temperature_c=self._node.max_temperature_c,
        )
        self._probe = found.probe
        if found.probe is None:
            self._log.warning("no_gpus", reason=found.why_none)
        self._selection = GpuSelection.resolve(
            found.gpus, gpu_ids=self._node.gpu_ids, reserved_gpu_ids=self._node.reserved_gpu_ids
        )
        for missing in self._selection.missing:
            self._log.warning("configured_gpu_missing", gpu=missing)
        self._feed_gpus(found.gpus)

    def attach(self, runner: Runner) -> None:
        self._runner = runner
        self._workers.attach(runner)
        if self._probe is not None:
            self._spawn(self._check_health())

    def relabel(self, labels: dict[str, str]) -> None:
        self._machine.session.identity = replace(self._machine.session.identity, labels=labels)
        for address in tuple(self._streams):
            self._on_stream_end(address, "its labels changed")

    def hear(self, words: Sequence[RunnerWord]) -> None:
        self._feed(*words)

    async def say_goodbye(self) -> None:
        """Waits until every end is acknowledged, if a scheduler is connected."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                while self._machine.session.open and self._machine.held():  # noqa: ASYNC110 - once in a life
                    await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Disconnects: the scheduler notices the silence or the next registration."""
        if self._timer is not None:
            self._timer.cancel()
        for address in tuple(self._streams):
            self._close_stream(address)
        self._output.close()
        await self._workers.close()
        for task in list(self._tasks):
            task.cancel()
        if self._probe is not None:
            await asyncio.to_thread(self._probe.close)

    # -- the machine

    def _feed(self, *values: NodeInput) -> None:
        """Inputs that arise meanwhile are queued; reports leave when the queue is empty."""
        self._inbox.extend(values)
        if self._working:
            return
        self._working = True
        try:
            while self._inbox:
                while self._inbox:
                    self._step(self._inbox.popleft())
                self._step(Flush())
        finally:
            self._working = False
        self._set_timer()

    def _step(self, value: NodeInput) -> None:
        for output in self._machine.on_input(value, boot_ms()):
            self._carry_out(output)

    def _carry_out(self, output: NodeOutput) -> None:  # one line per kind
        assert self._runner is not None  # noqa: S101 - the runner's list comes first of all
        match output:
            case Send():
                if (stream := self._streams.get(output.address)) is not None:
                    stream.send(output.message)
            case StartRuns():
                self._runner.start(self.id, output.orders)
            case CheckRelease():
                self._release.check(self._probe, output)
            case ForgetRuns():
                self._runner.forget(output.lease_ids)
            case StopRuns():
                self._runner.stop(output.orders)
            case ThawRuns():
                self._runner.thaw(output.lease_ids)
            case KeepOutput():
                self._output.keep(output)
            case DropOutput():
                self._output.drop(output)
            case Heard():
                self._runner.heard(
                    self.id, at_ms=output.at_ms, lease_ms=output.lease_ms, action=output.action
                )
            case TakeSamples():
                self._take_samples()
            case CheckCard():
                self._spawn(self._check_card(output))
            case SaveEpoch():
                self._save_epoch(output.address, output.joined)
            case Dial():
                self._dial(output.address)
            case HangUp():
                self._on_stream_end(output.address, output.reason)
            case Opened():
                if (stream := self._streams.get(output.address)) is not None:
                    where = (stream.channel, self.id, output.session_id)
                    self._output.open(stream.channel, output.session_id)
                    self._files = self._desk.open(
                        *where, RunMeter(self._machine.lifecycle.memory, self._runner.owners)
                    )
                    self._desk.uploads.connected(self.id, stream.channel, output.session_id)
                    self._channels = open_channels(self._options, *where, self._runner)
                    self._opened = output.address
            case Note():
                self._log.info(output.event, detail=output.detail)
            case _:
                self._workers.carry_out(output)

    def _save_epoch(self, address: str, joined: Joined) -> None:
        try:
            self._joined.save(joined)
        except (OSError, NotJoined) as error:
            # The scheduler is not obeyed: after a crash, an older one would be accepted. The next call tries again.
            self._on_stream_end(address, f"epoch {joined.epoch} cannot be saved: {error}")
        else:
            self._feed(EpochSaved(joined=joined))

    def _set_timer(self) -> None:
        wake_at_ms = self._machine.wake_at_ms
        if wake_at_ms == self._timer_at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_ms = wake_at_ms
        if wake_at_ms < NEVER_MS:
            pause = max(0, wake_at_ms - boot_ms()) / 1_000 + 0.001
            self._timer = asyncio.get_running_loop().call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at_ms = NEVER_MS
        self._feed(Woke())

    # -- streams

    def _dial(self, address: str) -> None:
        self._close_stream(address)
        self._streams[address] = MainStream(
            address,
            open_channel=self._open_channel,
            on_open=lambda: self._feed(StreamOpened(address=address)),
            on_message=lambda message: self._feed(Received(address=address, message=message)),
            on_written=lambda: self._feed(Written(address=address)),
            on_end=lambda reason: self._on_stream_end(address, reason),
        )

    def _on_stream_end(self, address: str, reason: str) -> None:
        self._close_stream(address)
        self._feed(Disconnected(address=address, reason=reason))

    def _close_stream(self, address: str) -> None:
        """With the stream of the welcomed scheduler, those of output, files and channels end."""
        if address == self._opened:
            self._opened = ""
            self._desk.uploads.lost(self.id)
            if self._files is not None:
                self._files.close()
                self._files = None
            if self._channels is not None:
                self._channels.close()
                self._channels = None
            self._output.hang_up()
        if (stream := self._streams.pop(address, None)) is not None:
            stream.close()

    # -- the cards

    def _feed_gpus(self, found: Sequence[FoundGpu]) -> None:
        assert self._selection is not None  # noqa: S101 - resolved before
        self._release.cards_mb = {gpu.id: gpu.memory_mb for gpu in found}
        gpus = tuple(
            NodeGpu(
                id=picked.gpu.id,
                index=picked.gpu.index,
                model=picked.gpu.model,
                memory_mb=picked.gpu.memory_mb,
                reserved=picked.reserved,
                fault=picked.gpu.fault,
                fault_cause=picked.gpu.fault_cause,
                near=picked.gpu.near,
            )
            for picked in self._selection.pick(found)
        )
        if self._runner is None:
            self._machine.on_input(GpusFound(gpus=gpus), boot_ms())
        else:
            self._feed(GpusFound(gpus=gpus))

    async def _check_health(self) -> None:
        assert self._probe is not None  # noqa: S101 - started only with one
        while True:
            await asyncio.sleep(self._options.health_check_ms / 1_000)
            try:
                self._feed_gpus(await asyncio.to_thread(self._probe.list_gpus))
            except ProbeError as error:
                self._log.warning("probe_failed", error=str(error))

    async def _check_card(self, asked: CheckCard) -> None:
        found = await asyncio.to_thread(check_card, self._probe, asked.gpu_id, self._node.check_command)
        self._log.info("gpu_checked", gpu=asked.gpu_id, ok=found.ok, found=found.words)
        # The sample first: the heartbeat before the answer shows whether the fault is gone.
        if self._probe is not None:
            await self._sample()
        self._feed(CardChecked(gpu_id=asked.gpu_id, number=asked.number, ok=found.ok, evidence=found.words))

    def _take_samples(self) -> None:
        if isinstance(self._probe, SimulatedProbe):
            holders, workers = self._machine.lifecycle.gpu_holders(), self._machine.workers.book.workers
            busy = dict.fromkeys(busy_gpus(holders, workers), frozenset[int]())
            samples = with_simulated_memory(self._probe.sample(busy), holders, workers)
            self._feed(Sampled(samples=samples, unfit=self._disk.unfit(boot_ms())))
        elif self._probe is not None:
            self._spawn(self._sample())
        else:
            self._feed(Sampled(samples=(), unfit=self._disk.unfit(boot_ms())))

    async def _sample(self) -> None:
        holders = self._machine.lifecycle.gpu_holders()
        try:
            samples = await asyncio.to_thread(self._sample_now, holders)
        except ProbeError as error:
            self._log.warning("probe_failed", error=str(error))
        else:
            self._feed(Sampled(samples=samples, unfit=self._disk.unfit(boot_ms())))

    def _sample_now(self, holders: dict[GpuId, tuple[LeaseId, ...]]) -> tuple[Sample, ...]:
        assert self._probe is not None  # noqa: S101 - asked for before
        assert self._runner is not None  # noqa: S101 - attached before any session
        owners = self._runner.owners() if holders else {}
        samples = self._probe.sample(dict.fromkeys(holders, frozenset(owners)))
        return with_leases(samples, holders, owners)

    def _spawn(self, work: collections.abc.Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
