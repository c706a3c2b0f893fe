"""Small files of a run that are nested more deeply than Python reads are damaged ones."""

import pytest

from plm_jax.cleaning import job, lists
from plm_jax.common.errors import UserError
from plm_jax.experiments import members
from plm_jax.runs import incidents, run_directory, run_status, telemetry

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


def test_deeply_nested_files_are_damaged(tmp_path):
    for name in ("config.json", "attempts.json", "metrics.jsonl", "manifest.json"):
        (tmp_path / name).write_bytes(DEEP + b"\n")
    (tmp_path / incidents.FOLDER).mkdir()
    (tmp_path / incidents.FOLDER / "3.json").write_bytes(DEEP)
    for read in (
        run_directory.read,
        members._record,
        lambda folder: telemetry.read_lines(f"{folder}/metrics.jsonl"),
        lambda folder: lists._domains([f"{folder}/config.json"]),
    ):
        with pytest.raises(UserError, match=r"is damaged|is not a JSON object"):
            read(str(tmp_path))
    assert incidents.read(str(tmp_path), 3) is None
    assert job._read_manifest(str(tmp_path)) == {}
    assert run_status.of_run(str(tmp_path)).lines
