"""Reads a step's responses: the text family's one pass over token ids."""

import numpy as np

from entrostat.probe.step import Bools, Ints, Reading, StepData
from entrostat.probe.text.categories import Categories
from entrostat.probe.text.decode import Texts
from entrostat.probe.text.quality import AnswerFinder, answer_hash, has_cjk, is_repetitive, is_violation


class Reader:
    """Makes the ``Reading`` of steps, one after the other, on one thread.

    A response's text is that of the tokens that are trained on: without what a tool put in, and without tokens whose
    statistics were not finite.

    Args:
        texts: of the run's tokenizer.
        answers: what counts as an answer.
        keep_text: keep each token's text for its row.
    """

    def __init__(self, texts: Texts, answers: AnswerFinder | None = None, keep_text: bool = False) -> None:
        self._texts, self._answers = texts, answers or AnswerFinder()
        self._categories = Categories(texts)
        self._keep_text = keep_text

    def read(self, step: StepData) -> Reading:
        """What the step's responses say."""
        ends = np.cumsum(step.length)
        ids = [step.token_id[end - n : end] for n, end in zip(step.length, ends, strict=True)]
        texts = [self._texts.response(i.tolist()) for i in ids]
        answers = [self._answers.answers(text) for text in texts]
        kept_ids = step.token_id[step.kept.token]
        return Reading(
            format_violation=np.array([is_violation(found) for found in answers], bool),
            language_mixing=None if step.prompt_ids is None else self._mixing(texts, step.prompt_ids),
            repetition=np.array([is_repetitive(text) for text in texts], bool),
            answer=[answer_hash(found) for found in answers],
            category=self._categories.of(step.token_id),
            kept_text=[self._texts.token(i) for i in kept_ids.tolist()] if self._keep_text else None,
        )

    def _mixing(self, texts: list[str], prompts: np.ndarray) -> Bools:
        # Responses to the same prompt come with its tokens each; those without a CJK letter need no look at them.
        known: dict[bytes, bool] = {}
        return np.array(
            [has_cjk(text) and not self._prompt_has_cjk(ids, known) for text, ids in zip(texts, prompts, strict=True)],
            bool,
        )

    def _prompt_has_cjk(self, ids: Ints, known: dict[bytes, bool]) -> bool:
        key = ids.tobytes()
        if key not in known:
            known[key] = has_cjk(self._texts.response(ids[ids >= 0].tolist()))
        return known[key]
