"""The table of the surveyed models: the outcome of each operation, and why some are not right."""

from __future__ import annotations

from collections import Counter
from textwrap import shorten

from bench.lib.answers import table
from bench.lib.record import Record

OPERATIONS = ("split", "plan", "convert", "divide")
NOTE = """
Each model is small and has random weights. It is cut into two stages, planned within a memory limit,
converted, and divided over two ranks. An outcome is right if result and gradients, in fp64, differ from the
unchanged model's by at most 1e-9, and by 1e-11 if ranks divide it; a plan, in fp32, if its simulated step
stays within the limit. An error of mucudnn counts as refused, any other error as unclear. The aim is that
nothing is wrong or unclear. Ranks do not divide models of text.
"""


def survey_table(records: list[Record]) -> list[str]:
    """Return the note and the table, whose first row has the counts."""
    models = {
        record.case: [record.details.get(name, "") for name in OPERATIONS]
        for record in records
        if record.bench == "survey"
    }
    columns = zip(*models.values(), strict=True)
    counts = (Counter(text.partition(":")[0] for text in column if text) for column in columns)
    totals = (", ".join(f"{count} {outcome}" for outcome, count in own.most_common()) for own in counts)
    rows = [(case, *(shorten(text, 200) for text in texts)) for case, texts in models.items()]
    return [NOTE, *table(("model", *OPERATIONS), [(f"all {len(models)}", *totals), *rows])]
