"""A Ray cluster of three nodes on this machine: one is taken away in mid-run, one comes, the driver is killed.

    python -m tests.faults.cluster --pairs 2000

The tables must be those of one process that nobody disturbed. Pairs of paragraphs are those of WikiText-2, from the folder
`NORMLENS_TEST_DATA`, or made up where it is absent. Everything listens on the loopback interface only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from normlens.corpus.result import open_corpus

from ..corpus.conftest import WORDS
from .moments import Outcome, largest_difference

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("NORMLENS_TEST_DATA", ROOT / ".." / "shared" / "data"))
_STORE = 80 << 20  # bytes, per node
_SURROUNDINGS = {
    "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    "OMP_NUM_THREADS": "1",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the loopback interface only
    "RAY_raylet_start_wait_time_s": "600",  # a busy machine takes its time
    "RAY_memory_monitor_refresh_ms": "0",  # what others on this machine take is no reason to kill our workers
    "RAY_worker_niceness": "0",  # Ray's workers step back behind everything else: on a busy machine they would stand still
}

#: One run in a process of its own: a small BERT that reads real words, its weights random and always the same.
_DRIVER = """
import json, sys
from pathlib import Path
import torch, transformers
torch.set_num_threads(1)
import normlens
from normlens.lens import Lens

source, out, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
words = normlens.load().tokenizer
torch.manual_seed(0)
config = transformers.BertConfig(
    vocab_size=len(words), hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
    max_position_embeddings=128, initializer_range=0.3,
)
lens = Lens(transformers.BertModel(config).eval(), words, name="small")
lens.corpus(source, out, pairs=True, range_seconds=1.0, skip="^=", **options)
"""


def write_source(folder: Path, pairs: int) -> Path:
    """So many pairs of paragraphs."""
    wiki = DATA / "wikitext-2"
    texts: list[str] = []
    for path in sorted(wiki.glob("*")) if wiki.is_dir() else []:
        lines = (line.strip() for line in path.read_text().splitlines())
        texts += [line for line in lines if line and not line.startswith("=")]  # no headings
    rng = np.random.default_rng(0)
    while len(texts) < 2 * pairs:
        texts.append(" ".join(rng.choice(WORDS, size=90)))
    source = folder / "wiki.txt"
    source.write_text("\n".join(texts[: 2 * pairs]) + "\n")
    return source


def counted(out: Path) -> int:
    """Sequences that are saved; a shard that is merged of others may stand beside them."""
    saved: set[int] = set()
    for path in out.glob("unfinished/*.shard"):
        start, stop = path.stem.split("-")[1:]
        saved.update(range(int(start), int(stop)))
    return len(saved)


@dataclass
class Cluster:
    """Three nodes with a processor each."""

    log: list[str] = field(default_factory=list)

    def __enter__(self) -> Cluster:
        from ray.cluster_utils import Cluster as RayCluster

        head = {
            "num_cpus": 1,
            "node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "object_store_memory": _STORE,
        }
        self._ray = RayCluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._new_node(), self._new_node()]
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def _new_node(self) -> Any:
        return self._ray.add_node(num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=_STORE)

    @property
    def address(self) -> str:
        return str(self._ray.address)

    def take_node(self) -> None:
        """As when a machine fails: its processes are killed."""
        self._ray.remove_node(self._nodes.pop(), allow_graceful=False)

    def give_node(self) -> None:
        self._nodes.append(self._new_node())


def start(source: Path, out: Path, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **_SURROUNDINGS}
    command = [sys.executable, "-c", _DRIVER, str(source), str(out), json.dumps(options)]
    return subprocess.Popen(command, env=environment, cwd=ROOT)


def disturbed(folder: Path, pairs: int, say: Callable[[str], None] = print) -> Outcome:
    """Take a node, give one, kill the driver, start it again; compare."""
    source, out = write_source(folder, pairs), folder / "cluster"
    right = folder / "one-process"
    begin = time.monotonic()

    def tell(line: str) -> None:
        say(f"{time.monotonic() - begin:.0f} s: {line}")

    undisturbed = start(source, right)
    os.environ.update(_SURROUNDINGS)  # the nodes' workers have them too
    with Cluster() as cluster:
        options = {"engine": "ray", "address": cluster.address}
        driver = start(source, out, **options)
        harm: list[tuple[float, str, Callable[[], object]]] = [
            (0.2, "a node is taken away", cluster.take_node),
            (0.4, "a node comes", cluster.give_node),
            (0.6, "the driver is killed", lambda: driver.send_signal(signal.SIGKILL)),
        ]
        done = []
        for share, what, do in harm:
            while driver.poll() is None and counted(out) < share * pairs:
                time.sleep(0.05)
            if driver.poll() is None:
                tell(f"{counted(out)} of {pairs} saved: {what}")
                do()
                done.append(what)
        driver.wait()
        saved = counted(out)
        tell(f"{saved} of {pairs} saved: the driver is started again")
        code = start(source, out, **options).wait()
        assert code == 0, f"the second driver ended with {code}"
        engine = json.loads((out / "manifest.json").read_text())["engine"]
        tell(f"accounts of the second driver: {json.dumps(engine)}")
    assert undisturbed.wait() == 0
    tell(f"one process has counted {pairs} pairs")
    difference = largest_difference(open_corpus(out), open_corpus(right))
    whole = len(done) == len(harm) and 0 < saved < pairs
    note = "" if whole else f"only this was done: {', '.join(done)}; {saved} saved before the second driver"
    return Outcome("ray: node taken, node given, driver killed", f"{pairs} pairs", saved, difference, 0.0, note)


def main() -> int:
    """One disturbed run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = disturbed(Path(folder), arguments.pairs, lambda line: print(line, flush=True))
    print(f"largest difference {found.difference:.1e} {found.note}")
    return int(found.difference > 1e-9 or bool(found.note))


if __name__ == "__main__":
    raise SystemExit(main())
