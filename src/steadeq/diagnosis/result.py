"""What a diagnosis found: in numbers, in words and as a figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from ..jacobian import Estimate
from . import record, words
from .verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class Diagnosis:
    """Result of `diagnose`. All numbers are on the CPU; `str()` explains them.

    Example:
        >>> import torch, steadeq
        >>> diagnosis = steadeq.diagnose(lambda z, x: 0.5 * z + x, torch.zeros(2, 3), torch.eye(3)[:2])
        >>> diagnosis.verdicts
        [<Verdict.CONVERGES: 0>, <Verdict.CONVERGES: 0>]
        >>> diagnosis.rate
        tensor([0.5000, 0.5000])
    """

    residual: Tensor
    """(evaluations, B) relative residual ‖f(z) - z‖ / ‖f(z)‖ of plain iteration; infinite where it is not finite."""
    metric: Tensor | None
    """(evaluations + 1, B) scores of the states, the start first; (evaluations + 1, 1) for a score of the batch."""
    metric_name: str
    """What the metric is called, as given."""
    higher_is_better: bool
    """Whether a larger score is better, as given."""
    verdict: Tensor
    """(B,) int64 holding `Verdict` members."""
    is_certain: Tensor
    """(B,) bool: whether the evaluations decide the verdict; if not, it extrapolates a trend. A verdict is certain if
    steps reached rounding or fell a hundredfold from their peak, if a cycle closes to 0.2% of its size, if a state is
    no longer finite or grew a hundredfold, or if a drift continues with nearly constant steps."""
    rate: Tensor
    """(B,) factor by which ‖f(z) - z‖ changed with each evaluation: over the latter half of the evaluations, or of
    those before rounding took over. NaN where nothing moved."""
    period: Tensor
    """(B,) int64: length of the cycle, and 0 where there is none."""
    is_transient: Tensor
    """(B,) bool: whether steps grew for long before they fall, or will, as under matrices far from normal."""
    is_unstable: Tensor
    """(B,) bool: whether the state seems to rest while growth is too small to be seen: a nudge of 1% moves it away."""
    radius: Estimate | None
    """Spectral radius of the Jacobian at the end state, with its error; None if it could not be computed."""
    radius_missing: str
    """Why the spectral radius is missing; empty if it is not."""
    starts: tuple[str, ...]
    """Names of the other starts that were tried."""
    is_path_independent: Tensor
    """(B,) bool: whether all starts end in the same state (Anil et al., 2022), up to 1% of its size or, if that is
    more, of the size of the given start. Distances below are relative to that too."""
    cosine: Tensor
    """(B,) smallest cosine similarity between the end state from the given start and those from the other starts."""
    movement: Tensor
    """(B,) relative distance of the start and the end state: near 0, iterating does nothing."""
    movement_after_one: Tensor
    """(B,) relative distance of the state after one evaluation and the end state: near 0, one evaluation is enough."""
    input_effect: Tensor | None
    """(B,) relative distance of the end states with the sample's own and with another sample's inputs: near 0, the end
    state does not depend on them. None if all samples have the same inputs."""
    growth: Tensor
    """(B,) size of the largest state, in sizes of the largest up to the training depth (8 if none was given)."""
    skip: Tensor
    """(B,) mean of the Jacobian's diagonal at the training depth: near 1 for a block that adds to its state."""
    recall: Tensor | None
    """(B,) how far another sample's inputs move the image of the state at the training depth: 0 where the block does
    not see them. None if all samples have the same inputs."""
    leak: Tensor | None
    """(B,) how far other inputs of later tokens move the states of earlier ones; None if it was not asked for."""
    gain: Tensor | None
    """(B,) by how much iterating multiplies a small error of each evaluation, ‖(I - J)⁻¹ v‖ / ‖v‖ for random v; None if
    it was not asked for."""
    bits: dict[int, dict[int, float]] | None
    """The mean score with weights rounded to so many bits, at the depths of `scores`; None if it was not asked for."""
    is_random: bool
    """Whether f returns another result each time for the same state."""
    training_depth: int | None
    """Number of evaluations that the block was trained with, as given."""
    num_evals: int
    """Number of evaluations of f that the diagnosis spent, apart from products with the Jacobian."""
    z: Any
    """The end state, for example for `Equilibrium.at(f, diagnosis.z, *inputs)`; None if the diagnosis was read from a
    file."""

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict of each sample."""
        return [Verdict(value) for value in self.verdict.tolist()]

    @property
    def settles(self) -> bool:
        """Whether every sample converges."""
        return bool((self.verdict == Verdict.CONVERGES).all())

    @property
    def effect(self) -> Literal["helps", "keeps", "hurts"] | None:
        """What iterating beyond the training depth (1 if none was given) does to the score; None without a metric.

        It counts from a hundredth of the score on, or from two standard errors if the samples have scores of their own.
        """
        return self.effect_from(self.training_depth or 1)

    def effect_from(self, depth: int) -> Literal["helps", "keeps", "hurts"] | None:
        """Return the effect of iterating beyond a number of evaluations; see `effect`."""
        if self.metric is None:
            return None
        before, after = self.metric[depth], self.metric[-1]
        change = float((after - before).mean())
        if not math.isfinite(change):
            return "hurts"
        least = 0.01 * max(abs(float(before.mean())), abs(float(after.mean())))
        if before.numel() > 1:
            least = max(least, 2 * float((after - before).std()) / math.sqrt(before.numel()))
        if abs(change) <= least:
            return "keeps"
        return "helps" if (change > 0) == self.higher_is_better else "hurts"

    @property
    def confidence(self) -> float | None:
        """How well settling tells right from wrong: the AUC of the residual at the training depth (the end if none).

        That is the probability that a sample which is right there has a smaller residual than one which is wrong. None
        unless the metric is 0 or 1 for each sample, and both occur.
        """
        if self.metric is None or self.metric.shape[1] < 2:
            return None
        depth = self.training_depth or len(self.residual)
        right, residual = self.metric[depth], self.residual[depth - 1]
        if not bool(((right == 0) | (right == 1)).all()) or right.unique().numel() < 2:
            return None
        gap = residual[right == 0][:, None].nan_to_num(math.inf) - residual[right == 1]
        return float(((gap > 0).double() + 0.5 * ((gap == 0) | gap.isnan())).mean())

    @property
    def best_depth(self) -> int | None:
        """The smallest number of evaluations at which the mean score is best, or None without a metric."""
        if self.metric is None:
            return None
        sign = 1 if self.higher_is_better else -1
        return int((sign * self.metric.mean(dim=1)).nan_to_num(float("-inf")).argmax())

    @property
    def scores(self) -> dict[int, float]:
        """The mean score at 1, 2, 4, 16, 64 ... times the training depth (1 if none was given), and at the end."""
        if self.metric is None:
            return {}
        mean = self.metric.mean(dim=1)
        return {depth: float(mean[depth]) for depth in depths_of_interest(self.training_depth, len(mean) - 1)}

    @property
    def advice(self) -> str:
        """What to do, in one sentence that follows from what was measured."""
        return words.advice(self)

    @property
    def summary(self) -> dict[str, str]:
        """What `print` shows: the words of each line, by what it is about."""
        return words.summary(self)

    def __str__(self) -> str:
        """Say in at most twelve lines what was found, and what to do about it."""
        return words.in_lines(self.summary)

    def details(self) -> str:
        """Say all that was found, with the spread over the samples."""
        return words.in_lines(words.details(self))

    def __repr__(self) -> str:
        """Show the verdicts, not the (large) tensors."""
        return f"Diagnosis({words.counts(self)}, residual={tuple(self.residual.shape)}, num_evals={self.num_evals})"

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the end state as numbers, strings, lists and None, ready for JSON.

        None stands for missing values and, within lists, for numbers that are not finite.
        """
        return record.to_dict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Diagnosis:
        """Return the diagnosis that `to_dict` was called on; its end state `z` is None.

        Args:
            content: Result of `to_dict`, possibly read from JSON.

        Raises:
            ValueError: The content is not a diagnosis.
        """
        return record.from_dict(cls, content)

    def plot(self) -> Figure:
        """Return a figure of the residual, and of the metric if there is one, against the number of evaluations.

        Raises:
            RuntimeError: matplotlib is not installed.
        """
        try:
            from .figure import draw
        except ImportError as error:
            raise RuntimeError("plot needs matplotlib: pip install matplotlib.") from error
        return draw(self)


def depths_of_interest(training_depth: int | None, max_evals: int) -> list[int]:
    """Return 1, 2, 4, 16, 64 ... times the training depth (1 if there is none), and the end."""
    depth = training_depth or 1
    depths = {factor * depth for factor in (1, 2, *(4**power for power in range(1, 16)))}
    return sorted({*(depth for depth in depths if depth <= max_evals), max_evals})
