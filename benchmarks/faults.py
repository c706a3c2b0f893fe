"""Fault injection (damage, hostile files, wrong values, kills, failing disks) and the outcomes with plm_jax.

    python benchmarks/faults.py [--full] [--seed=0] [--only=verbs] [--output=F.json]

Runs a tenth of the cases, or all of them with --full; another seed makes other cases. Outcomes: `handled`, the result
of an undisturbed run or one line that says what to do; `silent`, a wrong result without a message; `traceback`, a
traceback, a crash or more than 1 GB of memory; `hang`, more CPU seconds than the case may take. Cases that are not
handled are printed on stderr, and make the exit status 1; `--output` writes JSON. `faults_week.py` (a simulated week)
and `faults_sweeps.py` are separate programs.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import faults_best
import faults_case
import faults_data
import faults_files
import faults_runs
import faults_verbs
import machine

MODULES = (faults_verbs, faults_files, faults_data, faults_best, faults_runs)
CAMPAIGNS = [campaign for module in MODULES for campaign in module.CAMPAIGNS]


def main() -> None:
    """Runs the campaigns and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all cases, by default a tenth")
    parser.add_argument("--share", type=float, help="share of the cases to run, instead of a tenth or all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="prefix of the names of the campaigns to run")
    parser.add_argument("--output", help="a JSON file")
    flags = parser.parse_args()
    share = flags.share or (1.0 if flags.full else 0.1)
    with tempfile.TemporaryDirectory() as folder:
        chosen = [campaign for campaign in CAMPAIGNS if campaign.name.startswith(flags.only)]
        rows = [row._asdict() for row in faults_case.run(chosen, pathlib.Path(folder), share, flags.seed)]
    print(table(rows))
    if flags.output:
        about = machine.describe() | {"share": share, "seed": flags.seed, "campaigns": rows}
        pathlib.Path(flags.output).write_text(json.dumps(about, indent=1) + "\n")
    sys.exit(any(row["handled"] < row["tried"] for row in rows))


def table(rows: list[dict]) -> str:
    """Formats the campaigns as a table, with their sum as the last line."""
    names = list(rows[0])
    rows = [*rows, {"campaign": "all"} | {name: sum(row[name] for row in rows) for name in names[1:]}]
    width = max(len(row["campaign"]) for row in rows)
    lines = [[name if row is None else str(row[name]) for name in names] for row in (None, *rows)]
    return "\n".join(line[0].ljust(width) + "".join(cell.rjust(11) for cell in line[1:]) for line in lines)


if __name__ == "__main__":
    main()
