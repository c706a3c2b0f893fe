"""`python -m plm_jax clean --input=CRAWL --output=DIR [--flavor=en]`: C4-style cleaning of a crawl on Apache Beam.

    python -m plm_jax clean --input='crawl/*.warc.wet.gz' --output=clean --set badwords.path=LDNOOBW/en
    python -m plm_jax clean --input=a.jsonl --output=clean --set badwords=None --set near_duplicates.kind=minhash
    python -m plm_jax clean --input=gs://b/*.wet.gz --output=gs://b/clean … -- --runner=DataflowRunner --project=P …

What follows `--` are options of Beam and of its runner, such as `--direct_num_workers=8` for as many processes here.
plm_jax/cleaning/settings.py holds all settings.
"""

from absl import flags

from plm_jax.common import command_line

_INPUT = flags.DEFINE_list("input", [], "paths or globs of WET, WARC or JSON lines files")
_OUTPUT = flags.DEFINE_string("output", None, "the folder for the cleaned pages and the report")
_FLAVOR = flags.DEFINE_string("flavor", "en", "en, en.noclean, realnewslike, webtextlike or multilingual")
_SET = flags.DEFINE_multi_string("set", [], "a changed setting, as in --set=lines.min_words=4; may be given again")


def main() -> None:
    """Cleans the crawl and prints what was removed."""
    command_line.required(_INPUT)
    output = command_line.required(_OUTPUT)
    from plm_jax.cleaning import job, settings

    job.clean(_INPUT.value, output, settings.resolve(_FLAVOR.value, _SET.value), command_line.options())


if __name__ == "__main__":
    command_line.run(main, takes_options=True)
