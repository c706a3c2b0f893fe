"""Clean a web crawl with the rules of C4, Gopher and FineWeb, on this machine or on a cluster.

usage: plm_jax clean --input=FILES --output=DIR [flags] [-- ENGINE_OPTIONS]
       plm_jax clean --input=FILES --plan [flags]

Running the same command again resumes a run that was stopped. The output is byte-identical with every engine and any
number of workers. Options after -- go to the engine of --runner:

  local   --workers=8                   number of processes (default: one per core)
  dask    --scheduler=tcp://HOST:8786
  ray     --address=HOST:6379           default: the cluster that runs on this machine
  spark   --master=spark://HOST:7077    and settings of Spark, such as --spark.executor.memory=4g
  slurm   --elements=500                largest size of a job array; also options of sbatch, such as --partition=cpu
  beam    options of Apache Beam and its runner, such as --runner=DataflowRunner

docs/cleaning.md describes the rules, and plm_jax/cleaning/settings.py defines every setting. Most presets need a list
of bad words: pass its path with --set=badwords.path=PATH, or disable the rule with --set=badwords=None.

examples:
  plm_jax clean --input='crawl/*.warc.wet.gz' --set=badwords=None --plan
  plm_jax clean --input='crawl/*.warc.wet.gz' --output=clean --set=badwords.path=LDNOOBW/en
  plm_jax clean --input=pages.jsonl --output=clean --set=badwords=None --set=near_duplicates.kind=minhash
  plm_jax clean --input='gs://bucket/*.wet.gz' --output=gs://bucket/clean --set=badwords=None \\
      --runner=dask -- --scheduler=tcp://HOST:8786
"""

from absl import flags

from plm_jax.common import command_line
from plm_jax.common.executors import engines

_INPUT = flags.DEFINE_list("input", [], "paths or globs of WET, WARC, JSON Lines or Parquet files (required)")
_OUTPUT = flags.DEFINE_string(
    "output", None, "directory for the cleaned pages and the report (required without --plan)"
)
_FLAVOR = flags.DEFINE_string(
    "flavor", "en", "preset of rules: en, en.noclean, realnewslike, webtextlike, multilingual or fineweb"
)
_RUNNER = flags.DEFINE_enum("runner", "local", list(engines.ENGINES), "engine that runs the tasks")
_PART_BYTES = flags.DEFINE_integer(
    "part_bytes",
    2**25,
    "maximum number of bytes of text that a task holds in memory; larger values give fewer tasks",
    2**12,
    2**30,
)
_PLAN = flags.DEFINE_bool(
    "plan",
    False,
    "print the tasks, file requests, bytes, memory and disk that a run needs, and write nothing",
)
_SET = flags.DEFINE_multi_string("set", [], "override a setting, such as lines.min_words=4; may be repeated")


def main() -> None:
    """Cleans the crawl and prints a report; with `--plan`, only prints what a run needs."""
    command_line.required(_INPUT)
    output = "" if _PLAN.value else command_line.required(_OUTPUT)
    from plm_jax.cleaning import dry_run, job, settings

    rule = settings.resolve(_FLAVOR.value, _SET.value)
    if _PLAN.value:
        plan = job.make_plan(_INPUT.value, rule, _PART_BYTES.value)
        print(dry_run.table(plan, dry_run.estimate(plan)))
        return
    executor = engines.make(_RUNNER.value, command_line.options())
    job.clean(_INPUT.value, output, rule, executor, part_bytes=_PART_BYTES.value)


if __name__ == "__main__":
    command_line.run(main, accepts_options=True)
