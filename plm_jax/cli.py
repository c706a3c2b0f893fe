"""What the verbs share: a config flag, errors as one line with exit status 2, the JAX set-up of a training process."""

import ctypes
import glob
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable

import ml_collections
from absl import flags
from absl import logging as absl_logging
from ml_collections import config_flags

from plm_jax import config
from plm_jax.common import extras, progress, storage
from plm_jax.common.errors import UserError, nearest, one_line
from plm_jax.config import migrations, pages

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


class _PageParser(flags.ArgumentParser):
    """Takes a config page for the tree that it gives."""

    def parse(self, given: str) -> ml_collections.ConfigDict:
        return pages.load(given).config().lock()


def define_config(**options) -> flags.FlagHolder:
    """The `--config=PAGE:SIZE` flag with its `--config.section.field=value` overrides."""
    told = "a config file, such as configs/gpt2.py:small, or a name, such as gpt2:small"
    holder = config_flags.DEFINE_config_file("config", None, told, **options)
    options.get("flag_values", flags.FLAGS)["config"].parser = _PageParser()
    return holder


def resolve(flag: flags.FlagHolder) -> config.Run:
    """The checked run of a `--config` flag; relative paths in its overrides count from the working directory."""
    file = config_file(flag)
    return config.resolve(flag.value, file, config_flags.get_override_values(flags.FLAGS["config"]))


def config_file(flag: flags.FlagHolder) -> str:
    """The file from whose folder the paths in a `--config` page count.

    Raises:
      UserError: no flag.
    """
    if not flags.FLAGS["config"].present:
        raise UserError("--config is missing: give a config file, such as --config=configs/gpt2.py:small")
    return pages.load(config_flags.get_config_filename(flags.FLAGS["config"])).file


def required(flag: flags.FlagHolder) -> str:
    """The value of a flag that must be given."""
    if not flag.value:
        raise UserError(f"--{flag.name} is missing: set it")
    return flag.value


def run(main: Callable[[], None], takes_options: bool = False) -> None:
    """Parses the command line and calls `main`; a `UserError` becomes one line and exit status 2.

    Args:
      main: what the verb does.
      takes_options: whether options of another program may follow after `--`, see `options`.
    """
    # Libraries' chatter would bury the one line that matters.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not glob.glob("/dev/accel*") and not glob.glob("/dev/vfio/*"):  # As libtpu finds the chips of a machine.
        os.environ |= WITHOUT_TPU
    absl_logging.set_verbosity(absl_logging.ERROR)
    # Orbax reads arrays as tasks; where several fail, asyncio prints the traceback of each that nobody asked for.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    sys.unraisablehook = _report_unraisable
    try:
        end = sys.argv.index("--") if takes_options and "--" in sys.argv else None
        _parse_flags(sys.argv[:end])
        with extras.told():
            main()
    except UserError as error:
        # Threads of readers and savers must not keep a failed process alive, nor talk into its one line.
        sys.stdout.flush()
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(stderr, f"error: {error}\n".encode())
        os._exit(2)
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr, flush=True)
        os._exit(130)


def options() -> list[str]:
    """What follows after `--` on the command line."""
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def _report_unraisable(unraisable) -> None:
    """`sys.unraisablehook`: all but what TensorStore reports of no object and with no word of its own.

    Orbax closes its event loop at the first read that fails; the threads of the other reads then find no loop to tell.
    """
    if unraisable.object is not None or unraisable.err_msg is not None:
        sys.__unraisablehook__(unraisable)


def _parse_flags(argv: list[str]) -> None:
    try:
        rest = flags.FLAGS(argv)
    except (flags.Error, ValueError, TypeError) as error:
        raise UserError(one_line(error, None)) from error
    except (AttributeError, KeyError) as error:
        raise UserError(_unknown_field(argv) or one_line(error, None)) from error
    if len(rest) > 1:
        raise UserError(f"'{rest[1]}' is no flag: write --name=value")


def _config_argument(argv: list[str]) -> str:
    """What `--config` is given on a command line, empty without one."""
    joined = " ".join(argv).replace("--config ", "--config=")
    given = [arg for arg in joined.split() if arg.startswith("--config=")]
    return given[0].removeprefix("--config=") if given else ""


def _unknown_field(argv: list[str]) -> str | None:
    """What to say of the first override of a field that the config file does not have."""
    values = flags.FlagValues()
    holder = define_config(flag_values=values, sys_argv=[])
    values([argv[0], f"--config={_config_argument(argv)}"])
    for override in (arg for arg in argv if arg.startswith("--config.")):
        section, path = holder.value, override.removeprefix("--config.").partition("=")[0].split(".")
        for depth, name in enumerate(path):
            if not isinstance(section, ml_collections.ConfigDict) or name not in section:
                known = section.keys() if isinstance(section, ml_collections.ConfigDict) else []
                hint = nearest(name, known) if known else "it is no section"
                renamed = migrations.told(".".join(path[: depth + 1]))
                return renamed or f"there is no field {'.'.join(['config', *path[: depth + 1]])}: {hint}"
            section = section[name]
    return None


def start_jax() -> None:
    """Joins the job's other processes, if the environment names any, and turns the compilation cache on.

    `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` are what `launch/local.py` sets; on a TPU pod,
    SLURM or GKE jax finds them itself once `PLM_JAX_DISTRIBUTED=1` asks for it.
    """
    import jax

    # SIGTERM ends a process: jax would take it for a notice that somebody asks for, and go on.
    jax.config.update("jax_enable_preemption_service", False)
    if "JAX_NUM_PROCESSES" in os.environ:
        jax.distributed.initialize(
            os.environ["JAX_COORDINATOR_ADDRESS"],
            int(os.environ["JAX_NUM_PROCESSES"]),
            int(os.environ["JAX_PROCESS_ID"]),
        )
    elif os.environ.get("PLM_JAX_DISTRIBUTED") == "1":
        jax.distributed.initialize()
        os.environ["JAX_PROCESS_ID"] = str(jax.process_index())  # As from a launcher: the first alone tells progress.
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", storage.cache_folder("compilation"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if jax.default_backend() == "cpu":
        keep_freed_memory()
    if jax.default_backend() == "cpu" and jax.device_count() > 1:
        # Read back from the cache, a program for several CPU devices deadlocks (seen with jax 0.10.2): its devices
        # come to the collectives in different orders.
        jax.config.update("jax_enable_compilation_cache", False)


def start_jax_for_planning() -> None:
    """Sets JAX up to compile for TPUs that are not there; to be called before JAX is imported."""
    os.environ |= WITHOUT_TPU | {"JAX_PLATFORMS": "cpu"}


def start_jax_on_host() -> None:
    """Leaves accelerators, which another process may hold, alone; to be called before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"


def keep_freed_memory() -> None:
    """Has glibc's malloc keep what a step frees, for the next step; other C libraries stay as they are.

    On a CPU the step's temporaries are malloc's. Given back to the kernel they are zeroed page by page at every step.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1)):
            libc.mallopt(parameter, value)


def prepare_if_needed(run: config.Run, trained: str = "") -> None:
    """Prepares the caches of the config's sources in a child process, so that this one never imports TensorFlow.

    Those that are missing, and those that are of other texts or settings than the config's.

    Args:
      trained: what was trained on the caches that are there, which then are not replaced.

    Raises:
      UserError: a cache is of other texts or settings, and is not replaced, or several processes would read it.
    """
    if not progress.is_first():
        return
    from plm_jax.data.sources import task_mixtures  # It imports what reads caches.

    # In a bucket a folder is there as soon as its upload has begun.
    last = "manifest.json" if storage.is_remote(run.data.cache_dir) else ""
    missing, changed, seen = [], [], set()
    for each in (run, task_mixtures.expanded(run)):  # Of a mixture what is noted of it, and then its tasks' caches.
        names = [name for name in config.read_sources(each) if name not in seen]
        absent = [name for name in names if not storage.exists(os.path.join(run.data.cache_dir, name, last))]
        changed += changed_caches(each, [name for name in names if name not in absent])
        missing += absent
        seen.update(names)
    several = os.environ.get("JAX_NUM_PROCESSES", os.environ.get("SLURM_NTASKS", "1")) != "1"
    if changed and trained:
        raise UserError(
            f"{'; '.join(changed)}; {trained} was trained on it: change that back, choose another --workdir, or have "
            "it prepared anew and go on with --allow_changes"
        )
    if changed and (several or os.environ.get("PLM_JAX_DISTRIBUTED") == "1"):
        raise UserError(f"{'; '.join(changed)}: run `python -m plm_jax.prepare --config=…` first")
    if missing:
        _say(f"no cache of {', '.join(missing)} in {run.data.cache_dir}: preparing it")
    for change in changed:
        _say(f"{change}: preparing it anew")
    if not missing and not changed:
        return
    # Of this process's flags the child takes --config (with its value) and its overrides.
    arguments = [a for i, a in enumerate(sys.argv) if a.startswith("--config") or sys.argv[i - 1] == "--config"]
    finished = subprocess.run([sys.executable, "-m", "plm_jax.prepare", *arguments])
    if finished.returncode:
        sys.exit(finished.returncode)


def changed_caches(run: config.Run, names: Iterable[str]) -> list[str]:
    """Of these sources' caches those that are not of the config's texts and settings, and why; says what is not there.

    Raises:
      UserError: a cache is missing or damaged.
    """
    from plm_jax.data.cache import origins  # It imports what reads caches.

    changed, unseen = [], []
    for name in names:
        found = origins.compare(run, name, _say)
        if found.changed:
            changed.append(
                f"the cache of '{name}' in {run.data.cache_dir} is not of what the config names ({found.changed})"
            )
        elif found.unseen:
            unseen.append(f"'{name}' ({found.unseen})")
    if unseen:
        _say(f"the texts of {', '.join(unseen)} are not here: their caches are taken as they are")
    return changed


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
