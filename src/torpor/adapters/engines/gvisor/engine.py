"""The gVisor engine: orchestration only.

What is said to runsc is in ``commands``, the order of a capture in ``capture``, each kind of I/O in its own module.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torpor.adapters.engines.gvisor import capture, channel, images, network, parse, probe, process
from torpor.adapters.engines.gvisor.cgroup import Cgroup, hierarchies_of
from torpor.adapters.engines.gvisor.commands import Runsc, SpecPlaces, memory_limit_bytes, oci_spec
from torpor.adapters.engines.gvisor.config import GVisorConfig
from torpor.adapters.engines.gvisor.control import BUILDS, Control
from torpor.adapters.engines.gvisor.driver import CommandDriver, ControlDriver, Driver
from torpor.adapters.engines.gvisor.layout import FILESYSTEM_TAR, Layout
from torpor.adapters.engines.gvisor.record import Pause, Phase, Record, read_record, with_pause, write_record
from torpor.domain.errors import Conflict, EngineError, NotFound, TorporError, Unsupported
from torpor.domain.ids import InstanceId
from torpor.ports.clock import Clock
from torpor.ports.engine import Channel, Checkpoint, EngineCapabilities, InstanceShape, InstanceStatus

KILL_TIMEOUT_S = 20.0


class GVisorEngine:
    """Implements ports.engine.Engine with one runsc build. Used from one event loop, as root."""

    def __init__(self, config: GVisorConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._layout = Layout(config.runtime_dir)
        self._layout.check()
        self.runsc = Runsc(config.runsc, self._layout.root)  # knows its features once it is probed
        self._hierarchies = hierarchies_of(Path("/proc/self/mountinfo").read_text())
        self._reaper = process.Reaper()
        self._readers: dict[InstanceId, int] = {}
        self._links: dict[InstanceId, socket.socket] = {}  # packet sockets of those that were created here and wait
        self._probing = asyncio.Lock()
        self._first_create = asyncio.Lock()
        self._has_created = False
        self._probed: probe.Probed | None = None

    async def capabilities(self) -> EngineCapabilities:
        """See the port."""
        return (await self._probe()).capabilities

    async def create(self, instance: InstanceId, shape: InstanceShape, *, filesystem: Path | None = None) -> None:
        """See the port."""
        probed = await self._probe()
        if filesystem is not None and not probed.features.rootfs_tar:
            version = probed.capabilities.version
            raise Unsupported(
                f"cannot lay a filesystem part over the root: runsc {version} has none", lacks="filesystem_part"
            )
        bundle = self._layout.bundle(instance)
        self._make_folders()
        try:
            bundle.mkdir(mode=0o700)
        except FileExistsError as error:
            raise Conflict(f"cannot create {instance}: the id is in use", reason="instance_exists") from error
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self.destroy, instance)
            record = write_record(bundle, Record(shape=shape))
            self._write_bundle(instance, shape, filesystem)
            self._links[instance] = await asyncio.to_thread(network.make_namespace, self._layout.netns(instance))
            # runsc's first create pins a namespace for all gofers; of two at once one would find it half made and fail.
            async with contextlib.nullcontext() if self._has_created else self._first_create:
                await self._create_sandbox(instance, shape)
            self._has_created = True
            self._adopt(instance, record)
            undo.pop_all()
        self._config.on_event("create")

    async def start(self, instance: InstanceId) -> None:
        """See the port."""
        bundle, record = self._startable(instance, "start")
        await self._probe()
        argv = self.runsc.start(instance, bundle, disk_bytes=record.shape.disk_bytes)
        await asyncio.to_thread(network.show_address, self._layout.netns(instance))
        await self._run(f"start {instance}", argv, bundle=bundle)
        self._started(instance, record)
        self._config.on_event("start")

    async def restore(
        self, instance: InstanceId, directory: Path, *, requirements: Mapping[str, Any], background: bool = False
    ) -> None:
        """See the port."""
        bundle, record = self._startable(instance, "restore into")
        capabilities = await self.capabilities()
        present = images.requirements_of(capabilities, record.shape, self._read_spec(bundle))
        images.check_requirements(requirements, present)
        images.check_files(directory, images.MEMORY_FILES)
        if instance in self._links and self._has_known_socket():
            with self._links.pop(instance) as link:
                await self._restore_by_socket(instance, directory, link, background=background)
        else:  # as well if an earlier server made it: its packet socket died with that one
            argv = await self.restore_argv(instance, directory, background=background)
            await self._run(f"restore into {instance}", argv, bundle=bundle)
        self._started(instance, replace(record, loading=background))
        self._config.on_event("restore")

    async def restore_argv(self, instance: InstanceId, directory: Path, *, background: bool = False) -> tuple[str, ...]:
        """The command line that restores, where the control socket is not known and to measure the raw engine.

        What the command looks for in the instance's network is put there. Raises: NotFound.
        """
        bundle, record = self._known(instance)
        await asyncio.to_thread(network.show_address, self._layout.netns(instance))
        return self.runsc.restore(
            instance, bundle, directory, disk_bytes=record.shape.disk_bytes, background=background
        )

    async def loaded(self, instance: InstanceId) -> None:
        """See the port."""
        await self._probe()
        bundle, record = self._known(instance)
        if record.loading:
            await self._driver(instance).wait_restore()
            write_record(bundle, replace(self._known(instance)[1], loading=False))

    async def checkpoint(self, instance: InstanceId, into: Path, *, memory: bool = True) -> Checkpoint:
        """See the port."""
        bundle, record = self._known(instance)
        status = await self.inspect(instance)
        if status is not InstanceStatus.RUNNING:
            raise Conflict(f"cannot checkpoint {instance}: it is {status}", reason=f"instance_{status}")
        if any(into.iterdir()):
            raise EngineError(f"cannot checkpoint into {into}: it is not empty")
        await self.loaded(instance)
        capabilities = await self.capabilities()
        parts = images.Parts.of(memory=memory, filesystem=capabilities.filesystem_part)
        subject = capture.Subject(bundle, self._known(instance)[1], self._driver(instance))
        try:
            with self._unlimited(instance, record):
                async with asyncio.timeout(self._config.capture_timeout_s):
                    timings_ms = await capture.capture(subject, into, self._clock, parts)
        except TimeoutError as error:
            raise EngineError(
                f"cannot checkpoint {instance}: not done in {self._config.capture_timeout_s} s"
            ) from error
        self._config.on_event("checkpoint")
        return Checkpoint(
            directory=into,
            memory_files=parts.memory_files,
            filesystem_file=parts.filesystem_file,
            requirements=images.requirements_of(capabilities, record.shape, self._read_spec(bundle)),
            timings_ms=timings_ms,
        )

    @contextlib.contextmanager
    def _unlimited(self, instance: InstanceId, record: Record) -> Iterator[None]:
        """No memory limit from here to the thaw: what a stopped sandbox writes into memory counts as its own.

        The images of a full sandbox would have it killed. Where they lie has a size, and ends them typed.
        """
        cgroup = self._cgroup(instance)
        cgroup.limit_memory(None)
        try:
            yield
        except BaseException:
            cgroup.limit_memory(memory_limit_bytes(record.shape))
            raise

    async def freeze(self, instance: InstanceId) -> None:
        """See the port."""
        self._known(instance)
        await self._cgroup(instance).freeze()

    async def thaw(self, instance: InstanceId) -> None:
        """See the port."""
        await self._probe()
        bundle, record = self._known(instance)
        cgroup = self._cgroup(instance)
        cgroup.limit_memory(memory_limit_bytes(record.shape))
        if cgroup.can_freeze:
            await cgroup.thaw()
        subject = capture.Subject(bundle, record, self._driver(instance))
        if record.pause in {Pause.PAUSING, Pause.RESUMING} and not await subject.driver.is_paused():
            write_record(bundle, with_pause(record, Pause.NO))
        elif record.pause is not Pause.NO:
            await capture.resume(subject)

    async def destroy(self, instance: InstanceId) -> None:
        """See the port. Goes on without the binary: then runsc's own files are removed by hand."""
        bundle = self._layout.bundle(instance)
        record = read_record(bundle)
        cgroup = self._cgroup(instance)
        doomed = {*cgroup.pids(), *(process.living(record.processes) if record else ())}
        cgroup.kill()
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        if cgroup.can_freeze and cgroup.is_frozen():
            await cgroup.thaw()
        await self._reaper.wait_dead(doomed, timeout_s=KILL_TIMEOUT_S)
        await self._forget(instance)
        await cgroup.remove()
        network.remove_namespace(self._layout.netns(instance))
        self._close_ends(instance)
        if bundle.exists():
            await asyncio.to_thread(shutil.rmtree, bundle)

    async def inspect(self, instance: InstanceId) -> InstanceStatus:
        """See the port."""
        bundle = self._layout.bundle(instance)
        if not bundle.exists():
            return InstanceStatus.ABSENT
        record = read_record(bundle)
        if record is None or record.phase is Phase.CREATING or not process.living(record.processes[:1]):
            return InstanceStatus.STOPPED
        if record.pause is not Pause.NO or self._cgroup(instance).is_frozen():
            return InstanceStatus.FROZEN
        return InstanceStatus.CREATED if record.phase is Phase.CREATED else InstanceStatus.RUNNING

    async def usage(self, instance: InstanceId) -> Mapping[str, float]:
        """See the port."""
        return self._cgroup(instance).usage()

    async def instances(self) -> tuple[InstanceId, ...]:
        """See the port."""
        if not self._layout.instances.exists():
            return ()
        return tuple(InstanceId(name) for name in sorted(os.listdir(self._layout.instances)))

    async def attach(self, instance: InstanceId) -> Channel:
        """See the port."""
        bundle, record = self._known(instance)
        self._reaper.adopt(process.living(record.processes))
        return channel.FifoChannel(bundle, reader=self._readers.pop(instance, None))

    async def retire(self) -> None:
        """Remove the runtime directory and the parent cgroup, once no instance is left. Idempotent.

        Raises: Conflict if one is left.
        """
        if left := await self.instances():
            raise Conflict(f"cannot retire {self._layout.runtime_dir}: {len(left)} instances are left", reason="in_use")
        if self._layout.runtime_dir.exists():
            await asyncio.to_thread(shutil.rmtree, self._layout.runtime_dir)
        await Cgroup(self._config.cgroup_parent, self._hierarchies, self._clock).remove()

    async def _probe(self) -> probe.Probed:
        async with self._probing:
            if self._probed is None:
                freezes = self._cgroup(InstanceId("x" * 20)).can_freeze
                self._probed = await probe.ask(self.runsc, can_freeze=freezes)
                self.runsc = replace(self.runsc, features=self._probed.features)
            return self._probed

    def _cgroup_path(self, instance: InstanceId) -> str:
        return f"{self._config.cgroup_parent}/{instance}"

    def _cgroup(self, instance: InstanceId) -> Cgroup:
        return Cgroup(self._cgroup_path(instance), self._hierarchies, self._clock)

    async def _restore_by_socket(
        self, instance: InstanceId, directory: Path, link: socket.socket, *, background: bool
    ) -> None:
        """40 to 70 ms less than the command, which is a large program that first finds out what is known here."""
        control = self._control(instance, timeout_s=self._config.command_timeout_s)
        with contextlib.ExitStack() as closing:
            files = [closing.enter_context((directory / name).open("rb")).fileno() for name in images.MEMORY_FILES]
            try:
                await control.restore(files, network.arguments(), link.fileno(), background=background)
            except EngineError as error:
                said = f"{self._logs(self._layout.bundle(instance))}\n{error.message}"
                raise parse.failure(f"restore into {instance}", said) from error

    def _has_known_socket(self) -> bool:
        return self._probed is not None and self._probed.capabilities.version in BUILDS

    def _control(self, instance: InstanceId, *, timeout_s: float) -> Control:
        return Control(self._layout.socket(instance), timeout_s=timeout_s)

    def _driver(self, instance: InstanceId) -> Driver:
        if self._has_known_socket():
            return ControlDriver(self._control(instance, timeout_s=self._config.capture_timeout_s), instance)
        return CommandDriver(self.runsc, instance, timeout_s=self._config.capture_timeout_s)

    def _known(self, instance: InstanceId) -> tuple[Path, Record]:
        """The bundle and record of an instance. Raises: NotFound."""
        bundle = self._layout.bundle(instance)
        record = read_record(bundle)
        if record is None:
            raise NotFound(f"cannot find instance {instance}", instance=instance)
        return bundle, record

    def _startable(self, instance: InstanceId, verb: str) -> tuple[Path, Record]:
        """The same, if it has not run. Raises: NotFound, Conflict, EngineError if its sandbox died."""
        bundle, record = self._known(instance)
        if not process.living(record.processes[:1]):
            raise EngineError(f"cannot {verb} {instance}: its sandbox died; destroy it")
        if record.phase is not Phase.CREATED:
            raise Conflict(
                f"cannot {verb} {instance}: it is {record.phase}, not created", reason=f"instance_{record.phase}"
            )
        if self._cgroup(instance).is_frozen():
            raise Conflict(f"cannot {verb} {instance}: it is frozen, thaw it first", reason="instance_frozen")
        return bundle, record

    def _started(self, instance: InstanceId, record: Record) -> None:
        """Note that it runs, unless it is dead already: PID 1 may be quicker than we are."""
        self._close_link(instance)
        write_record(self._layout.bundle(instance), replace(record, phase=Phase.RUNNING))

    def _make_folders(self) -> None:
        for folder in (self._layout.root, self._layout.instances, self._layout.namespaces):
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)

    def _write_bundle(self, instance: InstanceId, shape: InstanceShape, filesystem: Path | None) -> None:
        bundle = self._layout.bundle(instance)
        places = SpecPlaces(bundle, netns=self._layout.netns(instance), cgroup=self._cgroup_path(instance))
        real = replace(shape, rootfs=shape.rootfs.resolve())  # runsc's gofer fails on a path that goes through a link
        (bundle / "config.json").write_text(json.dumps(oci_spec(real, places, self.runsc.features)))
        (bundle / "resolv.conf").write_bytes(self._config.resolv_conf)
        (bundle / "ca-bundle.pem").write_bytes(self._config.ca_bundle)
        if filesystem is None:
            (bundle / FILESYSTEM_TAR).touch()  # an archive without members
        else:
            (bundle / FILESYSTEM_TAR).symlink_to(filesystem.resolve())
        channel.make_fifos(bundle)

    def _read_spec(self, bundle: Path) -> dict[str, Any]:
        spec: dict[str, Any] = json.loads((bundle / "config.json").read_text())
        return spec

    async def _create_sandbox(self, instance: InstanceId, shape: InstanceShape) -> None:
        bundle = self._layout.bundle(instance)
        argv = self.runsc.create(instance, bundle, disk_bytes=shape.disk_bytes)
        self._reaper.become_subreaper()
        stdin, stdout, reader = channel.open_guest_ends(bundle)
        self._readers[instance] = reader  # kept, so that what the guest says before anybody attaches is not lost
        try:
            await self._run(f"create {instance}", argv, bundle=bundle, stdio=(stdin, stdout))
        finally:
            os.close(stdin)
            os.close(stdout)

    def _adopt(self, instance: InstanceId, record: Record) -> None:
        """Take over the processes of a fresh sandbox."""
        bundle, cgroup = self._layout.bundle(instance), self._cgroup(instance)
        sandbox_pid = int((bundle / "pid").read_text())
        cgroup.forbid_swap()
        others = (pid for pid in cgroup.pids() if pid != sandbox_pid)
        processes = process.name_processes((sandbox_pid, *others))
        if not process.living(processes[:1]) or processes[0][0] != sandbox_pid:
            raise EngineError(f"cannot create {instance}: its sandbox died at once", log_tail=self._logs(bundle))
        self._reaper.adopt(pid for pid, _ in processes)
        write_record(bundle, replace(record, phase=Phase.CREATED, processes=processes))

    async def _run(
        self, doing: str, argv: tuple[str, ...], *, bundle: Path, stdio: tuple[int, int] | None = None
    ) -> None:
        completed = await process.run(argv, timeout_s=self._config.command_timeout_s, cwd=bundle, stdio=stdio)
        if completed.exit_code != 0:
            said = f"{self._logs(bundle)}\n{completed.stderr}"
            raise parse.failure(doing, said, argv=argv, exit_code=completed.exit_code)

    def _logs(self, bundle: Path) -> str:
        said = ""
        for name in ("runsc.log", "panic.log"):
            with contextlib.suppress(OSError):
                said += (bundle / name).read_text(errors="replace")[-parse.LOG_TAIL_CHARS * 4 :]
        return parse.log_messages(said)

    async def _forget(self, instance: InstanceId) -> None:
        """Make runsc forget a dead instance."""
        if not any(self._layout.root.glob(f"*{instance}*")):
            return
        with contextlib.suppress(TorporError):
            await process.run(self.runsc.delete(instance), timeout_s=self._config.command_timeout_s)
        for left in self._layout.root.glob(f"*{instance}*"):
            with contextlib.suppress(FileNotFoundError):
                left.unlink()

    def _close_ends(self, instance: InstanceId) -> None:
        if (reader := self._readers.pop(instance, None)) is not None:
            os.close(reader)
        self._close_link(instance)

    def _close_link(self, instance: InstanceId) -> None:
        if (link := self._links.pop(instance, None)) is not None:
            link.close()
