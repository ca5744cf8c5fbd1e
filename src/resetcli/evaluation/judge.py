"""The one place where an output of a task gets its score: `reset eval` and `reset score` both come here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from resetcli.evaluation.code.grade import score_code
from resetcli.evaluation.code.permission import require_permission
from resetcli.evaluation.scoring.extraction import ThoughtMarkers
from resetcli.evaluation.scoring.score import Score, score_output
from resetcli.evaluation.tasks import TaskSpec


class Judge:
    """Scores outputs of ``specs``. ``markers``: what opens and closes a thought.

    Raises:
        UsageError: scoring a task runs programs, and ``allow_code`` does not say that it may.
    """

    def __init__(self, specs: Iterable[TaskSpec], markers: tuple[str, str], *, allow_code: bool = False):
        specs = list(specs)
        require_permission(specs, allow_code)
        self.kinds = {spec.name: spec.kind for spec in specs}
        self.markers = ThoughtMarkers(*markers)

    def score(
        self, task: str, doc: Mapping[str, Any], text: str, finish_reason: str | None, *, opened_in_prompt: bool
    ) -> Score:
        """The score of one output.

        Args:
            task: a name among ``specs``.
            doc: the document: "target", "alt_answers" where there are any, and "place" of the tests of a program.
            text, finish_reason, opened_in_prompt: see `scoring.score.score_output`.

        Raises:
            ResetError: the comparison failed.
        """
        if self.kinds[task] == "code":
            return score_code(doc, text, finish_reason, markers=self.markers, opened_in_prompt=opened_in_prompt)
        return score_output(
            self.kinds[task], text, doc["target"], finish_reason, alt_answers=doc.get("alt_answers") or (),
            markers=self.markers, opened_in_prompt=opened_in_prompt,
        )  # fmt: skip
