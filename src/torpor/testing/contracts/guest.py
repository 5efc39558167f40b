"""What every real guest agent promises, as tests. Subclass GuestContract and give the fixture ``station``.

Its bursts are Python and shell.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from torpor.domain.errors import InvalidArgument, NotFound, TorporError
from torpor.ports.guest import Cause, Guest, Output, ProcessSpec, StreamKind
from torpor.testing.contracts.guest_channel import (
    Collected,
    GuestChannelContract,
    GuestStation,
    notice,
    pieces,
    whole,
)
from torpor.testing.contracts.guest_whole import WholeGuestContract

__all__ = ["Collected", "GuestChannelContract", "GuestContract", "GuestStation", "notice", "pieces", "whole"]


class GuestContract(WholeGuestContract, GuestChannelContract):
    """Real processes. ``may_change_user``: the agent is root. ``has_ipython``: the template has IPython."""

    SET = "k = 41"
    GET = "k"
    FAIL = "raise ValueError('on purpose')"
    HANG = "while True: pass"
    PRINT = "print('out')"
    FOLDER = "/tmp/torpor-guest-contract"

    may_change_user = True
    has_ipython = False

    async def test_the_value_of_the_last_expression_is_the_result(self, guest: Guest) -> None:
        result = await guest.code("a = 6\na * 7")
        assert result.result is not None
        assert result.result["text/plain"] == "42"
        assert (await guest.code("a = 1")).result is None
        assert (await guest.code("None")).result is None

    async def test_bursts_are_counted(self, guest: Guest) -> None:
        counts = [(await guest.code("pass")).execution_count for _ in range(3)]
        assert counts == [counts[0], (counts[0] or 0) + 1, (counts[0] or 0) + 2]

    async def test_output_comes_from_every_level(self, guest: Guest) -> None:
        source = (
            "import os, sys, subprocess\n"
            "print('python'); os.write(1, b'descriptor\\n'); subprocess.run(['echo', 'child'])\n"
            "sys.stderr.write('error\\n')"
        )
        collected = Collected()
        await guest.code(source, on_output=collected)
        assert collected.stdout == b"python\ndescriptor\nchild\n"
        assert collected.of(StreamKind.STDERR).startswith(b"error\n")

    async def test_binary_output_survives(self, guest: Guest) -> None:
        collected = Collected()
        result = await guest.code(
            "import sys; _n = sys.stdout.buffer.write(bytes(range(256))); print('\\ud800 lone')", on_output=collected
        )
        assert result.error is None
        assert collected.stdout == bytes(range(256)) + b"\\ud800 lone\n"

    async def test_many_values_are_shown_without_a_word_about_those_that_are_forgotten(self, guest: Guest) -> None:
        collected = Collected()
        for number in range(105):
            burst = await guest.code(str(number), on_output=collected)
            assert burst.result is not None
            assert burst.result["text/plain"] == str(number)
        assert collected.outputs == []
        if self.has_ipython:
            kept = (await guest.code("len(Out) < 100, _")).result
            assert kept is not None
            assert kept["text/plain"] == "(True, 104)"

    async def test_display_data_keeps_its_place_in_the_output(self, guest: Guest) -> None:
        collected = Collected()
        source = ("from IPython.display import display\n" if self.has_ipython else "") + (
            "for n in range(20):\n    print('a', n)\n    display(n)\n    print('b', n)"
        )
        assert (await guest.code(source, on_output=collected)).error is None
        kinds = [output.stream for output in collected.outputs if output.stream is StreamKind.DISPLAY]
        assert len(kinds) == 20
        text = b"".join(
            output.data if output.stream is StreamKind.STDOUT else b"<display>\n" for output in collected.outputs
        )
        assert text == b"".join(b"a %d\n<display>\nb %d\n" % (n, n) for n in range(20))

    async def test_ten_megabytes_of_code_work_or_fail_with_a_type(self, guest: Guest) -> None:
        size = 10 * 1024 * 1024
        result = await guest.code(f"text = '{'x' * size}'\nlen(text)")
        assert result.result is not None
        assert result.result["text/plain"] == str(size)
        with pytest.raises(InvalidArgument, match="limit"):
            await guest.code("#" * (17 * 1024 * 1024))

    async def test_tracebacks_begin_in_user_code_and_have_no_colours(self, guest: Guest) -> None:
        error = (await guest.code("def f():\n    1 / 0\nf()")).error
        assert error is not None
        assert error.name == "ZeroDivisionError"
        assert "1 / 0" in error.traceback
        assert "torpor_guest" not in error.traceback
        assert "\x1b" not in error.traceback

    async def test_a_syntax_error_is_a_value(self, guest: Guest) -> None:
        error = (await guest.code("1 +")).error
        assert error is not None
        assert error.name == "SyntaxError"

    async def test_a_time_out_interrupts_and_keeps_the_variables(self, guest: Guest) -> None:
        result = await guest.code("kept = 1\nwhile True: pass", timeout_s=0.3)
        assert result.timed_out
        assert result.error is not None
        assert result.error.name == "KeyboardInterrupt"
        assert (await guest.code("kept")).error is None

    async def test_code_that_does_not_stop_costs_its_context_and_says_so(self, guest: Guest) -> None:
        stubborn = "import time\nwhile True:\n    try:\n        time.sleep(300)\n    except KeyboardInterrupt: pass"
        result = await guest.code(stubborn, timeout_s=0.3)
        assert result.timed_out
        assert result.error is not None
        assert result.error.name == "ContextLost"
        assert "lost" in result.error.value
        assert (await guest.code("1 + 1")).error is None

    async def test_a_worker_that_dies_is_an_error_value_and_the_next_burst_has_a_fresh_one(self, guest: Guest) -> None:
        await guest.code("k = 1")
        result = await guest.code("import os\nprint('last words', flush=True)\nos.kill(os.getpid(), 9)")
        assert result.error is not None
        assert "SIGKILL" in result.error.value
        missing = (await guest.code("k")).error
        assert missing is not None
        assert missing.name == "NameError"

    async def test_an_interrupt_of_an_idle_context_does_nothing(self, guest: Guest) -> None:
        await guest.code("k = 1")
        await guest.interrupt()
        await guest.interrupt(context="never used")
        assert (await guest.code("k")).error is None

    async def test_a_cancelled_call_interrupts_its_code(self, guest: Guest) -> None:
        await guest.hello()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await guest.code("n = 0\nwhile True: n += 1")
        assert (await guest.code("n > 0")).error is None

    async def test_bursts_of_one_context_queue_in_order(self, guest: Guest) -> None:
        await guest.code("seen = []")
        async with asyncio.TaskGroup() as group:
            for n in range(8):
                group.create_task(guest.code(f"seen.append({n})"))
        result = await guest.code("seen")
        assert result.result is not None
        assert result.result["text/plain"] == "[0, 1, 2, 3, 4, 5, 6, 7]"

    async def test_a_dead_reader_never_blocks_a_process(self, guest: Guest) -> None:
        release, done = asyncio.Event(), f"{self.FOLDER}/written"
        await guest.shell(f"mkdir -p {self.FOLDER}; rm -f {done}")

        async def read_nothing(_: Output) -> None:
            await release.wait()

        async with asyncio.TaskGroup() as group:
            script = f"head -c 9000000 /dev/zero; touch {done}"
            running = group.create_task(guest.execute(ProcessSpec(argv=("sh", "-c", script)), on_output=read_nothing))
            assert (await guest.shell(f"until test -e {done}; do sleep 0.05; done")).exit_code == 0
            release.set()
        assert running.result().exit_code == 0
        assert running.result().dropped_bytes > 0

    async def test_a_slow_reader_holds_up_its_own_stream_alone_and_loses_nothing_small(self, guest: Guest) -> None:
        release = asyncio.Event()
        collected = Collected()

        async def slow(output: Output) -> None:
            await release.wait()
            await collected(output)

        async with asyncio.TaskGroup() as group:
            running = group.create_task(guest.code("print('x' * 1_000_000)", on_output=slow))
            assert (await guest.shell("true")).exit_code == 0
            release.set()
        assert running.result().dropped_bytes == 0
        assert len(collected.stdout) == 1_000_001

    async def test_output_of_a_live_reader_is_complete_however_much_it_is(self, guest: Guest) -> None:
        size = 0

        async def count(output: Output) -> None:
            nonlocal size
            size += len(output.data)

        result = await guest.execute(ProcessSpec(argv=("head", "-c", "20000000", "/dev/zero")), on_output=count)
        assert (result.exit_code, result.dropped_bytes, size) == (0, 0, 20_000_000)

    async def test_a_shell_keeps_directory_variables_and_functions(self, guest: Guest) -> None:
        collected = Collected()
        await guest.shell("cd /usr; export A=5; declare -a LIST=(1 2); f() { echo f; }", on_output=collected)
        result = await guest.shell("f; pwd; echo $A ${LIST[1]}; env | grep ^A=; false", on_output=collected)
        assert collected.stdout == b"f\n/usr\n5 2\nA=5\n"
        assert (result.exit_code, result.cwd) == (1, "/usr")
        assert (await guest.shell("test $? -eq 1")).exit_code == 0

    async def test_a_command_that_reads_gets_nothing_and_eats_nothing(self, guest: Guest) -> None:
        assert (await guest.shell("cat; read x; wc -c")).exit_code == 0
        assert (await guest.shell("true")).exit_code == 0

    async def test_a_shell_that_exits_is_answered_with_its_code_and_replaced(self, guest: Guest) -> None:
        await guest.shell("X=1")
        assert (await guest.shell("exit 7")).exit_code == 7
        assert (await guest.shell('test -z "$X"')).exit_code == 0

    async def test_a_syntax_error_costs_a_command_and_not_the_shell(self, guest: Guest) -> None:
        await guest.shell("X=1")
        assert (await guest.shell("if then")).exit_code not in {0, None}
        assert (await guest.shell('test "$X" = 1')).exit_code == 0

    async def test_a_time_out_ends_a_loop_and_keeps_the_shell(self, guest: Guest) -> None:
        await guest.shell("X=1")
        result = await guest.shell("while true; do sleep 0.05; done", timeout_s=0.3)
        assert result.timed_out
        assert result.error is None
        assert (await guest.shell('test "$X" = 1')).exit_code == 0

    async def test_a_background_job_lives_on_and_holds_nothing_open(self, guest: Guest) -> None:
        collected = Collected()
        await guest.shell("sleep 300 & echo $!", on_output=collected)
        pid = int(collected.stdout)
        interrupted = await guest.shell("sleep 300", timeout_s=0.3)
        assert interrupted.timed_out
        await guest.signal(pid, 0)
        await guest.signal(pid, 15)

    async def test_a_process_has_arguments_environment_directory_and_input(self, guest: Guest) -> None:
        collected = Collected()
        spec = ProcessSpec(
            argv=("sh", "-c", 'echo "$1 $V"; pwd; cat', "sh", "one two"),
            env={"V": "v"},
            cwd="/usr",
            stdin=b"in\xfe\xff",
        )
        result = await guest.execute(spec, on_output=collected)
        assert result.exit_code == 0
        assert collected.stdout == b"one two v\n/usr\nin\xfe\xff"

    async def test_much_input_and_output_flow_at_once(self, guest: Guest) -> None:
        collected = Collected()
        data = bytes(range(256)) * 20_000
        result = await guest.execute(ProcessSpec(argv=("cat",), stdin=data), on_output=collected)
        assert (result.exit_code, result.dropped_bytes) == (0, 0)
        assert collected.stdout == data

    async def test_input_that_nobody_reads_is_thrown_away(self, guest: Guest) -> None:
        assert (await guest.execute(ProcessSpec(argv=("true",), stdin=b"x" * 5_000_000))).exit_code == 0

    async def test_exit_status_tells_signals_and_time_outs(self, guest: Guest) -> None:
        assert (await guest.execute(ProcessSpec(argv=("sh", "-c", "exit 3")))).exit_code == 3
        assert (await guest.execute(ProcessSpec(argv=("sh", "-c", "kill -11 $$")))).exit_code == -11
        late = await guest.execute(ProcessSpec(argv=("sleep", "300"), timeout_s=0.2))
        assert (late.exit_code, late.timed_out) == (-15, True)

    async def test_a_process_that_cannot_start_says_why(self, guest: Guest) -> None:
        with pytest.raises(NotFound, match="no-such-program"):
            await guest.execute(ProcessSpec(argv=("no-such-program",)))
        with pytest.raises(InvalidArgument, match="no such user"):
            await guest.execute(ProcessSpec(argv=("true",), user="nobody-at-all"))
        with pytest.raises(InvalidArgument, match="no directory"):
            await guest.execute(ProcessSpec(argv=("true",), cwd="/no/such/folder"))

    async def test_a_process_may_run_as_another_user(self, guest: Guest) -> None:
        collected = Collected()
        spec = ProcessSpec(argv=("sh", "-c", "id -un; echo $USER"), user="nobody", cwd="/")
        if not self.may_change_user:
            with contextlib.suppress(TorporError):
                await guest.execute(spec)
            return
        await guest.execute(spec, on_output=collected)
        assert collected.stdout == b"nobody\nnobody\n"

    async def test_a_detached_process_outlives_its_burst(self, guest: Guest) -> None:
        result = await guest.execute(ProcessSpec(argv=("sleep", "300"), detach=True))
        assert result.exit_code is None
        assert result.result is not None
        pid = int(result.result["text/plain"])
        await guest.signal(pid, 9)

    async def test_a_signal_goes_to_one_process_or_is_refused(self, guest: Guest) -> None:
        for pid in (-1, 0, 1):
            with pytest.raises(InvalidArgument):
                await guest.signal(pid, 15)
        with pytest.raises(NotFound):
            await guest.signal(2**22 + 5, 15)

    async def test_what_is_no_regular_file_is_refused(self, guest: Guest) -> None:
        await guest.shell(f"mkdir -p {self.FOLDER}/dir; rm -f {self.FOLDER}/fifo; mkfifo {self.FOLDER}/fifo")
        for path in (f"{self.FOLDER}/dir", f"{self.FOLDER}/fifo", "/dev/null", "relative", f"{self.FOLDER}/fifo/below"):
            with pytest.raises(InvalidArgument):
                await whole(guest.read_file(path))
            with pytest.raises(InvalidArgument):
                await guest.write_file(path, pieces(b"x"))

    async def test_a_write_replaces_atomically_and_sets_the_mode(self, guest: Guest) -> None:
        path = f"{self.FOLDER}/replaced"
        await guest.write_file(path, pieces(b"old"))

        async def broken() -> AsyncIterator[bytes]:
            yield b"half"
            raise RuntimeError("the source broke")

        with pytest.raises(RuntimeError):
            await guest.write_file(path, broken())
        assert await whole(guest.read_file(path)) == b"old"
        await guest.write_file(path, pieces(b""), mode=0o750)
        assert await whole(guest.read_file(path)) == b""
        collected = Collected()
        await guest.shell(f"stat -c %a {path}; ls -A {self.FOLDER} | grep -c part", on_output=collected)
        assert collected.stdout == b"750\n0\n"

    async def test_cpu_time_counts_the_dead_as_well(self, guest: Guest) -> None:
        before = await guest.cpu_s()
        busy = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.4: pass"
        await guest.execute(ProcessSpec(argv=("python3", "-c", busy)))
        after = await guest.cpu_s()
        assert after - before >= 0.3
        assert await guest.cpu_s() >= after

    async def test_nothing_runs_while_a_guest_is_quiesced(self, guest: Guest) -> None:
        counter = f"{self.FOLDER}/counter"
        await guest.shell(f"mkdir -p {self.FOLDER}; while true; do echo >> {counter}; sleep 0.01; done &")
        while not await _size_of(guest, counter):
            pass
        report = await guest.quiesce()
        assert report.stopped_count >= 2
        assert report.unparked == ()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await guest.cpu_s()  # it waits: until it may go on the host writes nothing
        await guest.proceed(notice(9, Cause.ABORTED))
        size = await _size_of(guest, counter)
        while await _size_of(guest, counter) == size:
            pass
        await guest.shell("kill %1")

    async def test_what_a_user_has_stopped_stays_stopped(self, guest: Guest) -> None:
        collected = Collected()
        # Without a process that ends meanwhile: gVisor then hangs up on the group, since it has a stopped member.
        stopped = "read -r _ _ state _ </proc/$!/stat && test $state = T"
        stop = f"sleep 300 & kill -STOP $!; until {stopped}; do :; done; echo $!"
        await guest.shell(stop, on_output=collected)
        pid = int(collected.stdout)
        await guest.quiesce()
        await guest.proceed(notice(3))
        state = Collected()
        await guest.shell(f"cut -d' ' -f3 /proc/{pid}/stat; kill -KILL {pid}", on_output=state)
        assert state.stdout == b"T\n"

    async def test_new_variables_reach_what_starts_and_what_lives(self, guest: Guest) -> None:
        await guest.code("import os")
        await guest.shell("true")
        await guest.quiesce()
        await guest.proceed(notice(4, name="env-4"))
        collected = Collected()
        result = await guest.code("os.environ['TORPOR_TEST']")
        assert result.result is not None
        assert result.result["text/plain"] == "'env-4'"
        await guest.shell("echo $TORPOR_TEST", on_output=collected)
        await guest.execute(ProcessSpec(argv=("sh", "-c", "echo $TORPOR_TEST")), on_output=collected)
        assert collected.stdout == b"env-4\nenv-4\n"

    async def test_contexts_are_reseeded_before_their_next_draw(self, guest: Guest) -> None:
        draw = "import random, uuid, tempfile, ssl\nrandom.random()"
        await guest.code("random_seeded = __import__('random').seed(1)")
        await guest.code(draw)
        await guest.quiesce()
        await guest.proceed(notice(5))
        drawn = await guest.code("random.random()")
        expected = await guest.code("r = random.Random(1); r.random(); r.random()")
        assert drawn.result is not None
        assert expected.result is not None
        assert drawn.result != expected.result


async def _size_of(guest: Guest, path: str) -> int:
    collected = Collected()
    await guest.shell(f"stat -c %s {path} 2>/dev/null || echo 0", on_output=collected)
    return int(collected.stdout)
