"""The training loop."""

from __future__ import annotations

import copy
import math
import random
import time
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Diverged, InputError, Interrupted, RunError
from ..models import AbstractEquilibriumModel, AbstractExplicitModel, Segment
from ..regularizer import JacobianRegularizer
from ..solution import ConvergenceWarning
from .batches import open_batches
from .checkpoint import Checkpoint
from .config import TrainConfig
from .display import AbstractDisplay, SilentDisplay
from .distributed import Process
from .evaluation import Evaluator
from .interruption import Interruption
from .loading import build_model, load_weights
from .memories import Memories
from .metrics import MetricsLog, Window, peak_memory
from .objective import MAY_LACK, PACKED, Objective, Outcome, Plan
from .optimizer import build_optimizer, learning_rate
from .profile import NoProfile, Profile
from .run import Run
from .seeds import derive_seed

_ADVICE = (
    "Try a lower optimizer.learning_rate, a larger jacobian.weight or jacobian.probability, a larger "
    "forward.max_evals, optimizer.max_grad_norm, or some warmup.num_steps."
)


class Trainer:
    """Trains one model in one run's folder, alone or as one of several processes.

    Whatever is random or scheduled is a function of the config and the step, so that a run that was killed and resumed
    ends with the same weights as one that never stopped.

    Args:
        config: All about the run.
        run: Its folder.
        process: This process.
        display: Where progress is shown.
        is_profiled: Whether to time the parts of a step.
    """

    def __init__(
        self,
        config: TrainConfig,
        run: Run,
        *,
        process: Process = Process(),  # noqa: B008 (frozen)
        display: AbstractDisplay | None = None,
        is_profiled: bool = False,
    ) -> None:
        self.config, self.run, self.process = config, run, process
        self.display = display if display is not None and process.is_main else SilentDisplay()
        loop, device = config.loop, process.device
        self.splits = config.data.load()
        self.parts = range(process.rank * loop.accumulate, (process.rank + 1) * loop.accumulate)
        self.batches = open_batches(
            self.splits.train,
            batch_size=loop.batch_size,
            num_parts=loop.accumulate * process.world_size,
            parts=self.parts,
            seed=loop.seed,
        )
        self.memories = Memories(process, num_parts=loop.accumulate)
        self.num_steps = loop.num_steps or loop.num_epochs * self.batches.steps_per_epoch
        self.eval_every = config.log.eval_every or self.batches.steps_per_epoch
        self.checkpoint_every = config.log.checkpoint_every or self.batches.steps_per_epoch
        precision = torch.bfloat16 if loop.precision == "bfloat16" else None

        self.model = build_model(config).to(device)
        self._rehearse()
        self.average = copy.deepcopy(self.model) if loop.ema_decay else None
        self.task = config.data.task
        self.objective = process.wrap(Objective(self.model, self.task, precision=precision))
        self.optimizer = build_optimizer(config.optimizer, self.model.parameters())
        self.regularizer = config.jacobian.build(self.num_steps, self.batches.steps_per_epoch, loop.seed)
        self.warmup_regularizer = JacobianRegularizer(
            config.warmup.jacobian_weight,
            probability=config.jacobian.probability,
            num_probes=config.jacobian.num_probes,
            probe=config.jacobian.probe,
            seed=loop.seed,
        )
        self.adjoint = config.backward.build()
        self.interruption = Interruption()
        self.evaluator = Evaluator(
            task=self.task,
            process=process,
            batch_size=config.log.eval_batch_size,
            precision=precision,
            interruption=self.interruption,
        )
        self.profile = Profile(self.model, device) if is_profiled else NoProfile()

        self.step = 0
        """Steps completed."""
        self.window = Window()
        self.num_bad_in_row = self.num_bad = 0
        self.evaluated_at = self._saved_at = -1
        self.evaluation: dict[str, float] = {}
        self._checkpoints = run.checkpoints(keep=config.log.keep_checkpoints)
        self._log: MetricsLog | None = None

    @torch.no_grad()
    def _rehearse(self) -> None:
        """Send some samples through all parts of the network, so that what does not fit shows before the run begins.

        Raises:
            InputError: The network and the data do not go together.
        """
        self.model.eval()
        try:
            indices = torch.arange(min(32, self.config.loop.batch_size, len(self.splits.train)))
            x, y = (tensor.to(self.process.device) for tensor in self.splits.train.batch(indices))
            if isinstance(self.model, AbstractExplicitModel):
                output = self.model.output(x)
            else:
                z, inputs = self.model.inject(x)
                output = self.model.answer(x, self.model.layer.cell(z, *inputs), inputs)
            self.config.data.task.check(output, y)
            self.config.data.task.losses(output, y)
        except (InputError, RunError):
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(f"The model does not fit the data: {str(error).splitlines()[0]}") from error
        finally:
            self.model.train()

    def resume(self) -> bool:
        """Continue from the latest checkpoint; return whether there was one.

        Raises:
            InputError: It belongs to another model.
            DamagedCheckpointError: All checkpoints are damaged.
        """
        checkpoint = self._checkpoints.load_latest()
        if checkpoint is None:
            return False
        try:
            self._restore(checkpoint)
        except KeyError as error:
            raise InputError(
                f"The checkpoints in {self.run.path} were made by another version: they lack {error}."
            ) from error
        return True

    def _restore(self, checkpoint: Checkpoint) -> None:
        load_weights(self.model, checkpoint.weights)
        state = checkpoint.state
        if (self.average is None) != (checkpoint.average is None) or state["method"] != self.config.optimizer.method:
            raise InputError(f"The checkpoints in {self.run.path} were made with another optimizer or moving average.")
        if self.average is not None and checkpoint.average is not None:
            load_weights(self.average, checkpoint.average)
        self.optimizer.load_state_dict(state["optimizer"])
        self.regularizer.load_state_dict(state["regularizer"])
        self.window = Window(**state["window"])
        self.step, self.evaluated_at = state["step"], state["evaluated_at"]
        self.num_bad, self.num_bad_in_row = state["num_bad"], state["num_bad_in_row"]
        self.evaluation = state["evaluation"]
        self.memories.load_state_dict(state["memories"])
        self._saved_at = self.step

    def train(self) -> dict[str, float]:
        """Train to the last step and return the last evaluation.

        Raises:
            Interrupted: It was asked to stop, and a checkpoint is saved.
            RunError: It cannot go on: too many bad steps, or a full disk.
        """
        try:
            self._open_log()
            with self.interruption, self.display, self.profile.steps(), warnings.catch_warnings():
                # The residual of every solve is recorded, forward and backward.
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.display.begin(self.run.path.name, self.num_steps, self.step)
                self._run()
        except Interrupted:
            self._save()
            raise Interrupted(
                f"Stopped at step {self.step} of {self.num_steps}; the state is saved in {self.run.path}."
            ) from None
        finally:
            self.batches.close()
            if self._log is not None:
                self._log.close()
        return self.evaluation

    def _run(self) -> None:
        while True:
            # An evaluation that an interruption prevented or cut short is made up for when the run goes on.
            is_new = self._evaluate_if_due() or self._saved_at != self.step
            is_due = self.step % self.checkpoint_every == 0 or self.is_finished
            if self.step > 0 and is_due and is_new:
                self._save()
            if self.is_finished:
                return
            if self._advance():
                raise Interrupted

    @property
    def is_finished(self) -> bool:
        """Whether all steps are made and the last one is evaluated."""
        return self.step == self.num_steps and self.evaluated_at == self.step

    def _open_log(self) -> None:
        if not self.process.is_main:
            return
        folder = self.run.path / "tensorboard" if self.config.log.tensorboard else None
        try:
            MetricsLog.rewind(self.run.metrics_path, step=self.step, evaluated_at=self.evaluated_at)
            self._log = MetricsLog(self.run.metrics_path, tensorboard=folder, step=self.step)
            self.run.record_environment(device=str(self.process.device), world_size=self.process.world_size)
        except OSError as error:
            raise RunError(
                f"The run's folder {self.run.path} cannot be written ({error.strerror}); its checkpoints are intact."
            ) from error

    # One step

    def _advance(self) -> bool:
        """Make one step; return whether some process was asked to stop."""
        start, cpu_start = time.perf_counter(), time.process_time()
        step, config = self.step, self.config
        plan = self._plan(step)
        rate = learning_rate(config.optimizer, step, self.num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # A bad batch must not stay in running means either.
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        if step % self.batches.steps_per_epoch == 0:
            self.memories.clear()
        values, must_stop = self._accumulate(plan)
        with self.profile.section("optimizer"):
            values["grad_norm"] = self._gradient_norm()
            is_good = math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"]) and not values["non_finite"]
            if is_good:
                self.optimizer.step()
                self._update_average()
                self.memories.keep()
            else:
                for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                    buffer.copy_(before)
            self.optimizer.zero_grad(set_to_none=True)
        values |= {"jacobian_weight": plan.regularizer.gamma(step), "learning_rate": rate}
        if plan.regularizer is self.regularizer and "forward_residual" in values:
            self.regularizer.observe(residual=values["forward_residual"])
        self.step += 1
        with self.profile.section("logging"):
            # What else runs on the machine shows in the first, and not in the second.
            times = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start}
            self._record(values, is_good, times)
        return must_stop

    def _plan(self, step: int) -> Plan:
        config = self.config
        is_warmup = step < config.warmup.num_steps
        regularizer = self.warmup_regularizer if is_warmup else self.regularizer
        budget = config.forward.max_evals
        if config.forward.jitter_when == "always" or regularizer.is_applied(step):
            budget += random.Random(derive_seed(config.loop.seed, "budget", step)).randint(*config.forward.jitter)
        return Plan(
            step=step,
            solver=config.forward.build(budget),
            adjoint=self.adjoint,
            regularizer=regularizer,
            unroll=config.warmup.depth if is_warmup else None,
        )

    def _accumulate(self, plan: Plan) -> tuple[dict[str, float], bool]:
        """Add up the gradients of the parts of a batch; return means over all parts of all processes."""
        num_parts = self.config.loop.accumulate
        total: Tensor | None = None
        for index, part in enumerate(self.parts):
            seed = self.config.loop.seed
            with self.profile.section("data"):
                x, y = (tensor.to(self.process.device) for tensor in self.batches.get(plan.step, part))
            if self.batches.is_contiguous:
                x = Segment(x, self.memories.recall(index))
            torch.manual_seed(derive_seed(seed, "step", plan.step, part))
            is_last = index == num_parts - 1
            with nullcontext() if is_last or self.process.world_size == 1 else self.objective.no_sync():  # pyright: ignore
                with self.profile.section("model"):
                    outcome: Outcome = self.objective(x, y, plan)
                with self.profile.section("backward"):
                    (outcome.loss / num_parts).backward()
            self.memories.propose(index, outcome.memory)
            measured = outcome.pack(must_stop=self.interruption.requested)
            total = measured if total is None else total + measured
        assert total is not None
        values = dict(zip(PACKED, (self.process.mean(total) / num_parts).tolist(), strict=True))
        must_stop = values.pop("stop") > 0
        # Without a solve, as in the unrolled phase or in an explicit network, there is no residual; without a penalty
        # there is no norm.
        named = {name: value for name, value in values.items() if name not in MAY_LACK or not math.isnan(value)}
        named[self.task.metric] = self.task.summarize(named.pop("score"))
        return named, must_stop

    def _gradient_norm(self) -> float:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        limit = self.config.optimizer.max_grad_norm
        if limit is not None:
            nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return float(norm)

    @torch.no_grad()
    def _update_average(self) -> None:
        if self.average is not None:
            pairs = zip(self.average.parameters(), self.model.parameters(), strict=True)
            for average, current in pairs:
                average.lerp_(current, 1 - self.config.loop.ema_decay)
            for average, current in zip(self.average.buffers(), self.model.buffers(), strict=True):
                average.copy_(current)

    # What is recorded

    def _record(self, values: dict[str, float], is_good: bool, times: dict[str, float]) -> None:
        if is_good:
            self.num_bad_in_row = 0
            self.window.add({**values, **times})
        else:
            self.num_bad_in_row += 1
            self.num_bad += 1
            what = (
                "a state"
                if values["non_finite"]
                else "the loss"
                if not math.isfinite(values["loss"])
                else "the gradient"
            )
            self._write("skipped", {"reason": f"{what} is not finite", "in_row": self.num_bad_in_row})
            self.display.say(f"Step {self.step} is skipped: {what} is not finite ({self.num_bad_in_row} in a row).")
        if self.num_bad_in_row >= self.config.loop.max_bad_steps:
            self._write("diverged", {"in_row": self.num_bad_in_row})
            raise Diverged(
                f"The run stopped at step {self.step}: {self.num_bad_in_row} steps in a row were not finite. {_ADVICE}"
            )
        if self.step % self.config.log.every == 0 or self.step == self.num_steps:
            means = self.window.take()
            if means:
                self._write(
                    "train",
                    {
                        "epoch": self.step / self.batches.steps_per_epoch,
                        **means,
                        "memory_mb": peak_memory(self.process.device),
                        "num_skipped": self.num_bad,
                    },
                )
        self.display.advance(self.run.path.name, self.step, values)

    def _evaluate_if_due(self) -> bool:
        """Evaluate if it is time to; return whether it was."""
        is_due = self.step == self.num_steps or (self.step > 0 and self.step % self.eval_every == 0)
        if not is_due or self.evaluated_at == self.step:
            return False
        with self.profile.section("evaluation"):
            config, model = self.config, self.model if self.average is None else self.average
            self.process.share_buffers(model)
            solver = config.forward.build(config.forward.evaluation_budget)
            start = time.perf_counter()
            values = self.evaluator.measure(model, self.splits.validation, solver)
            if config.log.spectrum_samples and isinstance(model, AbstractEquilibriumModel):
                values |= self.evaluator.measure_spectrum(
                    model,
                    self.splits.validation,
                    solver,
                    num_samples=config.log.spectrum_samples,
                    max_products=config.log.spectrum_products,
                    seed=derive_seed(config.loop.seed, "spectrum", self.step),
                )
            values |= {"epoch": self.step / self.batches.steps_per_epoch, "seconds": time.perf_counter() - start}
        self.evaluated_at, self.evaluation = self.step, values
        self._write("evaluation", values)
        return True

    def _write(self, event: str, values: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.write(event, self.step, values)

    # What is saved

    def _save(self) -> None:
        with self.profile.section("logging"):
            self.process.share_buffers(self.model)
            memories = self.memories.state_dict()
            self._saved_at = self.step
            if self._log is None:
                return
            self._log.sync()
            self._checkpoints.save(
                Checkpoint(
                    weights=self.model.state_dict(),
                    average=None if self.average is None else self.average.state_dict(),
                    state={
                        "step": self.step,
                        "method": self.config.optimizer.method,
                        "optimizer": self.optimizer.state_dict(),
                        "regularizer": self.regularizer.state_dict(),
                        "window": self.window.state_dict(),
                        "memories": memories,
                        "evaluated_at": self.evaluated_at,
                        "evaluation": self.evaluation,
                        "num_bad": self.num_bad,
                        "num_bad_in_row": self.num_bad_in_row,
                    },
                )
            )
