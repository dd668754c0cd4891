"""Agreement with the original implementations: writes the table of docs/agreement.md.

`python -m benchmarks.peers` compares normlens with the figures in tests/peers, which the authors' code computed.
"""

from __future__ import annotations

from pathlib import Path

from tests.peers.figures import SOURCES, TEXTS, differences

from benchmarks.faithful import put_block

PAGE = Path(__file__).parent.parent / "docs" / "agreement.md"


def table() -> str:
    """Markdown: a row for each quantity, with the largest difference over the texts."""
    largest: dict[tuple[str, str], float] = {}
    for _, source, quantity, difference in differences():
        largest[source, quantity] = max(difference, largest.get((source, quantity), 0.0))
    lines = ["| method | authors' code | quantity | largest difference | allowed |", "|---|---|---|---|---|"]
    for (source, quantity), difference in sorted(largest.items()):
        peer = SOURCES[source]
        lines.append(f"| {peer.title} | `{peer.code}` | `{quantity}` | {difference:.1e} | {peer.allowed:.0e} |")
    texts = "; ".join(f"“{text}”" for text in TEXTS)
    return "\n".join([*lines, "", f"Embedded model (all-MiniLM-L6-v2, float32). Texts: {texts}"])


def main() -> None:
    """Put the table into the page."""
    PAGE.write_text(put_block(PAGE.read_text(encoding="utf-8"), "figures", table()), encoding="utf-8")
    print(table())


if __name__ == "__main__":
    main()
