"""The table of docs/dl4j-compatibility.md: ``python -m tests.interop.page`` writes it from a run of both libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.interop import matrix
from tests.interop.matrix import Result
from tests.interop.real_dl4j import VERSIONS, running

PAGE = Path(__file__).parent.parent.parent / "docs" / "dl4j-compatibility.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def disagreement(version: str, to_there: Sequence[Result], from_there: Sequence[Result]) -> str:
    """Return the rows of the page that a run over one version does not bear out; "" if it bears out all of them."""
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    columns = [rows[0].index(f"to {version}"), rows[0].index(f"from {version}")]
    said = {row[0]: [row[column] for column in columns] for row in rows[2:]}
    wrong = []
    for row in sorted({matrix.row_of(result) for result in (*to_there, *from_there)}):
        cells = [matrix.cell([r for r in results if matrix.row_of(r) == row]) for results in (to_there, from_there)]
        if said.get(row) != cells:
            wrong.append(f"{row}: the page says {said.get(row)}, found {cells}")
    return "\n".join(wrong)


def main() -> None:
    """Write the table."""
    results: dict[tuple[str, str], list[Result]] = {}
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as name, running(version, Path(name)) as real:
            results["theirs", version] = list(matrix.from_theirs(real, matrix.their_cases(version), Path(name)))
            results["ours", version] = list(matrix.from_ours(real, matrix.our_cases(), Path(name)))
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{matrix.table(results)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
