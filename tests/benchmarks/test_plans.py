"""The table of plans, of made-up ones; and that a row is compiled once."""

import importlib
import json
import sys

import pytest

STEP = {"first_step": 0, "length": 512, "batch_size": 64, "microbatches": 4}
MEMORY = {"parameters": 1e9, "optimizer": 2e9, "temporaries": 4e9, "total": 7e9}
PLAN = {
    "mesh": {"data": 1, "fsdp": 16, "tensor": 2, "context": 1},
    "stage": STEP,
    "remat": "dots",
    "bytes_per_device": MEMORY,
    "fits": True,
    "model_flops_per_step": 100,
    "program_flops_per_step": 125,
    "collectives": {
        "all-gather": {"count": 2, "bytes": 3e9, "asynchronous": 2e9, "ring": 1e9, "synchronous": 0},
        "all-reduce": {"count": 1, "bytes": 1e9, "asynchronous": 0, "ring": 0, "synchronous": 1e9},
    },
    "estimate": {
        "seconds": {"optimistic": 2.9, "middle": 3.0, "pessimistic": 3.21},
        "bound_seconds": 2.5,
        "mfu": {"optimistic": 0.5, "middle": 0.483, "pessimistic": 0.45},
        "bound": "compute",
        "seconds_alone": {"compute": 2.0, "memory": 1.0, "network": 0.4, "synchronous": 0.5},
    },
}
MEASURED = {"command": "plm_jax plan --config=bert:large --topology=v5e:4x4 --config.model.remat=dots", "commit": "abc"}
MEASURED |= {"processor_seconds": 61.0}


@pytest.fixture
def plans(monkeypatch, tmp_path):
    module = importlib.import_module("plans")
    page = tmp_path / "pods.md"
    page.write_text(f"before\n{module.BEGIN}\nold\n{module.END}\nafter\n")
    monkeypatch.setattr(module, "PAGE", page)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "ROWS", {"first": "bert:large v5e:4x4", "second": "gpt2:xl v5e:4x4"})
    return module


def test_a_row_is_compiled_once_and_all_are_told(plans, monkeypatch, capsys):
    asked = []

    def planned(row, minutes):
        asked.append(row)
        return MEASURED | ({"plan": PLAN} if "bert" in row else {"error": "error: no such slice"})

    monkeypatch.setattr(plans, "planned", planned)
    monkeypatch.setattr(plans, "unchanged", lambda commit: commit == "abc")
    for arguments in (["first"], []):
        monkeypatch.setattr(sys, "argv", ["plans.py", *arguments])
        plans.main()
    assert asked == ["bert:large v5e:4x4", "gpt2:xl v5e:4x4"]
    results = json.loads(capsys.readouterr().out.split("\n}\n")[1] + "\n}")
    assert results["second"] == {"error": "error: no such slice"}
    assert results["first"]["network_over_compute"] == 0.45 and results["first"]["synchronous_share"] == 0.25
    text = plans.PAGE.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert (
        "| `bert:large v5e:4x4 model.remat=dots` | fsdp 16 × tensor 2, 4, dots | 3.00 + 4.00 | 0.50, 0.45 "
        "| 4.0 (25.0%) | 2.5 s, compute | 3 s (2.9 to 3.21), 48% | 61 s |"
    ) in text


def test_what_does_not_fit_says_what_it_wanted(plans):
    unfitting = PLAN | {"fits": False, "bytes_per_device": MEMORY | {"temporaries": None, "total": 130e9}}
    del unfitting["estimate"]
    assert "does not fit: 130.0" in plans.table({"first": MEASURED | {"plan": unfitting}})


def test_results_without_an_estimate_leave_it_out(plans):
    bound = PLAN["estimate"] | {"mfu": None, "seconds": {"optimistic": 2.5, "middle": None, "pessimistic": None}}
    assert "| 2.5 s, compute |  | 61 s |" in plans.table({"first": MEASURED | {"plan": PLAN | {"estimate": bound}}})
    del bound["mfu"], bound["bound_seconds"]
    assert "| 2.5 s, compute |  | 61 s |" in plans.table({"first": MEASURED | {"plan": PLAN | {"estimate": bound}}})


def test_maxtexts_figures_stand_below_ours(plans):
    lines = plans.table({plans.MAXTEXT["row"]: MEASURED | {"plan": PLAN}, "first": MEASURED | {"plan": PLAN}})
    assert "1.26 + 7.16" in lines.splitlines()[3]
