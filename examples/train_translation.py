"""Train the 2020 paper's translation model on a CPU, and see at which point of its training the norms begin to align.

    python examples/train_translation.py --corpus train.tsv.xz --out models/de-en \
        --source test.de --target test.en --gold alignment.talp --gold-one-based

The corpus has one pair per line, source and target split by a tab (plain, .gz or .xz). The folder that comes out is a
Marian model with its tokenizer, as `from_pretrained`, `normlens align` and `normlens reproduce` read it.

The paper's model (Table 5, v1: 6 + 6 layers, 512 wide, 2^15 target tokens per update, 40 epochs) took GPUs. The defaults
here are what aligns soonest on one CPU thread: 2 + 3 layers, 256 wide, a joint vocabulary of 8,000 BPE pieces whose one
embedding is read by encoder, decoder and softmax, no dropout (few epochs cannot overfit), small updates, short sentences
first, and embeddings that begin where the corpus puts them (see `embeddings_of_sentences`) instead of at random.

Time is what ends it: `--minutes` of this call. A checkpoint is written every `--save-every` seconds, and the same call
goes on from it. With a gold alignment, `curve.jsonl` gets a line per look: AER of weights and of norms by layer, in both
readings; `--draw curve.svg` draws it and trains nothing.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import lzma
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import scipy.sparse
import sentencepiece
import torch
from torch.nn.functional import cross_entropy
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from normlens.experiments.translation_study import TranslationStudy
from normlens.lens import Lens

END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"
OPENERS = {".gz": gzip.open, ".xz": lzma.open}

Example = tuple[list[int], list[int]]


# ---- text ---------------------------------------------------------------------------------------------------------


def open_text(path: Path) -> TextIO:
    """Open a plain, gzip or xz file as UTF-8 text."""
    return OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8")  # type: ignore[no-any-return, operator]


def read_pairs(path: Path, limit: int | None, swap: bool) -> Iterator[tuple[str, str]]:
    """Yield (source, target) for each line; a line without exactly one tab is an error that names it."""
    with open_text(path) as lines:
        for number, line in enumerate(lines):
            if limit is not None and number >= limit:
                return
            cells = line.rstrip("\n").split("\t")
            if len(cells) != 2:
                raise SystemExit(f"{path}, line {number + 1}: expected source and target split by one tab")
            yield (cells[1], cells[0]) if swap else (cells[0], cells[1])


def tokenizer_of(pairs: Sequence[tuple[str, str]], folder: Path, pieces: int) -> MarianTokenizer:
    """One BPE model of both sides together, trained where the folder has none yet."""
    files = [folder / name for name in ("source.spm", "target.spm", "vocab.json")]
    if not all(file.exists() for file in files):
        folder.mkdir(parents=True, exist_ok=True)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(side for pair in pairs for side in pair),
            model_prefix=str(folder / "joint"),
            model_type="bpe",
            vocab_size=pieces,
            character_coverage=1.0,
            bos_id=-1,
            minloglevel=2,
        )
        (folder / "joint.vocab").unlink()
        model = (folder / "joint.model").read_bytes()
        (folder / "joint.model").unlink()
        for file in files[:2]:
            file.write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        vocabulary = {END: 0, UNKNOWN: 1}
        for index in range(processor.get_piece_size()):
            vocabulary.setdefault(processor.id_to_piece(index), len(vocabulary))
        vocabulary[PAD] = len(vocabulary)
        files[2].write_text(json.dumps(vocabulary, ensure_ascii=False))
    tokenizer = MarianTokenizer(*map(str, files))
    tokenizer.save_pretrained(folder)
    return tokenizer


def epoch_of_batches(examples: Sequence[Example], budget: int, stages: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of similar length with at most `budget` padded target tokens.

    The first epoch is cut into stages, the shortest sentences first; later ones are in random order.
    """
    chance = random.Random(f"{seed} {epoch}")
    order = chance.sample(range(len(examples)), len(examples))
    # Sorting a shuffled list keeps equal lengths in random order, so a batch is not a run of the corpus.
    order.sort(key=lambda i: (len(examples[i][1]), len(examples[i][0])))
    batches: list[list[int]] = []
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * len(examples[index][1]) > budget:
            batches.append(batch)
            batch = []
        batch.append(index)
    batches.append(batch)
    if epoch:
        chance.shuffle(batches)
        return batches
    cuts = np.linspace(0, len(batches), stages + 1).astype(int)
    parts = [batches[start:end] for start, end in itertools.pairwise(cuts)]
    return [batch for part in parts for batch in chance.sample(part, len(part))]


def padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """Rows of one length, filled up at the end."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


# ---- model --------------------------------------------------------------------------------------------------------


def embeddings_of_sentences(examples: Sequence[Example], vocabulary: int, width: int, seed: int) -> torch.Tensor:
    """Embeddings by which sentence pairs a piece occurs in: its row of a truncated SVD of pieces x pairs.

    A piece and its translation occur in the same pairs, so they begin near each other. No gold and no other text is
    used. The counts are scaled as in correspondence analysis, n / sqrt(row sum x column sum), whose first direction is
    the same for all pieces and left out.
    """
    columns = np.concatenate([np.full(len(s) + len(t), i) for i, (s, t) in enumerate(examples)])
    rows = np.concatenate([np.array(s + t) for s, t in examples])
    counts = scipy.sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), (vocabulary, len(examples)))
    by_piece, by_pair = (np.maximum(np.asarray(counts.sum(axis)).ravel(), 1.0) for axis in (1, 0))
    weighted = scipy.sparse.diags(by_piece**-0.5) @ counts @ scipy.sparse.diags(by_pair**-0.5)
    chance = np.random.default_rng(seed)
    found = np.linalg.qr(weighted @ chance.standard_normal((len(examples), width + 16)).astype(np.float32))[0]
    for _ in range(4):  # power steps: the spectrum of such counts falls slowly
        found = np.linalg.qr(weighted @ (weighted.T @ found))[0]
    left, strength, _ = np.linalg.svd(np.asarray(weighted.T @ found).T, full_matrices=False)
    placed = (found @ left)[:, 1 : width + 1] * np.sqrt(strength[1 : width + 1])
    placed -= placed.mean(0)
    length = np.linalg.norm(placed, axis=1, keepdims=True)
    random_rows = chance.standard_normal(placed.shape)
    placed = np.where(length > 1e-6, placed / np.maximum(length, 1e-6), random_rows / np.sqrt(width))
    return torch.tensor(placed, dtype=torch.float32)


def build_model(options: argparse.Namespace, tokenizer: MarianTokenizer, examples: Sequence[Example]) -> MarianMTModel:
    """A Marian model at its start."""
    torch.manual_seed(options.seed)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=len(tokenizer.encoder),
            decoder_vocab_size=len(tokenizer.encoder),
            d_model=options.width,
            encoder_layers=options.encoder_layers,
            decoder_layers=options.decoder_layers,
            encoder_attention_heads=options.heads,
            decoder_attention_heads=options.heads,
            encoder_ffn_dim=options.feed_forward,
            decoder_ffn_dim=options.feed_forward,
            activation_function="relu",
            dropout=options.dropout,
            attention_dropout=0.0,
            init_std=options.width**-0.5 / 2,
            scale_embedding=True,
            max_position_embeddings=512,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            forced_eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,
        )
    )
    if not options.random_embeddings:
        started = embeddings_of_sentences(examples, len(tokenizer.encoder), options.width, options.seed)
        with torch.no_grad():
            model.get_input_embeddings().weight.copy_(started * options.embedding_length)
    if not options.random_cross_attention:
        like_to_like(model)
    return model


def like_to_like(model: MarianMTModel) -> None:
    """Let cross-attention begin by looking at vectors like its own: queries and keys share one rotation per layer.

    With embeddings that begin near their translations this is a first guess at the word taken in. Values and outputs
    stay random, so nothing is said about norms.
    """
    for layer in model.model.decoder.layers:
        attention = layer.encoder_attn
        rotation = torch.nn.init.orthogonal_(torch.empty_like(attention.q_proj.weight))
        with torch.no_grad():
            attention.q_proj.weight.copy_(rotation)
            attention.k_proj.weight.copy_(rotation)


def loss_of(model: MarianMTModel, batch: Sequence[Example], pad: int, smoothing: float) -> torch.Tensor:
    """Label-smoothed cross-entropy per target token; the softmax is computed for real tokens only."""
    sources, targets = padded([s for s, _ in batch], pad), padded([t for _, t in batch], pad)
    shifted = padded([[pad, *t[:-1]] for _, t in batch], pad)
    hidden = model.model(
        input_ids=sources, attention_mask=(sources != pad).long(), decoder_input_ids=shifted, use_cache=False
    ).last_hidden_state
    real = targets != pad
    logits = model.lm_head(hidden[real]) + model.final_logits_bias
    return cross_entropy(logits.float(), targets[real], label_smoothing=smoothing)


# ---- training -----------------------------------------------------------------------------------------------------


def rate_at(step: int, options: argparse.Namespace) -> float:
    """Linear to the full rate over the warm-up, then falling with the inverse square root of the step."""
    warmup = max(1, options.warmup)
    return float(options.rate * min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5 if step >= warmup else 1.0))


def alignment_errors(model: MarianMTModel, tokenizer: MarianTokenizer, options: argparse.Namespace) -> dict[str, Any]:
    """AER of weights and norms by layer in both readings, from `normlens`."""
    study = TranslationStudy(
        Lens(model.eval(), tokenizer), options.source, options.target, options.gold, options.gold_one_based
    )
    errors = study.errors()
    model.train()
    return {
        setting: {quantity: [round(float(value), 2) for value in values] for quantity, values in own.items()}
        for setting, own in errors.by_layer.items()
    } | {"integrated": {s: [c.best_layer, round(c.best, 2)] for s, c in errors.chosen.items()}}


class Training:
    """The loop, and what it needs to go on after an interruption."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.started = options, time.monotonic()
        pairs = list(read_pairs(options.corpus, options.limit, options.swap))
        self.tokenizer = tokenizer_of(pairs, options.out, options.pieces)
        sources = self.tokenizer([source for source, _ in pairs])["input_ids"]
        targets = self.tokenizer(text_target=[target for _, target in pairs])["input_ids"]
        self.examples: list[Example] = list(zip(sources, targets, strict=True))
        self.checkpoint = options.out / "checkpoint.pt"
        found = torch.load(self.checkpoint, weights_only=True) if self.checkpoint.exists() else None
        if found is None:
            self.model = build_model(options, self.tokenizer, self.examples)
        else:
            self.model = MarianMTModel.from_pretrained(options.out, dtype=torch.float32)
        self.model.train()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=1e-4, fused=True
        )
        self.step = self.tokens = 0
        self.seconds, self.losses = 0.0, [0.0, 0.0]
        if found is not None:
            self.model.load_state_dict(found["model"])
            self.optimizer.load_state_dict(found["optimizer"])
            self.step, self.tokens, self.seconds = found["step"], found["tokens"], found["seconds"]

    def batches(self) -> Iterator[list[Example]]:
        """All batches from the present step on: the order is a function of seed and epoch, so a resumed run is one."""
        first, epoch = 0, 0
        while True:
            batches = epoch_of_batches(
                self.examples, self.options.tokens, self.options.stages, self.options.seed, epoch
            )
            for number, batch in enumerate(batches, first):
                if number >= self.step:
                    yield [self.examples[i] for i in batch]
            first, epoch = first + len(batches), epoch + 1

    def update(self, batch: Sequence[Example]) -> None:
        """One batch, one step of Adam."""
        options = self.options
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(self.step, options)
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            loss = loss_of(self.model, batch, self.tokenizer.pad_token_id, options.smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += sum(len(target) for _, target in batch)
        self.losses = [self.losses[0] + float(loss.detach()), self.losses[1] + 1]

    def look(self) -> None:
        """One line of the curve: where the training stands, and what aligns how well."""
        loss = self.losses[0] / self.losses[1] if self.losses[1] else None
        line: dict[str, Any] = {
            "step": self.step,
            "tokens": self.tokens,
            "cpu_seconds": round(self.seconds, 1),
            "loss": loss,
        }
        if self.options.gold is not None:
            line |= alignment_errors(self.model, self.tokenizer, self.options)
        with (self.options.out / "curve.jsonl").open("a") as file:
            print(json.dumps(line), file=file, flush=True)
        print(json.dumps(line), flush=True)
        self.losses = [0.0, 0.0]

    def save(self) -> None:
        """The model as others read it, and the checkpoint, written whole or not at all."""
        self.model.save_pretrained(self.options.out)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
        }
        written = self.checkpoint.with_suffix(".writing")
        torch.save(state, written)
        written.replace(self.checkpoint)

    def run(self) -> None:
        """Train for the time given; look at the curve at the steps that `--look-every` and its growth name."""
        options = self.options
        saved = clock = time.monotonic()
        busy = time.process_time()
        if not self.step:
            self.look()
        for batch in self.batches():
            self.update(batch)
            self.seconds += time.process_time() - busy
            if self.step in (50, 100, 200, 300) or self.step % options.look_every == 0:
                self.look()
            busy, clock = time.process_time(), time.monotonic()
            if clock - saved > options.save_every:
                self.save()
                saved = clock
            if clock - self.started > 60 * options.minutes or self.step == options.steps:
                break
        self.look()
        self.save()


def draw(curve: Path, out: Path) -> None:
    """AER of the best layer against the target tokens seen, weights and norms, in both readings."""
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for line in curve.read_text().splitlines()]
    seen = [line["tokens"] / 1e6 for line in lines]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, (setting, title) in zip(axes, (("awi", "word taken in"), ("awo", "word put out")), strict=True):
        for quantity, colour in (("weights", "#c2571a"), ("norms", "#1f5fa8")):
            for layer in range(len(lines[0][setting][quantity])):
                values = [line[setting][quantity][layer] for line in lines]
                axis.plot(seen, values, color=colour, alpha=0.3, linewidth=1)
            best = [min(line[setting][quantity]) for line in lines]
            axis.plot(seen, best, color=colour, linewidth=2, label=f"{quantity}, best layer")
        axis.set(title=f"{title} ({setting})", xlabel="target tokens seen, millions")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("AER, %")
    axes[1].legend(frameon=False)
    figure.savefig(out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--swap", action="store_true", help="translate from the second column to the first")
    parser.add_argument("--limit", type=int, help="use only the first pairs")
    parser.add_argument("--source", type=Path, help="test sentences to align along the way")
    parser.add_argument("--target", type=Path)
    parser.add_argument("--gold", type=Path)
    parser.add_argument("--gold-one-based", action="store_true")
    parser.add_argument("--pieces", type=int, default=8_000, help="BPE pieces of both sides together")
    parser.add_argument("--encoder-layers", type=int, default=2)
    parser.add_argument("--decoder-layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--feed-forward", type=int, default=512)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--smoothing", type=float, default=0.1, help="label smoothing")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=768, help="target tokens per update")
    parser.add_argument("--random-embeddings", action="store_true", help="start embeddings at random")
    parser.add_argument("--random-cross-attention", action="store_true", help="start queries and keys at random")
    parser.add_argument("--stages", type=int, default=1, help="first epoch: from short to long in so many stages")
    parser.add_argument("--embedding-length", type=float, default=0.75)
    parser.add_argument("--bf16", action="store_true", help="autocast; the weights themselves stay float32")
    parser.add_argument("--minutes", type=float, default=60, help="time that this call may take")
    parser.add_argument("--steps", type=int, help="stop after so many updates in all")
    parser.add_argument("--save-every", type=float, default=240, help="seconds between checkpoints")
    parser.add_argument("--look-every", type=int, default=500, help="updates between lines of the curve")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--draw", type=Path, help="draw the curve of a finished run here, and train nothing")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.draw:
        draw(options.out / "curve.jsonl", options.draw)
        return
    if options.corpus is None:
        raise SystemExit("Training needs --corpus.")
    torch.set_num_threads(options.threads)
    Training(options).run()


if __name__ == "__main__":
    main()
