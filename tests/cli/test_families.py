from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from normlens.cli.commands.families import WIDE, families


@pytest.mark.parametrize("width", [80, WIDE])
def test_a_narrow_window_has_fewer_columns_and_says_where_the_others_are(width: int) -> None:
    app = typer.Typer()
    app.command()(families)
    result = CliRunner().invoke(app, ["bert", "gpt2", "--workers", "1"], env={"COLUMNS": str(width)})
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(len(line) <= width for line in lines)
    (heads,) = [line for line in lines if "family" in line and "status" in line]
    assert "notes or reason" in heads, "no heading is broken"
    assert ("worst proof" in heads) == (width == WIDE) == ("--markdown" not in result.stdout)
    assert "2 exact, 0 refused, 2 explained, of 2 families" in result.stdout
