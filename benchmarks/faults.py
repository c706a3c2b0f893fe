"""What plm_jax makes of damage, hostile files, kills and failing disks: a table of campaigns.

    python benchmarks/faults.py [--full] [--seed=0] [--only=runs]

A tenth of the cases by default, all of them with --full; another seed makes other cases. `handled` is what should be:
the same end as undisturbed, or one line that says what to do. `silent` is a wrong result that nothing tells,
`traceback` also a crash or more than 1 GB, `hang` more than a case's seconds. What went wrong is told on stderr; JSON
with `--output`. Exit status 1 if anything did. `faults_week.py`, a simulated week, is a program of its own.
"""

import argparse
import json
import pathlib
import sys

import faults_data
import faults_files
import faults_runs
import machine

CACHES, CORPORA, HOSTILE = 500, 200, 400


def main() -> None:
    """Runs the campaigns and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all cases, by default a tenth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["files", "data", "runs"], help="of these alone")
    parser.add_argument("--output", help="a JSON file")
    given = parser.parse_args()
    share = 1.0 if given.full else 0.1
    campaigns = {
        "files": lambda: faults_files.hostile(round(share * HOSTILE), given.seed),
        "data": lambda: [
            *faults_data.caches(round(share * CACHES), given.seed),
            *faults_data.corpora(round(share * CORPORA), given.seed),
        ],
        "runs": lambda: faults_runs.run(share, given.seed),
    }
    rows = []
    for name, tried in campaigns.items():
        if given.only in (None, name):
            print(f"== {name}", file=sys.stderr, flush=True)
            rows += [row._asdict() for row in tried()]
    print(table(rows))
    if given.output:
        about = machine.describe() | {"share": share, "seed": given.seed, "campaigns": rows}
        pathlib.Path(given.output).write_text(json.dumps(about, indent=2) + "\n")
    sys.exit(any(row["handled"] < row["tried"] for row in rows))


def table(rows: list[dict]) -> str:
    """The campaigns as a table with a last line of all."""
    names = list(rows[0])
    rows = [*rows, {"campaign": "all"} | {name: sum(row[name] for row in rows) for name in names[1:]}]
    width = max(len(row["campaign"]) for row in rows)
    lines = [[name if row is None else str(row[name]) for name in names] for row in (None, *rows)]
    return "\n".join(line[0].ljust(width) + "".join(cell.rjust(11) for cell in line[1:]) for line in lines)


if __name__ == "__main__":
    main()
