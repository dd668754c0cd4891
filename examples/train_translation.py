"""Train the 2020 paper's translation model from a parallel corpus, with transformers' own Trainer.

    python examples/train_translation.py --corpus train.tsv.xz --out models/de-en
    python examples/train_translation.py --corpus train.tsv.xz --swap --out models/en-de

The corpus has one pair per line, source and target split by a tab (plain, .gz or .xz). The folder that comes out is a
Marian model with its tokenizer, as `from_pretrained` and `normlens align` read it. The defaults are those of Table 5 of
the paper (v1): 6 + 6 layers, 512 wide, 8 heads, label smoothing 0.1, Adam 5e-4 (0.9, 0.98), weight decay 1e-4, inverse
square root after 4,000 warm-up updates that already run at the full rate, no clipping, 2^15 target tokens per update,
40 epochs. The paper does not give the width of the feed-forward blocks or the dropout: 2048 and 0.1 are the original
Transformer's. Each flag scales one of them down. A second call with the same `--out` goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import sentencepiece
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import MarianConfig, MarianMTModel, MarianTokenizer, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"
OPENERS = {".gz": gzip.open, ".xz": lzma.open}


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


def build_tokenizer(pairs: list[tuple[str, str]], folder: Path, pieces: int) -> MarianTokenizer:
    """Train one BPE model per side and number the union of their pieces, as the released Marian models do."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {END: 0, UNKNOWN: 1}
    for side, name in enumerate(("source", "target")):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(pair[side] for pair in pairs),
            model_prefix=str(folder / name),
            model_type="bpe",
            vocab_size=pieces,
            character_coverage=1.0,
            bos_id=-1,
            minloglevel=2,
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        (folder / f"{name}.vocab").unlink()
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        for index in range(processor.get_piece_size()):
            vocabulary.setdefault(processor.id_to_piece(index), len(vocabulary))
    vocabulary[PAD] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    return MarianTokenizer(str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"))


class TokenBatches(Dataset[dict[str, torch.Tensor]]):
    """Batches of similar length that hold at most `budget` padded target tokens: one item is one batch."""

    def __init__(self, examples: list[tuple[list[int], list[int]]], budget: int, pad: int, seed: int) -> None:
        self.examples, self.pad = examples, pad
        shuffled = random.Random(seed).sample(range(len(examples)), len(examples))
        # Sorting a shuffled list keeps equal lengths in random order, so a batch is not a run of the corpus.
        order = sorted(shuffled, key=lambda i: (len(examples[i][1]), len(examples[i][0])))
        self.batches: list[list[int]] = []
        batch: list[int] = []
        for index in order:
            if batch and (len(batch) + 1) * len(examples[index][1]) > budget:
                self.batches.append(batch)
                batch = []
            batch.append(index)
        self.batches.append(batch)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        pairs = [self.examples[i] for i in self.batches[index]]
        sources, targets = zip(*pairs, strict=True)
        width = max(map(len, sources)), max(map(len, targets))
        return {
            "input_ids": torch.tensor([s + [self.pad] * (width[0] - len(s)) for s in sources]),
            "attention_mask": torch.tensor([[1] * len(s) + [0] * (width[0] - len(s)) for s in sources]),
            # The Trainer takes the labels away for its label smoothing, so the decoder's input is given as well.
            "decoder_input_ids": torch.tensor(
                [[self.pad, *t[:-1]] + [self.pad] * (width[1] - len(t)) for t in targets]
            ),
            "labels": torch.tensor([t + [-100] * (width[1] - len(t)) for t in targets]),
        }


def first_item(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """An item of `TokenBatches` is a whole batch already."""
    return items[0]


class InverseSquareRootTrainer(Trainer):
    """The Trainer with fairseq's schedule: the warm-up may begin at the full rate, which its own one cannot."""

    warmup_start = 1.0

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        warmup = max(1, self.args.warmup_steps)

        def factor(step: int) -> float:
            if step < warmup:
                return self.warmup_start + (1 - self.warmup_start) * step / warmup
            return float((warmup / step) ** 0.5)

        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
        return self.lr_scheduler


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--swap", action="store_true", help="translate from the second column to the first")
    parser.add_argument("--limit", type=int, help="use only the first pairs")
    parser.add_argument("--pieces", type=int, default=10_000, help="BPE pieces per side")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--feed-forward", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--warmup", type=int, default=4000)
    parser.add_argument("--warmup-start", type=float, default=1.0, help="share of the rate at which warm-up begins")
    parser.add_argument("--tokens", type=int, default=2**15, help="target tokens per batch")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per update")
    parser.add_argument("--epochs", type=float, default=40)
    parser.add_argument("--steps", type=int, default=-1, help="stop after so many updates (overrides --epochs)")
    parser.add_argument("--save-every", type=int, default=1000)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="CPU threads")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    pairs = list(read_pairs(options.corpus, options.limit, options.swap))
    finished = all((options.out / name).exists() for name in ("source.spm", "target.spm", "vocab.json"))
    tokenizer = (
        MarianTokenizer.from_pretrained(options.out)
        if finished
        else build_tokenizer(pairs, options.out, options.pieces)
    )
    tokenizer.save_pretrained(options.out)
    sources = tokenizer([source for source, _ in pairs])["input_ids"]
    targets = tokenizer(text_target=[target for _, target in pairs])["input_ids"]
    batches = TokenBatches(
        list(zip(sources, targets, strict=True)), options.tokens, tokenizer.pad_token_id, options.seed
    )
    torch.manual_seed(options.seed)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=len(tokenizer.encoder),
            decoder_vocab_size=len(tokenizer.encoder),
            d_model=options.width,
            encoder_layers=options.layers,
            decoder_layers=options.layers,
            encoder_attention_heads=options.heads,
            decoder_attention_heads=options.heads,
            encoder_ffn_dim=options.feed_forward,
            decoder_ffn_dim=options.feed_forward,
            activation_function="relu",
            dropout=options.dropout,
            scale_embedding=True,
            max_position_embeddings=512,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            forced_eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,
        )
    )
    settings: dict[str, Any] = {"num_train_epochs": options.epochs, "max_steps": options.steps}
    trainer = InverseSquareRootTrainer(
        model=model,
        train_dataset=batches,
        data_collator=first_item,
        args=TrainingArguments(
            output_dir=str(options.out / "checkpoints"),
            per_device_train_batch_size=1,
            gradient_accumulation_steps=options.accumulate,
            learning_rate=options.rate,
            warmup_steps=options.warmup,
            adam_beta1=0.9,
            adam_beta2=0.98,
            weight_decay=1e-4,
            max_grad_norm=0.0,
            label_smoothing_factor=0.1,
            logging_steps=options.log_every,
            save_steps=options.save_every,
            save_total_limit=2,
            remove_unused_columns=False,
            report_to="none",
            seed=options.seed,
            **settings,
        ),
    )
    trainer.warmup_start = options.warmup_start
    checkpoints = options.out / "checkpoints"
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    trainer.save_model(str(options.out))
    history = [{"step": row["step"], "loss": row["loss"]} for row in trainer.state.log_history if "loss" in row]
    (options.out / "loss.json").write_text(json.dumps(history))
    if history:
        print(
            f"loss: {history[0]['loss']:.3f} after {history[0]['step']} updates, {history[-1]['loss']:.3f} at the end"
        )


if __name__ == "__main__":
    main()
