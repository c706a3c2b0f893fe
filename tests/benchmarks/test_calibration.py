"""Published figures and the arithmetic that turns them into seconds."""

import importlib

import pytest


@pytest.fixture
def calibration():
    return importlib.import_module("calibration")


def test_published_flops_become_seconds(calibration):
    case = calibration.CASES["maxtext_32b"]
    tokens, parameters = 4 * 2048, 31 * 10**9
    # Causal attention: scores and sums of values, forward and twice backward, over half of the positions.
    attention = 2 * 2 * 3 * 32 * 64 * 128 * 2048 / 2 * tokens
    seconds, text = calibration.published(case, parameters, 256)
    assert seconds == pytest.approx((6 * parameters * tokens + attention) / 132e12)
    assert "132 TFLOP/s" in text and "8,192" in text


def test_published_rates_and_seconds_are_taken_as_they_are(calibration):
    seconds, _ = calibration.published(calibration.CASES["llama_70b"], 0, 512)
    assert seconds == pytest.approx(4 * 4096 / 692)
    # Both of the source's figures agree: 65.4 % of the peak with causal attention counted half.
    flops = 6 * 68_976_648_192 * 16_384 + 6 * 80 * 64 * 128 * 4096 * 16_384
    assert seconds == pytest.approx(flops / (0.654 * 459e12), rel=0.02)
    assert calibration.published(calibration.CASES["llama_7b"], 0, 256) == (pytest.approx(2.5), "2.5 s")
    ranged = calibration.CASES["llama_7b"]._replace(seconds=(2.0, 8.0))
    assert calibration.published(ranged, 0, 256) == (pytest.approx(4.0), "2 s to 8 s")


def test_a_case_is_built_with_its_dimensions(calibration):
    run = calibration.run_of(calibration.CASES["maxtext_64b"])
    assert (run.model.stack.layers, run.model.embedding.width, run.model.attention.heads) == (64, 8192, 64)
    assert (run.train.batch_size, run.data.length, run.model.remat, run.mesh.fsdp) == (512, 2048, "full", -1)
    assert calibration.run_of(calibration.CASES["llama_7b"]).mesh.data == 32
    assert set(calibration.JUDGED) == {"maxtext_16b", "maxtext_32b", "maxtext_64b", "llama_70b", "llama_7b"}


PRODUCTS = """HloModule m, num_partitions=4

ENTRY %main (a: bf16[8192,8192], b: bf16[8192,8192]) -> bf16[8192,8192] {{
  %a = bf16[{0},8192]{{1,0:S(1)}} parameter(0)
  %b = bf16[8192,8192]{{1,0:S(1)}} parameter(1)
  ROOT %c = bf16[{0},8192]{{1,0:S(1)}} convolution(%a, %b), dim_labels=bf_io->bf
}}
"""


def test_a_case_is_judged_by_the_others(calibration, monkeypatch, tmp_path):
    """Two of three cases take 1.1 times the time of their products, and the third one takes twice their time."""
    case = calibration.CASES["llama_7b"]
    names, paths = ("first", "second", "third"), {}
    cases = {}
    for name, rows, factor in zip(names, (8192, 16384, 8192), (1.1, 1.1, 2.0), strict=True):
        seconds = factor * 2 * rows * 8192**2 / (0.88 * 197e12)
        cases[name] = case._replace(seconds=(seconds,), topology="v5e:2x2")
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_text('{"kind": "TPU v5 lite", "devices": 4, "parameters": 1}')
        paths[name].with_suffix(".hlo").write_text(PRODUCTS.format(rows))
    monkeypatch.setattr(calibration, "CASES", cases)
    monkeypatch.setattr(calibration, "JUDGED", list(names))
    results = calibration.compare(paths)
    assert results["cases"]["third"]["products_of_others"] == pytest.approx(1.1)
    assert results["cases"]["third"]["error"] == pytest.approx(1.1 / 2 - 1)
    assert results["cases"]["first"]["products_of_others"] > 1.15
    assert results["summary"]["judged"] == 3
    lines = calibration.table(results).splitlines()
    assert len(lines) == 5 and lines[4].startswith("| third |") and "-45.0%" in lines[4]
