"""What a diagnosis found: in numbers, in words and as a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..jacobian import Estimate
from . import record
from .verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEGLIGIBLE = 0.01
"""Relative distance below which a state has not moved, or an input has no effect."""
PHRASES = {
    Verdict.CONVERGES: ("converges", "converge"),
    Verdict.CYCLES: ("cycles", "cycle"),
    Verdict.DRIFTS: ("drifts", "drift"),
    Verdict.DIVERGES: ("diverges", "diverge"),
}
"""What one sample does, and what several do."""


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
    """(B,) int64: length of the cycle, or 0 if there is none."""
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
    state does not depend on them. None for a batch of one, and without inputs."""
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
    def is_safe(self) -> bool:
        """Whether every sample converges."""
        return bool((self.verdict == Verdict.CONVERGES).all())

    @property
    def best_depth(self) -> int | None:
        """The smallest number of evaluations at which the mean score is best, or None without a metric."""
        if self.metric is None:
            return None
        sign = 1 if self.higher_is_better else -1
        return int((sign * self.metric.mean(dim=1)).nan_to_num(float("-inf")).argmax())

    @property
    def scores(self) -> dict[int, float]:
        """The mean score at the training depth (1 if none was given), at 2, 4, ... times this depth, and at the end."""
        if self.metric is None:
            return {}
        last, depth = len(self.metric) - 1, self.training_depth or 1
        depths = [depth]
        while depths[-1] * 2 < last:
            depths.append(depths[-1] * 2)
        mean = self.metric.mean(dim=1)
        return {depth: float(mean[depth]) for depth in [*depths, last]}

    def __str__(self) -> str:
        """Say in one paragraph what was found, and what to do about it."""
        parts = [self.fate, self._spectrum(), self._paths(), self._laziness(), self._beyond(), self.advice]
        return " ".join(part for part in parts if part)

    def __repr__(self) -> str:
        """Show the verdicts, not the (large) tensors."""
        return f"Diagnosis({self._counts()}, residual={tuple(self.residual.shape)}, num_evals={self.num_evals})"

    def _having(self, verdict: Verdict) -> Tensor:
        return self.verdict == verdict

    def _counts(self) -> str:
        counts = {verdict: int(self._having(verdict).sum()) for verdict in Verdict}
        return ", ".join(f"{count} {PHRASES[verdict][count > 1]}" for verdict, count in counts.items() if count)

    @property
    def fate(self) -> str:
        """The verdict in words: is it safe to iterate, and how many samples converge, cycle, drift or diverge."""
        num_evals, batch_size = self.residual.shape
        details = []
        converges, cycles = self._having(Verdict.CONVERGES), self._having(Verdict.CYCLES)
        rates = self.rate[converges & self.rate.isfinite()]
        if rates.numel():
            details.append(f"each evaluation changes the steps of those that converge by a factor of {_middle(rates)}")
        if bool(cycles.any()):
            periods = ", ".join(map(str, self.period[cycles].unique().tolist()))
            details.append(f"cycles have period {periods}")
        num_open = int((~self.is_certain).sum())
        if num_open:
            details.append(f"{num_open} of these verdicts extrapolate a trend, which more evaluations would settle")
        at = ""
        if self.training_depth is not None:
            at = f" {_number(self.residual[self.training_depth - 1].median())} at the training depth and"
        safety = "Not safe" if not self.is_safe else "Probably safe" if num_open else "Safe"
        text = (
            f"{safety} to iterate: of {batch_size} {'sample' if batch_size == 1 else 'samples'} {self._counts()}, as "
            f"seen in {num_evals} evaluations{'; ' if details else ''}{'; '.join(details)}. The median relative "
            f"residual is{at} {_number(self.residual[-1].median())} at the end."
        )
        if self.is_random:
            text += (
                " f is random between evaluations, so that it has no fixed point: put dropout in eval mode or pass its "
                "mask as an input."
            )
        return text

    def _spectrum(self) -> str:
        if self.radius is None:
            return self.radius_missing
        is_known = self.radius.error.isfinite() & self.radius.value.isfinite()
        if not bool(is_known.any()):
            return f"The spectral radius at the end states could not be told with {self.radius.num_products} products."
        values, errors = self.radius.value[is_known], self.radius.error[is_known]
        worst = int(values.argmax())
        unknown = int((~is_known).sum())
        return (
            f"The spectral radius of the Jacobian at the end states is {_middle(values)}, at most "
            f"{_number(values[worst])} ± {errors[worst]:.1g}{f' ({unknown} unknown)' if unknown else ''}."
        )

    def _paths(self) -> str:
        share = float(self.is_path_independent.double().mean())
        text = f"From other starts ({' and '.join(self.starts)}) {share:.0%} of the samples end in the same state"
        known = self.cosine[self.cosine.isfinite()]
        return f"{text} (cosine similarity {_middle(known)})." if known.numel() else f"{text}."

    def _laziness(self) -> str:
        num_samples = len(self.verdict)
        # What goes round comes back to its start, or near it, and has not been idle.
        converges, is_small = self._having(Verdict.CONVERGES), self.residual < NEGLIGIBLE
        returns = self.movement < NEGLIGIBLE
        is_still = returns & (converges | is_small.all(dim=0))
        is_quick = (self.movement_after_one < NEGLIGIBLE) & ~is_still & (converges | is_small[1:].all(dim=0))
        is_solved = self.residual[0] < NEGLIGIBLE
        parts = []
        if bool(is_still.any()):
            parts.append(
                f"Iterating does nothing for {is_still.sum()} of {num_samples} samples: they end where they start, and "
                "the loop can be left out."
            )
        if bool((is_solved & ~is_still).any()):
            parts.append(f"The start of {(is_solved & ~is_still).sum()} samples is nearly a fixed point already.")
        if bool(is_quick.any()):
            parts.append(
                f"One evaluation is enough for {is_quick.sum()} of {num_samples} samples: the others change the state "
                "by less than 1%."
            )
        # Samples may well share their result with another one, and all do where a cycle is back at its start.
        is_told = ~returns | is_still
        num_deaf = 0 if self.input_effect is None else int(((self.input_effect < NEGLIGIBLE) & is_told).sum())
        if 2 * num_deaf > num_samples:
            parts.append(
                f"The end states of {num_deaf} of {num_samples} samples do not depend on the inputs: feed them in at "
                "every step."
            )
        return " ".join(parts)

    def _beyond(self) -> str:
        best = self.best_depth
        if self.metric is None or best is None:
            return ""
        mean = self.metric.mean(dim=1)
        after = ", ".join(f"{_number(score)} at {depth}" for depth, score in self.scores.items())
        trained = f" (trained at {self.training_depth})" if self.training_depth else ""
        return (
            f"The {self.metric_name} is best after {best} evaluations, {_number(mean[best])}; it is {after}{trained}."
        )

    @property
    def advice(self) -> str:
        """What to do about it, in words; empty if every sample converges."""
        troubles = [verdict for verdict in Verdict if verdict and bool(self._having(verdict).any())]
        if troubles:
            return " ".join(
                f"Those that {PHRASES[verdict][1]}: {verdict.message[0].lower()}{verdict.message[1:]}"
                for verdict in troubles
            )
        if bool((self.movement < NEGLIGIBLE).all()):
            return ""
        if not bool(self.is_path_independent.all()):
            return (
                "The result depends on the start: always start the same way, iterate longer if the residual is still "
                "large, or train from random starts and with random depths."
            )
        if float(self.rate.nan_to_num(0).max()) > 0.95:
            return (
                "It is slow: add JacobianRegularizer or SpectralRegularizer to the loss, or solve with Anderson() "
                "instead of plain iteration."
            )
        return ""

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


def _number(value: Any) -> str:
    return f"{float(value):.3g}"


def _middle(values: Tensor) -> str:
    """Return the median, and the range where there is one."""
    low, middle, high = (float(value) for value in (values.min(), values.median(), values.max()))
    if f"{low:.3g}" == f"{high:.3g}":
        return _number(middle)
    return f"{_number(middle)} ({_number(low)} to {_number(high)})"
