"""Command-line handling shared by all commands: flags, help texts, one-line errors and the setup of JAX."""

import contextlib
import ctypes
import functools
import glob
import io
import logging
import os
import re
import select
import signal
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import flags
from absl import logging as absl_logging

from plm_jax.common import children, extras, interrupts, progress, seeds, storage
from plm_jax.common.errors import Interrupted, UserError, describe, nearest, one_line

# EX_TEMPFAIL of sysexits.h: running the same command again resumes the run.
SAVED = 75

# Seconds without a heartbeat after which a process counts as lost and the other processes of its job end.
_HEARTBEAT_TIMEOUT = 30
# Seconds that the first process of a job waits for the other processes, and that they wait for the first process, which
# may prepare the data before it joins.
_JOIN_TIMEOUT, _PREPARATION_TIMEOUT = 600, 86_400
# Words in the errors that JAX and its libraries raise if another process does not answer.
_PEER_ERROR = re.compile(
    r"gloo|nccl|peer|socket|coordination|heartbeat|barrier|unavailable|deadline.exceeded|aborted", re.IGNORECASE
)

# Longest error line that is printed in full.
_MAX_CHARACTERS = 1000

# Columns of help texts: where the descriptions of flags begin and where lines end.
_HELP_INDENT, _HELP_WIDTH = 28, 110

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8

# With these, libtpu, which `plan` compiles with, does not search for TPUs or other processes and logs no warnings.
WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class _DottedFlag(flags.Flag):
    """Flag `--NAME=VALUE` whose value has fields that `--NAME.a.b=VALUE` overrides.

    Attributes:
      fields_help: help text of the overrides.
    """

    def __init__(self, name: str, help: str, fields_help: str):
        super().__init__(flags.ArgumentParser(), flags.ArgumentSerializer(), name, None, help)
        self.fields_help = fields_help


def define_dotted(name: str, help: str, fields_help: str) -> flags.FlagHolder:
    """Defines a flag `--NAME=VALUE` and its overrides `--NAME.a.b=VALUE`; `dotted` returns the overrides."""
    return flags.DEFINE_flag(_DottedFlag(name, help, fields_help))


def dotted(flag: flags.FlagHolder) -> list[tuple[str, str]]:
    """Returns the overrides of a dotted flag in the order of the command line, as pairs such as `("a.b", "value")`."""
    _, overrides = _split_dotted(_arguments(), flag.name)
    return overrides


def required(flag: flags.FlagHolder, advice: str = "set it") -> str:
    """Returns the value of a required flag.

    Raises:
      UserError: the value is missing or empty; the message ends with `advice`.
    """
    if not flag.value:
        raise UserError(f"--{flag.name} is missing: {advice}")
    return flag.value


def integers(flag: flags.FlagHolder, signed: bool = False) -> list[int]:
    """Returns the integers of a list flag.

    Raises:
      UserError: a value is not an integer or appears twice, or a value is negative and `signed` is false.
    """
    is_integer = re.compile(r"-?[0-9]{1,4000}" if signed else r"[0-9]{1,4000}").fullmatch
    numbers = [int(value) for value in flag.value if is_integer(value)]
    if len(set(numbers)) < len(flag.value):
        raise UserError(f"--{flag.name} is {','.join(flag.value)}: pass distinct integers such as 0,1,2")
    return numbers


def seed_list(flag: flags.FlagHolder) -> list[int]:
    """Returns the seeds of a list flag.

    Raises:
      UserError: a value is not a 64-bit integer, or appears twice.
    """
    numbers = integers(flag, signed=True)
    for seed in numbers:
        seeds.RANGE.check(seed, f"--{flag.name}")
    return numbers


def run(main: Callable[..., None], accepts_options: bool = False, positionals: Sequence[str] = ()) -> None:
    """Parses the command line and calls `main`, or prints the help text. Returns if the command succeeds.

    After a `UserError` or an error of the operating system, prints one line and exits with status 2. After
    `Interrupted`, exits with status 75; after Ctrl-C, with status 130. Raises other errors. In a job of several
    processes, these errors end the process instead.

    Args:
      main: function of the command, called with the positional arguments. The help text begins with the docstring of
        its module.
      accepts_options: whether options of another program may follow after `--`; `options` returns them.
      positionals: names of the positional arguments. A name such as `{a,b}` lists the accepted values.
    """
    # The logs of libraries would hide the one line of an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not glob.glob("/dev/accel*") and not glob.glob("/dev/vfio/*"):  # libtpu looks for chips here.
        os.environ |= WITHOUT_TPU
    absl_logging.set_verbosity(absl_logging.FATAL)  # Orbax also logs the errors that it raises.
    # Orbax reads arrays in asyncio tasks; if several fail, asyncio prints a traceback for each.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    sys.unraisablehook = _report_unraisable
    warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Paths may contain bytes that are not text.
    children.leave_working_directory()
    children.end_with_parent()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if {"--help", "-h", "--helpfull"} & set(_arguments()):
            print(_help(main))
            return
        arguments = _parse_flags(accepts_options, positionals)
        with extras.report_missing():
            main(*arguments)
    except UserError as error:
        _end(f"error: {error}", 2)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            os._exit(128 + signal.SIGPIPE)
        _end(f"error: {describe(error)}", 2)
    except Interrupted as stopped:
        _end(str(stopped), SAVED)
    except KeyboardInterrupt:
        _end(interrupts.STOPPED, 130)
    except Exception as error:
        if not _is_one_of_several():
            raise
        if isinstance(error, RuntimeError | ValueError) and _PEER_ERROR.search(str(error)):
            _print_last(
                f"error: another process of this job ended or does not answer ({one_line(error)}): see the last "
                "lines of its output; the same command resumes from the last checkpoint"
            )
            os.abort()  # JAX does the same if it notices first; launchers then start the job again.
        # A normal exit would wait for the other processes, which wait for this one.
        traceback.print_exc()
        os._exit(1)


def _is_output_closed() -> bool:
    """Whether the program that reads stdout, such as `head`, has ended."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _is_one_of_several() -> bool:
    """Whether this process has joined a job of several processes."""
    distributed = sys.modules.get("jax._src.distributed")
    return bool(distributed and (distributed.global_state.num_processes or 1) > 1)


def _end(line: str, status: int) -> NoReturn:
    # Threads that read or save must not keep the process alive.
    _print_last(line)
    os._exit(status)


def _print_last(line: str) -> None:
    """Prints a line to stderr, shortened if it is long. Discards everything that is written to stderr later."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    stderr = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # Names of files may contain control characters or bytes that are not text.
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    if len(line) > _MAX_CHARACTERS:  # The end of the line says how to fix the error.
        half = _MAX_CHARACTERS // 2
        line = f"{line[:half]}…{line[-half:]}"
    with contextlib.suppress(OSError):
        os.write(stderr, f"{line}\n".encode())


def options() -> list[str]:
    """Returns the arguments after `--` on the command line, which are for another program."""
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def _report_unraisable(unraisable) -> None:
    """Replaces `sys.unraisablehook`; ignores errors that have neither an object nor a message.

    TensorStore reports errors of this kind. Orbax closes its event loop when a read fails, and the threads of other
    reads then cannot notify the closed loop.
    """
    if unraisable.object is not None or unraisable.err_msg is not None:
        sys.__unraisablehook__(unraisable)


def _show_warning(default: Callable[..., None], message: Warning, category: type[Warning], *location: Any) -> None:
    """Replaces `warnings.showwarning`; prints a `UserWarning` on one line, and passes other warnings to `default`."""
    if category is UserWarning:
        _print_warning(one_line(message, None))
    else:
        default(message, category, *location)


@functools.cache
def _print_warning(line: str) -> None:
    """Prints a warning unless it was printed before."""
    print(f"warning: {line}", file=sys.stderr, flush=True)


def _arguments() -> list[str]:
    """Returns the arguments before `--`. Each `--flagfile` is replaced by the contents of its file."""
    end = sys.argv.index("--") if "--" in sys.argv else None
    return flags.FLAGS.read_flags_from_files(sys.argv[1:end], force_gnu=False)


def _parse_flags(accepts_options: bool, positionals: Sequence[str]) -> list[str]:
    """Sets the flags and returns the positional arguments."""
    arguments = _arguments() + ([] if accepts_options or "--" not in sys.argv else ["--", *options()])
    for name in [name for name in flags.FLAGS if isinstance(flags.FLAGS[name], _DottedFlag)]:
        arguments, _ = _split_dotted(arguments, name)
    try:
        _, *values = flags.FLAGS([sys.argv[0], *arguments])
    except flags.Error as error:
        raise UserError(one_line(error, None)) from error
    for name, value in zip(positionals, values, strict=False):
        if name.startswith("{") and value not in (choices := name.strip("{}").split(",")):
            raise UserError(f"unknown action '{value}': {nearest(value, choices)}")
    if len(values) > len(positionals):
        raise UserError(f"unexpected argument '{values[len(positionals)]}': pass flags as --name=value")
    if len(values) < len(positionals):
        raise UserError(f"{positionals[len(values)]} is missing: pass {' '.join(positionals)} before the flags")
    return values


def _split_dotted(arguments: Sequence[str], name: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Separates the overrides of a dotted flag from the other arguments.

    An override is `--NAME.path=value`, `--NAME.path value`, `--NAME.path` alone for yes, or `--noNAME.path` for no.

    Returns:
      A pair: the other arguments, and the overrides as pairs (path, value).
    """
    plain, overrides, remaining = [], [], list(arguments)
    while remaining:
        argument = remaining.pop(0)
        match = re.fullmatch(rf"--?(no)?{name}\.([^=]+)(?:=(.*))?", argument, re.DOTALL)
        if match is None:
            plain.append(argument)
            continue
        negated, path, value = match.groups()
        if value is None and not negated and remaining and not re.match(r"-[^\d.]", remaining[0]):
            value = remaining.pop(0)
        overrides.append((path, ("no" if negated else "yes") if value is None else value))
    return plain, overrides


def _help(main: Callable[..., None]) -> str:
    """Returns the docstring of a command's module followed by its flags, except those that libraries define.

    Required flags come first and `--module` last.
    """
    modules = flags.FLAGS.flags_by_module_dict()
    names = [name for name in modules if name.startswith("plm_jax.") or name == sys.argv[0]]  # absl's `__main__`.
    defined = [flag for name in names for flag in modules[name]]
    rows = []
    for flag in sorted(defined, key=lambda flag: (not flag.help.endswith("(required)"), flag.name == "module")):
        help, _, _ = flag.help.partition(";\n")  # absl adds a remark to flags that may be repeated.
        value = f"={flag.name.upper()}"
        if isinstance(flag, flags.EnumFlag):
            values = flag.parser.enum_values
            help = help.removeprefix(f"<{'|'.join(values)}>: ")
            value = f"={{{','.join(values)}}}"
        elif flag.boolean:
            value = ""
        rows.append((f"--{flag.name}{value}", help + _default(flag)))
        if isinstance(flag, _DottedFlag):
            rows.append((f"--{flag.name}.FIELD=VALUE", flag.fields_help))
    docstring = (main.__globals__.get("__doc__") or "").strip()
    return "\n".join([docstring, *(["", "flags:"] if rows else []), *(_format_flag(*row) for row in rows)])


def _default(flag: flags.Flag) -> str:
    default = flag.default if isinstance(flag.default, list) else [flag.default]
    if not default or default[0] in (None, ""):
        return ""
    return f" (default: {str(flag.default).lower() if flag.boolean else ','.join(map(str, default))})"


def _format_flag(name: str, help: str) -> str:
    indent = " " * _HELP_INDENT
    start = f"  {name}  "
    start = f"{start:<{_HELP_INDENT}}" if len(start) <= _HELP_INDENT else f"{start.rstrip()}\n{indent}"
    lines = textwrap.wrap(help, _HELP_WIDTH - _HELP_INDENT, break_long_words=False, break_on_hyphens=False)
    return start + f"\n{indent}".join(lines)


def start_jax() -> None:
    """Joins the job that environment variables describe, if there is one, and sets up the compilation cache.

    `launch/local.py` sets `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`. On a TPU pod, SLURM or
    GKE, JAX finds the other processes itself if `PLM_JAX_DISTRIBUTED=1` is set. The cache is disabled with several CPU
    devices.

    Raises:
      UserError: the process cannot join the job.
    """
    import jax

    # `runs.interruption` handles signals.
    jax.config.update("jax_enable_preemption_service", False)
    timeout = _JOIN_TIMEOUT if progress.is_first() else _PREPARATION_TIMEOUT
    timeouts: Any = {"initialization_timeout": timeout, "heartbeat_timeout_seconds": _HEARTBEAT_TIMEOUT}
    try:
        if jax.distributed.is_initialized():
            pass
        elif "JAX_NUM_PROCESSES" in os.environ:
            jax.distributed.initialize(
                os.environ["JAX_COORDINATOR_ADDRESS"],
                int(os.environ["JAX_NUM_PROCESSES"]),
                int(os.environ["JAX_PROCESS_ID"]),
                **timeouts,
            )
        elif os.environ.get("PLM_JAX_DISTRIBUTED") == "1":
            jax.distributed.initialize(**timeouts)
            # Only the first process prints progress, as with a launcher.
            os.environ["JAX_PROCESS_ID"] = str(jax.process_index())
    except (KeyError, ValueError, RuntimeError) as error:
        raise UserError(
            f"cannot join the other processes of this job ({one_line(error)}): make sure that JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID are set, or use a launcher from launch/"
        ) from error
    cache: str | None = jax.config.values["jax_compilation_cache_dir"]
    if cache is None:
        cache = storage.cache_folder("compilation")
        jax.config.update("jax_compilation_cache_dir", cache)
    if not storage.is_remote(cache):  # Reading a small program from a bucket takes longer than compiling it.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if jax.default_backend() == "cpu":
        keep_freed_memory()
    if jax.default_backend() == "cpu" and jax.device_count() > 1:
        # A program for several CPU devices deadlocks if it was read from the cache (seen with jax 0.10.2): the devices
        # reach the collectives in different orders.
        jax.config.update("jax_enable_compilation_cache", False)


def start_jax_for_planning() -> None:
    """Sets JAX up to compile for TPUs that are not attached. Must be called before JAX computes anything."""
    os.environ |= WITHOUT_TPU
    start_jax_on_host()


def start_jax_on_host() -> None:
    """Restricts JAX to the CPU in this process and its child processes. The accelerators stay free for other processes.

    Must be called before JAX computes anything.
    """
    import jax

    os.environ["JAX_PLATFORMS"] = "cpu"  # For child processes.
    jax.config.update("jax_platforms", "cpu")


def keep_freed_memory() -> None:
    """Makes glibc's malloc keep freed memory for later allocations. Does nothing with other C libraries.

    On a CPU, malloc allocates a step's temporaries. If it returned them to the kernel, the kernel would zero their
    pages again at every step.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1)):
            libc.mallopt(parameter, value)
