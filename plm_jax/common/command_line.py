"""What the verbs share: flags and help, errors as one line with exit status 2, the JAX set-up of their processes."""

import contextlib
import ctypes
import glob
import io
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import flags
from absl import logging as absl_logging

from plm_jax.common import children, extras, interrupts, seeds, storage
from plm_jax.common.errors import Interrupted, UserError, one_line, told

# EX_TEMPFAIL of sysexits.h: the same command again goes on.
SAVED = 75

# Without a sign of life for so many seconds a process counts as lost, and the others of its job end.
_LOST = 30
# What JAX and the libraries below it say where another process does not answer.
_OF_OTHERS = re.compile(
    r"gloo|nccl|peer|socket|coordination|heartbeat|barrier|unavailable|deadline.exceeded|aborted", re.IGNORECASE
)

# Longest error line that a person can read.
_MOST_CHARACTERS = 1000

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8

# libtpu, with which `plan` compiles, then looks for no TPU and no other process, and does not tell at length that it
# found none.
WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class _DottedFlag(flags.Flag):
    """A flag below which there are fields, `--NAME.a.b=value`, that only its value tells.

    Attributes:
      below: what the help says of these.
    """

    def __init__(self, name: str, told: str, below: str):
        super().__init__(flags.ArgumentParser(), flags.ArgumentSerializer(), name, None, told)
        self.below = below


def define_dotted(name: str, told: str, below: str) -> flags.FlagHolder:
    """A flag `--NAME=value` with `--NAME.a.b=value`, which `dotted` gives; `told` and `below` are the help of both."""
    return flags.DEFINE_flag(_DottedFlag(name, told, below))


def dotted(flag: flags.FlagHolder) -> list[tuple[str, str]]:
    """What the command line sets below a flag, in order: the path of each and its value, `("a.b", "value")`."""
    _, found = _parted(_arguments(), flag.name)
    return found


def required(flag: flags.FlagHolder) -> str:
    """The value of a flag that must be given."""
    if not flag.value:
        raise UserError(f"--{flag.name} is missing: set it")
    return flag.value


def integers(flag: flags.FlagHolder, signed: bool = False) -> list[int]:
    """Returns the values of a flag that is a list of distinct integers; with `signed`, they may be negative."""
    is_integer = re.compile(r"-?[0-9]{1,4000}" if signed else r"[0-9]{1,4000}").fullmatch
    numbers = [int(value) for value in flag.value if is_integer(value)]
    if len(set(numbers)) < len(flag.value):
        raise UserError(f"--{flag.name} is {','.join(flag.value)}: give integers, each once, as in 0,1,2")
    return numbers


def seed_list(flag: flags.FlagHolder) -> list[int]:
    """Returns the values of a flag that is a list of distinct seeds.

    Raises:
      UserError: a value is not a 64-bit integer, or appears twice.
    """
    numbers = integers(flag, signed=True)
    for seed in numbers:
        seeds.RANGE.check(seed, f"--{flag.name}")
    return numbers


def run(main: Callable[..., None], takes_options: bool = False, words: Sequence[str] = ()) -> None:
    """Parses the command line and calls `main`; a `UserError` becomes one line and exit status 2.

    So does an error of the operating system's. A run that was stopped, its step saved, ends with 75.

    Args:
      main: what the verb does.
      takes_options: whether options of another program may follow after `--`, see `options`.
      words: what the words are called that stand on the command line beside flags; `main` is given them.
    """
    # Libraries' chatter would bury the one line that matters.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not glob.glob("/dev/accel*") and not glob.glob("/dev/vfio/*"):  # As libtpu finds the chips of a machine.
        os.environ |= WITHOUT_TPU
    absl_logging.set_verbosity(absl_logging.FATAL)  # Orbax logs what it raises as well, traceback and all.
    # Orbax reads arrays as tasks; where several fail, asyncio prints the traceback of each that nobody asked for.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    sys.unraisablehook = _report_unraisable
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # As stderr: paths may hold what is no text.
    children.leave_working_directory()
    children.end_with_parent()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if {"--help", "-h", "--helpfull"} & set(_arguments()):
            print(_help(main))
            return
        given = _parse_flags(takes_options, words)
        with extras.told():
            main(*given)
    except UserError as error:
        _end(f"error: {error}", 2)
    except OSError as error:
        _end(f"error: {told(error)}", 2)
    except Interrupted as stopped:
        _end(str(stopped), SAVED)
    except KeyboardInterrupt:
        _end(interrupts.STOPPED, 130)
    except Exception as error:
        if not _is_one_of_several():
            raise
        if isinstance(error, RuntimeError | ValueError) and _OF_OTHERS.search(str(error)):
            _say_last(
                f"error: another process of this job ended or does not answer ({one_line(error)}): what it said last "
                "tells why; the same command goes on from the last checkpoint"
            )
            os.abort()  # As JAX itself does where it is the first to notice: launchers start again.
        # At its end Python would wait for the other processes, which wait for this one.
        traceback.print_exc()
        os._exit(1)


def _is_one_of_several() -> bool:
    """Whether this process has joined others of a job."""
    distributed = sys.modules.get("jax._src.distributed")
    return bool(distributed and (distributed.global_state.num_processes or 1) > 1)


def _end(line: str, status: int) -> NoReturn:
    # Threads of readers and savers must not keep an ended process alive.
    _say_last(line)
    os._exit(status)


def _say_last(line: str) -> None:
    """Prints a line, and nothing after it, whatever other threads have to say."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    stderr = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # A file's or a foreign file's name may have what a terminal obeys, or what no text can have.
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    if len(line) > _MOST_CHARACTERS:  # Keeps the end, which says how to fix it.
        half = _MOST_CHARACTERS // 2
        line = f"{line[:half]}…{line[-half:]}"
    with contextlib.suppress(OSError):
        os.write(stderr, f"{line}\n".encode())


def options() -> list[str]:
    """What follows after `--` on the command line."""
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def _report_unraisable(unraisable) -> None:
    """`sys.unraisablehook`: all but what TensorStore reports of no object and with no word of its own.

    Orbax closes its event loop at the first read that fails; the threads of the other reads then find no loop to tell.
    """
    if unraisable.object is not None or unraisable.err_msg is not None:
        sys.__unraisablehook__(unraisable)


def _arguments() -> list[str]:
    """The command line up to `--`, with what `--flagfile` holds in its place."""
    end = sys.argv.index("--") if "--" in sys.argv else None
    return flags.FLAGS.read_flags_from_files(sys.argv[1:end], force_gnu=False)


def _parse_flags(takes_options: bool, words: Sequence[str]) -> list[str]:
    """Sets the flags; returns the words beside them."""
    arguments = _arguments() + ([] if takes_options or "--" not in sys.argv else ["--", *options()])
    for name in [name for name in flags.FLAGS if isinstance(flags.FLAGS[name], _DottedFlag)]:
        arguments, _ = _parted(arguments, name)
    try:
        rest = flags.FLAGS([sys.argv[0], *arguments])
    except flags.Error as error:
        raise UserError(one_line(error, None)) from error
    given = rest[1:]
    if len(given) > len(words):
        raise UserError(f"'{given[len(words)]}' is no flag: write --name=value")
    if len(given) < len(words):
        raise UserError(f"{words[len(given)]} is missing: give {' '.join(words)}, then --name=value")
    return given


def _parted(arguments: Sequence[str], name: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The arguments without those that set something below a flag, and these as (dotted path, value).

    As in absl `--NAME.path value` is `--NAME.path=value`, `--NAME.path` alone is yes, and `--noNAME.path` is no.
    """
    others, found, left = [], [], list(arguments)
    while left:
        argument = left.pop(0)
        match = re.fullmatch(rf"--?(no)?{name}\.([^=]+)(?:=(.*))?", argument, re.DOTALL)
        if match is None:
            others.append(argument)
            continue
        negated, path, value = match.groups()
        if value is None and not negated and left and not re.match(r"-[^\d.]", left[0]):
            value = left.pop(0)
        found.append((path, ("no" if negated else "yes") if value is None else value))
    return others, found


def _help(main: Callable[..., None]) -> str:
    """What a verb does, and its flags; those that libraries define are left out."""
    rows = []
    modules = flags.FLAGS.flags_by_module_dict()
    ours = [name for name in modules if name.startswith("plm_jax.") or name == sys.argv[0]]  # absl's `__main__`.
    for flag in sorted((flag for name in ours for flag in modules[name]), key=lambda flag: flag.name != "config"):
        default = f" (default: {flag.default_as_str})" if flag.default not in (None, "", [], [""]) else ""
        told, _, _ = flag.help.partition(";\n")  # What absl adds of flags that may be given again.
        rows.append((f"--{flag.name}=…", f"{told}{default}"))
        if isinstance(flag, _DottedFlag):
            rows.append((f"--{flag.name}.FIELD=…", flag.below))
    width = max((len(name) for name, _ in rows), default=0)
    docstring = (main.__globals__.get("__doc__") or "").strip()
    return "\n".join([docstring, "", *(f"  {name:<{width}}  {told}" for name, told in rows)])


def start_jax() -> None:
    """Joins the job's other processes, unless it has, if the environment names any, and turns the compilation cache on.

    `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` are what `launch/local.py` sets; on a TPU pod,
    SLURM or GKE jax finds them itself once `PLM_JAX_DISTRIBUTED=1` asks for it.
    """
    import jax

    # `training.interruption` hears signals itself.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        if jax.distributed.is_initialized():
            pass
        elif "JAX_NUM_PROCESSES" in os.environ:
            jax.distributed.initialize(
                os.environ["JAX_COORDINATOR_ADDRESS"],
                int(os.environ["JAX_NUM_PROCESSES"]),
                int(os.environ["JAX_PROCESS_ID"]),
                heartbeat_timeout_seconds=_LOST,
            )
        elif os.environ.get("PLM_JAX_DISTRIBUTED") == "1":
            jax.distributed.initialize(heartbeat_timeout_seconds=_LOST)
            # As from a launcher: the first alone tells progress.
            os.environ["JAX_PROCESS_ID"] = str(jax.process_index())
    except (KeyError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the processes of this job cannot join ({one_line(error)}): see to it that JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID are set, or use a launcher of launch/"
        ) from error
    cache: str | None = jax.config.values["jax_compilation_cache_dir"]
    if cache is None:
        cache = storage.cache_folder("compilation")
        jax.config.update("jax_compilation_cache_dir", cache)
    if not storage.is_remote(cache):  # In a bucket, what compiles at once costs more.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if jax.default_backend() == "cpu":
        keep_freed_memory()
    if jax.default_backend() == "cpu" and jax.device_count() > 1:
        # Read back from the cache, a program for several CPU devices deadlocks (seen with jax 0.10.2): its devices
        # come to the collectives in different orders.
        jax.config.update("jax_enable_compilation_cache", False)


def start_jax_for_planning() -> None:
    """Sets JAX up to compile for TPUs that are not there; to be called before JAX computes anything."""
    os.environ |= WITHOUT_TPU
    start_jax_on_host()


def start_jax_on_host() -> None:
    """Leaves accelerators, which another process may hold, alone; to be called before JAX computes anything."""
    import jax

    os.environ["JAX_PLATFORMS"] = "cpu"  # For processes that this one starts.
    jax.config.update("jax_platforms", "cpu")


def keep_freed_memory() -> None:
    """Has glibc's malloc keep what a step frees, for the next step; other C libraries stay as they are.

    On a CPU the step's temporaries are malloc's. Given back to the kernel they are zeroed page by page at every step.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1)):
            libc.mallopt(parameter, value)
