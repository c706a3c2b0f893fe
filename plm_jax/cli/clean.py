"""Clean a web crawl with the rules of C4, Gopher and FineWeb, on Apache Beam.

usage: plm_jax clean --input=FILES --output=DIR [flags] [-- BEAM_FLAGS]

Flags after -- go to Beam and its runner; for example, --direct_num_workers=8 runs eight processes on this machine.
docs/cleaning.md describes the rules, and plm_jax/cleaning/settings.py defines every setting.

examples:
  plm_jax clean --input='crawl/*.warc.wet.gz' --output=clean --set=badwords.path=LDNOOBW/en
  plm_jax clean --input=pages.jsonl --output=clean --set=badwords=None --set=near_duplicates.kind=minhash
  plm_jax clean --input='gs://bucket/*.wet.gz' --output=gs://bucket/clean -- --runner=DataflowRunner --project=PROJECT
"""

from absl import flags

from plm_jax.common import command_line

_INPUT = flags.DEFINE_list("input", [], "paths or globs of WET, WARC or JSON Lines files (required)")
_OUTPUT = flags.DEFINE_string("output", None, "directory for the cleaned pages and the report (required)")
_FLAVOR = flags.DEFINE_string(
    "flavor", "en", "set of rules: en, en.noclean, realnewslike, webtextlike, multilingual or fineweb"
)
_SET = flags.DEFINE_multi_string("set", [], "override a setting, such as lines.min_words=4; may be repeated")


def main() -> None:
    """Cleans the crawl and prints what was removed."""
    command_line.required(_INPUT)
    output = command_line.required(_OUTPUT)
    from plm_jax.cleaning import job, settings

    job.clean(_INPUT.value, output, settings.resolve(_FLAVOR.value, _SET.value), command_line.options())


if __name__ == "__main__":
    command_line.run(main, accepts_options=True)
