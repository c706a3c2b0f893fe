"""Apache Beam pipelines, built from Beam's command-line options."""

import contextlib
import io
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import apache_beam
from apache_beam.options import pipeline_options
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability import portable_runner
from apache_beam.runners.portability.fn_api_runner import fn_runner

from plm_jax.common.errors import UserError, nearest, one_line


def pipeline(options: Sequence[str]) -> apache_beam.Pipeline:
    """Returns an empty pipeline with the runner and the settings in `options`.

    Without `--runner`, the pipeline runs on this machine. If `--direct_num_workers` is not 1, it then runs in worker
    processes, or in threads with `--direct_running_mode=multi_threading`.

    Raises:
      UserError: Beam or the runner rejects an option, an argument is not an option, an option of a pipeline on this
        machine is unknown, or the runner is unknown or not installed.
    """
    parsed = _parse(options)
    runner = _runner(parsed)
    try:
        return apache_beam.Pipeline(runner, parsed)
    except Exception as error:  # Each runner checks its options differently, some in their cloud.
        raise UserError(f"Beam rejects {' '.join(options)}: {one_line(error, 400)}") from error


def _parse(options: Sequence[str]) -> pipeline_options.PipelineOptions:
    """Parses and checks the options, and adjusts some of them for a pipeline on this machine."""
    for before, option in itertools.pairwise(["", *options]):
        if not option.startswith("--") and (not before.startswith("--") or "=" in before):
            raise UserError(f"'{option}' is not an option of the pipeline: write --name=value")  # Beam would drop it.
    logging.basicConfig()  # Otherwise Beam does it below, while stderr is redirected.
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            parsed = pipeline_options.PipelineOptions(list(options))
            all_options = parsed.get_all_options(retain_unknown_options=True)
    except SystemExit as stop:
        rejected = output.getvalue().strip().rpartition("error: ")[2] if stop.code else "--help"
        raise UserError(f"Beam rejects its options ({rejected}): see beam.apache.org/documentation/runners") from None
    if _is_local(parsed):
        known = pipeline_options.PipelineOptions([]).get_all_options()
        for name in all_options.keys() - known.keys():
            raise UserError(f"Beam has no option --{name}: {nearest(name, known)}")
        direct = parsed.view_as(pipeline_options.DirectOptions)
        if direct.direct_num_workers != 1 and direct.direct_running_mode == "in_memory":
            direct.direct_running_mode = "multi_processing"
        worker = parsed.view_as(pipeline_options.WorkerOptions)
        worker.default_sdk_harness_log_level = worker.default_sdk_harness_log_level or "ERROR"
    return parsed


def _is_local(options: pipeline_options.PipelineOptions) -> bool:
    runner = options.view_as(pipeline_options.StandardOptions).runner
    return runner is None or runner.lower() in ("direct", "directrunner")


def _runner(options: pipeline_options.PipelineOptions) -> Any:
    """Returns an `FnApiRunner` for a pipeline on this machine, and the name of any other runner.

    `FnApiRunner` is written in Python. Beam's `DirectRunner` would download another runner if it could.
    """
    if not _is_local(options):
        return options.view_as(pipeline_options.StandardOptions).runner
    encoded = portable_runner.JobServiceHandle.encode_pipeline_options(options.get_all_options())
    provision = beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
    return fn_runner.FnApiRunner(provision_info=fn_runner.ExtendedProvisionInfo(provision))
