"""Tokenizers made on the spot, and a vocabulary for the random steps."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PROSE = [
    "So we wait, but then we check that 3 + 4 = 7. Therefore the answer is \\boxed{7}.",
    "Because the sum of x and y is 12, however, alternatively we verify it: \\frac{1}{2} times 24.",
    "你好世界，所以答案是七。 Größe, naïve café; 한국어 텍스트 かな",
    "Wait, perhaps that is wrong. Let me check again. And so on, and also on, and so it goes.",
]

PIECES = [" 1", " +", " but", " Wait", " jump", " \\boxed{2}", " 你", " x", "so", " check", "\n"]
"""Text of the token ids of ``steps.random_step``."""


def spell(ids):
    """A tokenizer that is a function."""
    return "".join(PIECES[i] for i in ids)


def byte_level():
    """Byte-level BPE, as GPT-2's and Qwen's: pieces of words, characters split over tokens."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|end|>"],
    )  # fmt: skip
    tok.train_from_iterator(PROSE, trainer)
    return tok


def byte_fallback():
    """BPE with '▁' for spaces and bytes for what is not in the vocabulary, as Llama 2's and Gemma's."""
    letters = sorted({c for text in PROSE[:2] for c in text.replace(" ", "▁")})
    tokens = ["<unk>", "<|end|>", *(f"<0x{b:02X}>" for b in range(256)), *letters]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tok.add_special_tokens(["<|end|>"])
    return tok


def word_pieces():
    """WordPiece, as BERT's: '##' before what continues a word."""
    tokens = ["[UNK]", "so", "al", "##so", "wait", ",", "3"]
    tok = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(cleanup=False)
    return tok


def of_transformers(tok):
    """As transformers hands it out."""
    return PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|end|>", pad_token="<|end|>")
