"""The HTML of a report: its tables and texts, and the data, script and style of its curves."""

import base64
import hashlib
import html
import importlib.resources
import json
from collections.abc import Sequence

from plm_jax.experiments import report_curves, report_tables
from plm_jax.experiments.run_logs import RunLog, Sweep


def page(runs: Sequence[RunLog], sweeps: Sequence[Sweep]) -> str:
    """Returns the report of runs as HTML.

    The page's content security policy allows only the page's own script and style.
    """
    script, style = _asset("page_curves.js") + _asset("page.js"), _asset("page.css")
    curve_data = report_curves.page_data(runs, report_curves.cards(runs))
    data = json.dumps(curve_data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    rules = [f"script-src '{_hash(script)}'", f"style-src '{_hash(style)}'", "base-uri 'none'", "form-action 'none'"]
    policy = "; ".join(["default-src 'none'", *rules])
    names = [sweep.name for sweep in sweeps] or list(dict.fromkeys(run.variant for run in runs))
    remaining = f" and {len(names) - 3} more" if len(names) > 3 else ""
    title = html.escape("plm_jax: " + ", ".join(map(report_curves.label, names[:3])) + remaining)
    sections = [
        *(
            (f"Comparison{' with the paper' if sweep.published else ''}", report_tables.papers(sweep, runs))
            for sweep in sweeps
        ),
        *(("Differences from the paper's setup", report_tables.setups(sweep)) for sweep in sweeps),
        ("Runs", report_tables.overview(runs) + report_tables.targets(runs)),
        ("Curves", '<div id="curves"><noscript><p>Enable JavaScript to see the curves.</p></noscript></div>'),
        ("Tasks", report_tables.tasks(runs, sweeps)),
        ("Config differences", report_tables.differences(runs, sweeps)),
        ("Samples", report_tables.samples(runs)),
        ("Config", report_tables.base_config(runs, sweeps)),
    ]
    body = "\n".join(f"<h2>{name}</h2>\n{content}" for name, content in sections if content)
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{title}</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><style>{style}</style></head><body><main>
<h1>{title}</h1>
{body}
</main><script type="application/json" id="data">{data}</script><script>{script}</script></body></html>
"""


def _asset(name: str) -> str:
    return importlib.resources.files("plm_jax.experiments").joinpath(name).read_text(encoding="utf-8")


def _hash(asset: str) -> str:
    """Returns the hash of a script or style in the form of a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(asset.encode('utf-8')).digest()).decode('ascii')}"
