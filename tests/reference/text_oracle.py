"""What a response's text says, from the definitions in words: characters and plain loops, nothing of ours imported."""

import unicodedata


def boxes(text):
    """Contents of every \\boxed{...}, None where it is never closed; braces counted character by character."""
    found = []
    for start in range(len(text)):
        if not text.startswith("\\boxed", start):
            continue
        at = start + len("\\boxed")
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text) or text[at] != "{":
            continue
        depth, end = 1, at + 1
        while end < len(text) and depth:
            if text[end - 1] != "\\":
                depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        found.append(text[at + 1 : end - 1] if depth == 0 else None)
    return found


def has_cjk(text):
    """By the names Unicode gives, not by ranges."""
    kinds = ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "KATAKANA", "HANGUL",
             "HENTAIGANA", "HALFWIDTH KATAKANA LETTER", "HALFWIDTH HANGUL LETTER")  # fmt: skip
    return any(unicodedata.name(c, "").startswith(kinds) for c in text)


def is_repetitive(words):
    """Whether of 64 words in a row (or all, if fewer) 32 end a run of four that has come twice before."""
    again = []
    for end in range(4, len(words) + 1):
        run = words[end - 4 : end]
        before = sum(words[i - 4 : i] == run for i in range(4, end))
        again.append(before >= 2)
    return any(sum(again[i : i + 64]) >= 32 for i in range(max(1, len(again) - 63)))


def rates(responses):
    """Of dicts with ``text`` and ``words`` (the text's, split), ``prompt_text``; and categories of tokens."""
    count = len(responses)
    return {
        "format_violation_rate": sum(len(b := boxes(r["text"])) != 1 or not b[0] for r in responses) / count,
        "language_mixing_rate": sum(has_cjk(r["text"]) and not has_cjk(r["prompt_text"]) for r in responses) / count,
        "repetition_rate": sum(is_repetitive(r["words"]) for r in responses) / count,
    }


def by_category(responses, kind_of, names):
    """Share and mean entropy of each category, from each response's ``pieces`` and ``entropy``."""
    tokens = [(kind_of(p), h) for r in responses for p, h in zip(r["pieces"], r["entropy"])]
    found = {}
    for name in names:
        entropy = [h for kind, h in tokens if kind == name]
        found[f"share_{name}"] = len(entropy) / len(tokens)
        found[f"entropy_{name}"] = sum(entropy) / len(entropy) if entropy else None
    return found
