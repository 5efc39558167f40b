"""What runsc says becomes values and errors."""

import pytest

from torpor.adapters.engines.gvisor import parse
from torpor.domain.errors import EngineError, StorageFull

LOG = """\
{"msg":"Create container","level":"info","time":"t"}
{"msg":"FATAL ERROR: creating container: cannot find rootfs","level":"error","time":"t"}
panic: something of Go's
"""


def test_the_version_is_the_third_word_of_its_line():
    assert parse.version_of("runsc version torpor-20260905\nspec: 1.2.1\n") == "torpor-20260905"


def test_output_without_a_version_is_an_engine_error():
    with pytest.raises(EngineError):
        parse.version_of("command not found")


def test_cpu_flags_are_sorted():
    assert parse.cpu_flags_of("sse2,aes,avx\n") == ("aes", "avx", "sse2")


@pytest.mark.parametrize("said", ["", "Usage: runsc <flags>", "Subcommands: events, ps", "no such command"])
def test_what_is_no_list_of_flags_gives_none(said):
    assert parse.cpu_flags_of(said) == ()


@pytest.mark.parametrize("name", ["flags", "Features"])
def test_the_flags_of_cpuinfo_are_those_of_the_first_cpu(name):
    assert parse.cpuinfo_flags_of(f"processor\t: 0\n{name}\t\t: b a\n{name}\t\t: c\n") == ("a", "b")


FLAGS = """
  -overlay value
        DEPRECATED: use --overlay2=all:memory to achieve the same effect
  -overlay2 value
        wrap mounts with overlayfs. Format is
        * 'none' to turn overlay mode off
        * {mount}:{medium}[,size={size}], where
         (default root:self)
  -override-procs string
        file with a list of procs
"""


def test_the_help_of_one_flag_is_its_own():
    assert "[,size={size}]" in parse.flag_help(FLAGS, "overlay2")
    assert "override" not in parse.flag_help(FLAGS, "overlay2")
    assert parse.flag_help(FLAGS, "override-procs").strip().endswith("file with a list of procs")
    assert parse.flag_help(FLAGS, "nothing") == ""


def test_cpuinfo_without_flags_gives_none():
    assert parse.cpuinfo_flags_of("processor: 0\n") == ()


def test_a_log_is_reduced_to_what_went_wrong():
    assert parse.log_messages(LOG) == "FATAL ERROR: creating container: cannot find rootfs\npanic: something of Go's"


def test_a_log_line_that_is_json_but_no_record_is_passed_over():
    assert parse.log_messages('[1, 2]\n"word"\n') == ""


def test_a_full_disk_is_storage_full_whoever_says_it():
    error = parse.failure("write the memory part", "write /x/pages.img: No space left on device")
    assert isinstance(error, StorageFull)
    assert "nothing was lost" in error.message


def test_any_other_failure_carries_argv_exit_code_and_tail():
    error = parse.failure("start x", "first\nlast line\n", argv=("runsc", "start"), exit_code=128)
    assert isinstance(error, EngineError)
    assert error.message == "cannot start x: last line"
    assert error.details == {"argv": ["runsc", "start"], "exit_code": 128, "log_tail": "first\nlast line"}


def test_a_silent_failure_names_the_exit_code():
    assert parse.failure("start x", "", exit_code=2).message == "cannot start x: runsc ended with 2"
