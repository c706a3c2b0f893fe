"""Options of Beam, as `prepare` and `clean` take them."""

import pytest

from plm_jax.common.errors import UserError

pytest.importorskip("apache_beam")
from plm_jax.common import beam_pipeline


def running_mode(*options):
    return beam_pipeline.pipeline(options).options.get_all_options()["direct_running_mode"]


def test_several_workers_of_this_machine_are_processes():
    assert running_mode() == "in_memory"
    assert running_mode("--direct_num_workers=2") == running_mode("--direct_num_workers", "2") == "multi_processing"
    assert running_mode("--direct_num_workers=2", "--direct_running_mode=multi_threading") == "multi_threading"


@pytest.mark.parametrize("options", [(), ("--runner=DirectRunner",), ("--runner=direct",)])
def test_this_machine_downloads_no_runner(options):
    assert type(beam_pipeline.pipeline(options).runner).__name__ == "FnApiRunner"


def test_other_runners_are_beams():
    assert (
        type(beam_pipeline.pipeline(["--runner=FlinkRunner", "--flink_master=here"]).runner).__name__ == "FlinkRunner"
    )


@pytest.mark.parametrize(
    "option, says",
    [
        ("direct_num_workers=8", "'direct_num_workers=8' is not an option of the pipeline: write --name=value"),
        ("-direct_num_workers=8", "'-direct_num_workers=8' is not an option"),
        ("--runner=DirectRunner 8", "'8' is not an option"),
        ("--direct_num_workers 8 16", "'16' is not an option"),
        ("--direct_num_workers=x", "direct_num_workers: invalid int value: 'x'"),
        ("--direct_num_worker=2", r"no option --direct_num_worker: did you mean 'direct_num_workers'\?"),
        ("--help", "documentation/runners"),
        ("--runner=Nowhere", "rejects --runner=Nowhere: Unexpected pipeline runner"),
        ("--runner=not_installed.Runner", "No module named 'not_installed'"),
    ],
)
def test_mistakes_are_one_line(option, says, capsys):
    with pytest.raises(UserError, match=says) as raised:
        beam_pipeline.pipeline(option.split())
    assert "\n" not in str(raised.value) and capsys.readouterr().out == ""
