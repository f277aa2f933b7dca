"""The training loop."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ... import __version__
from ...equilibrium import ConvergenceWarning, Equilibrium
from ...jacobian import AbstractRegularizer, Constant
from ...nn import keep_freed_memory
from ..config import TrainConfig
from ..data import Splits, check_all_targets, open_reader, read_samples
from ..divergence import NUM_STEPS, is_off_track, trivial_loss_of
from ..errors import Diverged, InputError, Interrupted, RunError
from ..files import check_plain
from ..run.checkpoint import Checkpoint, Like
from ..run.folder import RunFolder
from ..run.identity import Identity
from ..run.loading import build_model, load_model, load_weights
from ..run.shards import Processes, is_sharded
from ..seeds import derive_seed
from ..signals import Interruption
from .adapter import CarryStore, ModelAdapter
from .display import Display, LastingDisplay
from .distributed import Process
from .evaluation import Evaluator
from .metrics import MetricsLog, Window, forget_peak_memory, peak_memory
from .profile import Profile
from .saved_state import check_evaluation, check_optimizer, check_window
from .step import StepResult, StepSettings, TrainStep, unpack
from .trackers import open_trackers

ADVICE = (
    "Try a lower optimizer.learning_rate, a larger regularizer.weight or regularizer.probability, a larger "
    "solver.max_evals, optimizer.max_grad_norm, or some warmup.num_steps."
)

log = logging.getLogger(__name__)

_SAVED = ("step", "evaluated_at", "evaluation", "num_bad", "num_bad_in_row", "num_off_track")
"""The attributes of a trainer that a checkpoint holds as they are."""


class Trainer:
    """Trains one model in one run's folder, alone or as one of several processes.

    Whatever is random or scheduled is a function of the config and the step, so that a run that was killed and resumed
    ends with the same weights as one that never stopped.

    Args:
        config: What is trained, on what, and how.
        folder: Folder of the run, which gets its logs and checkpoints.
        process: Which of several processes this is; alone on a CPU by default.
        display: Shows progress; None shows nothing.
        is_profiled: Whether a profile of some steps is written to the folder.
        recipe: File of your own recipe, `path/to/file.py:function`, if weights to begin with are of its classes.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        *,
        process: Process = Process(),  # noqa: B008 (frozen)
        display: Display | None = None,
        is_profiled: bool = False,
        recipe: str | None = None,
    ) -> None:
        # As solves do: explicit networks are compared with them.
        keep_freed_memory()
        self.config, self.folder, self.process, self.task = config, folder, process, config.data.task
        # By which its progress is shown, wherever it is moved to.
        self._title = folder.path.name
        self.interruption = Interruption()
        shown = display if display is not None and process.is_main else Display()
        self.display = LastingDisplay(shown, self.interruption.request)
        self.splits, self.identity = _load_data(config, process)
        self._open_reader()
        self.model = _build_network(config, folder, process, recipe)
        self._sanity_check()
        self._prepare_steps(is_profiled=is_profiled)

        self.step = 0
        """Steps completed."""
        self.window = Window()
        self.num_bad_in_row = self.num_bad = 0
        self.num_off_track = 0
        """Steps in a row that solved or learned nothing."""
        self._trivial_loss = trivial_loss_of(self.splits) if config.loop.stop_diverged else math.inf
        self.evaluated_at = self._saved_at = -1
        self._is_lengthened = False
        self.evaluation: dict[str, float] = {}
        self._log: MetricsLog | None = None

    def _open_reader(self) -> None:
        """Begin to read batches, which tells how many steps there are."""
        config, loop, process = self.config, self.config.loop, self.process
        num_classes = _num_classes(config)
        if num_classes is not None:
            for dataset in (self.splits.validation, self.splits.test):
                check_all_targets(dataset, num_classes)
        self.parts = range(process.rank * loop.accumulate, (process.rank + 1) * loop.accumulate)
        self.reader = open_reader(
            self.splits.train,
            batch_size=loop.batch_size,
            num_parts=loop.accumulate * process.world_size,
            parts=self.parts,
            seed=loop.seed,
            num_classes=num_classes,
        )
        self.carry = CarryStore(process, num_parts=loop.accumulate)
        self.num_steps = loop.num_steps or loop.num_epochs * self.reader.steps_per_epoch
        self.eval_every = config.log.eval_every or self.reader.steps_per_epoch
        self.checkpoint_every = config.log.checkpoint_every or self.reader.steps_per_epoch

    def _prepare_steps(self, *, is_profiled: bool) -> None:
        """Make what a step of training and an evaluation need besides the network and the data."""
        config, loop, process = self.config, self.config.loop, self.process
        precision = torch.bfloat16 if loop.precision == "bfloat16" else None
        self.average = copy.deepcopy(self.model) if loop.ema_decay else None
        self.profile = Profile(self.model, process.device, is_on=is_profiled)
        self.train_step = process.wrap(TrainStep(self.model, self.task, precision=precision, profile=self.profile))
        self._evaluated = self.train_step if self.average is None else process.shard(self.average)
        """What holds the parameters of the network that evaluations use."""
        self.optimizer = config.optimizer.build(self.model.parameters())
        process.prepare(self.optimizer)
        self.regularizer = config.regularizer.for_run(
            num_steps=self.num_steps, steps_per_epoch=self.reader.steps_per_epoch, seed=loop.seed
        )
        self.warmup_regularizer = dataclasses.replace(
            self.regularizer, weight=config.warmup.regularizer_weight, schedule=Constant()
        )
        self.adjoint = self.profile.adjoint(config.adjoint)
        self.evaluator = Evaluator(
            task=self.task,
            process=process,
            batch_size=config.log.eval_batch_size,
            precision=precision,
            interruption=self.interruption,
        )

    @torch.no_grad()
    def _sanity_check(self) -> None:
        """Send some samples through all parts of the network, so that what does not fit shows before the run begins."""
        config = self.config
        self.model.eval()
        try:
            indices = torch.arange(min(32, config.loop.batch_size, len(self.splits.train)))
            x, y = (tensor.to(self.process.device) for tensor in read_samples(self.splits.train, indices))
            answer = ModelAdapter(self.model)(x, depth=1)
            self.task.check(answer.output, y)
            self.task.losses(answer.output, y)
            if answer.equilibrium is not None and (config.regularizer.is_active or config.warmup.regularizer_weight):
                _check_penalty(config.regularizer, answer.equilibrium)
        except (InputError, RunError):
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            if "memory" in str(error):
                raise
            raise InputError(f"The model does not fit the data: {str(error).splitlines()[0]}") from error
        finally:
            self.model.train()

    def resume(self, *, shorter: TrainConfig | None = None) -> bool:
        """Continue from the latest checkpoint; return whether there was one.

        Args:
            shorter: The config of the run so far, if it differs from this trainer's only in the length of the run.
        """
        checkpoint = self.folder.checkpoints().load_latest(like=self._placement())
        if checkpoint is None:
            return False
        try:
            self._restore(checkpoint, self.config if shorter is None else shorter)
        except KeyError as error:
            raise InputError(
                f"The checkpoints in {self.folder.path} were made by another version: they lack {error}."
            ) from error
        except (TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
            if isinstance(error, (InputError, RunError)):
                raise
            raise RunError(
                f"The state of step {checkpoint.step} in {self.folder.path} was not saved by a run: "
                f"{str(error).splitlines()[0]}"
            ) from error
        self._is_lengthened = shorter is not None
        return True

    def _placement(self) -> Like:
        """Return how the tensors of a checkpoint are sharded: as the parameters are that they belong to."""
        # A tied weight has several names, and one place in the optimizer.
        named = dict(self.model.named_parameters(remove_duplicate=False))
        parameters = list(self.model.parameters())

        def like(place: tuple[Any, ...]) -> Tensor | None:
            match place:
                case ("weights" | "average", name):
                    found = named.get(name)
                case ("state", "optimizer", "state", int(index), _) if index < len(parameters):
                    found = parameters[index]
                case _:
                    found = None
            return found if is_sharded(found) else None

        return like

    def _restore(self, checkpoint: Checkpoint, config: TrainConfig) -> None:
        state = checkpoint.state
        saved = Identity(**state["identity"])
        # A run that was being lengthened may have saved its state and not yet its config.
        saved.check(self.identity, self.config if saved == self.identity else config, self.folder.path)
        load_weights(self.model, checkpoint.weights)
        if self.average is not None and checkpoint.average is not None:
            load_weights(self.average, checkpoint.average)
        check_optimizer(state["optimizer"], self.optimizer)
        # Its settings are those of the config, except for the rate of the last step.
        settings, saved = self.optimizer.state_dict()["param_groups"], state["optimizer"]["param_groups"]
        groups = [{**own, "lr": group["lr"]} for own, group in zip(settings, saved, strict=True)]
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        self.process.prepare(self.optimizer)
        self.regularizer.load_state_dict(state["regularizer"])
        check_window(state["window"])
        self.window = Window(**state["window"])
        self.carry.load_state_dict(state["carry"])
        for name in _SAVED:
            if type(state[name]) is not type(getattr(self, name)):
                raise TypeError(f"{name} is a {type(state[name]).__name__}.")
            setattr(self, name, state[name])
        check_evaluation(self.evaluation)
        if self.evaluated_at == self.step and self.task.metric not in self.evaluation:
            raise ValueError(f"evaluation has no {self.task.metric}.")
        if self.step > self.num_steps:
            raise InputError(
                f"The checkpoint in {self.folder.path} is of step {self.step}, beyond the last step of the run "
                f"({self.num_steps}): its config or its data has changed since it was trained."
            )
        self._check_carry()
        self._saved_at = self.step

    @torch.no_grad()
    def _check_carry(self) -> None:
        """Send some samples through the network after what the steps before handed on, which must fit."""
        carry = self.carry.kept[0]
        if carry is None or not self.reader.is_contiguous or self.process.is_sharded or self.step >= self.num_steps:
            return
        x, _ = self.reader.get(self.step, self.parts[0])
        self.model.eval()
        try:
            ModelAdapter(self.model)(x.to(self.process.device), carry=carry, depth=1)
        finally:
            self.model.train()

    def train(self) -> dict[str, float]:
        """Train to the last step and return the last evaluation.

        Raises:
            Interrupted: It was asked to stop, and a checkpoint is saved.
            RunError: It cannot go on: too many bad steps, or a full disk.
        """
        forget_peak_memory(self.process.device)
        try:
            self._open_log()
            if self._is_lengthened:
                # In this order: if it is stopped in between, the same command goes on.
                self._save()
                self.process.wait()
                if self.process.is_main:
                    self.folder.replace_config(self.config)
            with self.interruption, self.display, self.profile.steps(), warnings.catch_warnings():
                # The residual of every solve is recorded, forward and backward.
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.display.begin(self._title, self.num_steps, self.step)
                self._run()
        except Interrupted:
            self._save()
            why = "" if self.interruption.reason is None else f", as {self.interruption.reason}"
            raise Interrupted(
                f"Stopped at step {self.step} of {self.num_steps}{why}; the state is saved in {self.folder.path}."
            ) from None
        finally:
            self.reader.close()
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
                # After the last checkpoint, so that who reads it finds that one.
                self._write("finished", {})
                return
            if self._advance():
                raise Interrupted

    @property
    def is_finished(self) -> bool:
        """Whether all steps are made and the last one is evaluated."""
        return self.step >= self.num_steps and self.evaluated_at == self.step

    def _open_log(self) -> None:
        if not self.process.is_main:
            return
        check_plain(self.folder.metrics_path)
        try:
            MetricsLog.rewind(self.folder.metrics_path, step=self.step, evaluated_at=self.evaluated_at)
            trackers = open_trackers(self.config, self.folder.locate(), step=self.step)
            self._log = MetricsLog(self.folder.metrics_path, trackers=trackers)
            self.folder.record_environment(device=str(self.process.device), world_size=self.process.world_size)
        except OSError as error:
            raise RunError(
                f"The run's folder {self.folder.path} cannot be written ({error.strerror}); its checkpoints are intact."
            ) from error

    # One step

    def _advance(self) -> bool:
        """Make one step; return whether some process was asked to stop."""
        start, cpu_start = time.perf_counter(), time.process_time()
        step = self.step
        settings = self._settings(step)
        rate = self.config.optimizer.rate(step, self.num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # A bad batch must not stay in running means either.
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        if step % self.reader.steps_per_epoch == 0:
            self.carry.clear()
        values = self._accumulate(settings)
        must_stop = values.pop("stop") > 0
        with self.profile.section("optimizer"):
            values["grad_norm"] = self.process.clip_gradients(
                self.model.parameters(), self.config.optimizer.max_grad_norm
            )
            is_good = math.isfinite(values["loss"]) and math.isfinite(values["grad_norm"]) and not values["non_finite"]
            if is_good:
                self.optimizer.step()
                self._update_average()
                self.carry.keep()
            else:
                for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                    buffer.copy_(before)
            self.optimizer.zero_grad(set_to_none=True)
        values |= {"regularizer_weight": settings.regularizer.gamma(step), "learning_rate": rate}
        share_cut = values.pop("penalty_cut")
        if settings.regularizer is self.regularizer and math.isfinite(values.get("forward_residual", math.nan)):
            obstacle = self.regularizer.observe(
                residual=values["forward_residual"],
                # Of one solve, which is what a target is given for.
                evals=values["forward_evals"] / settings.num_answers,
                is_cut=share_cut > 0.5,
            )
            if self.regularizer.schedule.is_closed_loop:
                values |= {"penalty_cut": share_cut, "penalty_held_back": float(obstacle is not None)}
        self.step += 1
        with self.profile.section("logging"):
            # What else runs on the machine shows in the first, and not in the second.
            times = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start}
            self._record(values, is_good, times)
        return must_stop

    def _settings(self, step: int) -> StepSettings:
        config = self.config
        is_warmup = step < config.warmup.num_steps
        regularizer = self.warmup_regularizer if is_warmup else self.regularizer
        solver = config.solver
        if config.budget.when == "always" or regularizer.is_applied(step):
            solver = config.budget.draw(solver, seed=config.loop.seed, step=step)
        return StepSettings(
            step=step,
            solver=solver,
            adjoint=self.adjoint,
            regularizer=regularizer,
            depth=config.warmup.depth if is_warmup else None,
            num_answers=1 if is_warmup else config.loop.num_answers,
        )

    def _accumulate(self, settings: StepSettings) -> dict[str, float]:
        """Add up the gradients of the parts of a batch; return means over all parts of all processes."""
        num_parts = self.config.loop.accumulate
        num_samples = self.reader.num_samples(settings.step)
        total: Tensor | None = None
        for index, part in enumerate(self.parts):
            with self.profile.section("data"):
                x, y = (tensor.to(self.process.device) for tensor in self.reader.get(settings.step, part))
            carry = self.carry.kept[index] if self.reader.is_contiguous else None
            torch.manual_seed(derive_seed(self.config.loop.seed, "step", settings.step, part))
            is_last = index == num_parts - 1
            with self.process.part_of_a_step(self.train_step, is_last=is_last):
                with self.profile.section("model"):
                    result: StepResult = self.train_step(x, y, settings, carry)
                # One, unless the batch is the last one of an epoch, whose parts may differ in size.
                weight = len(y) * num_parts * self.process.world_size / num_samples
                with self.profile.section("products"):
                    (result.loss * (weight / num_parts)).backward()
            self.carry.propose(index, result.carry)
            packed = weight * result.pack(must_stop=self.interruption.requested)
            total = packed if total is None else total + packed
        assert total is not None
        values = unpack(self.process.total(total) / self.process.world_size / num_parts, self.task)
        # A share of the samples, as all that is packed is a mean over them.
        values["num_bad_samples"] = round(values.pop("bad_samples") * num_samples)
        return values

    @torch.no_grad()
    def _update_average(self) -> None:
        if self.average is not None:
            for average, current in zip(self.average.parameters(), self.model.parameters(), strict=True):
                average.lerp_(current, 1 - self.config.loop.ema_decay)
            for average, current in zip(self.average.buffers(), self.model.buffers(), strict=True):
                average.copy_(current)

    # What is recorded

    def _record(self, values: dict[str, float], is_good: bool, times: dict[str, float]) -> None:
        if is_good:
            self.num_bad_in_row = 0
            if values["num_bad_samples"]:
                self.display.say(f"Step {self.step}: {values['num_bad_samples']} samples left out, as not finite.")
            self.window.add({**values, **times})
            self._watch(values)
        else:
            self.num_bad_in_row += 1
            self.num_bad += 1
            what = "the gradient" if math.isfinite(values["loss"]) else "the loss"
            if values["non_finite"]:
                what = "a state"
            self._write("skipped", {"reason": f"{what} is not finite", "in_row": self.num_bad_in_row})
            self.display.say(f"Step {self.step} is skipped: {what} is not finite ({self.num_bad_in_row} in a row).")
        if self.num_bad_in_row >= self.config.loop.max_bad_steps:
            self._write("diverged", {"in_row": self.num_bad_in_row})
            raise Diverged(
                f"The run stopped at step {self.step}: {self.num_bad_in_row} steps in a row were not finite. {ADVICE}"
            )
        if self.config.loop.stop_diverged and self.num_off_track >= NUM_STEPS:
            # What it has become is a result, too.
            self._evaluate()
            self._save()
            self._write("diverged", {"in_row": self.num_off_track})
            raise Diverged(
                f"The run stopped at step {self.step}: for {self.num_off_track} steps in a row, its solves did not "
                "converge or its loss was no better than for a model that knows only the frequencies of the targets. "
                f"{ADVICE}"
            )
        if self.step % self.config.log.every == 0 or self.step == self.num_steps:
            means = self.window.take()
            if means:
                epoch, memory = self.step / self.reader.steps_per_epoch, peak_memory(self.process.device)
                self._write("train", {"epoch": epoch, **means, "memory_mb": memory, "num_skipped": self.num_bad})
        self.display.advance(self._title, self.step, values)

    def _watch(self, values: dict[str, float]) -> None:
        """Count the steps in a row that solve or learn nothing, once the rate of learning has its full size."""
        begin = max(self.config.warmup.num_steps, self.config.optimizer.warmup_steps)
        is_off = self.step > begin and is_off_track(
            loss=values["task_loss"], residual=values.get("forward_residual"), trivial_loss=self._trivial_loss
        )
        self.num_off_track = self.num_off_track + 1 if is_off else 0

    def _evaluate_if_due(self) -> bool:
        """Evaluate if it is time to; return whether it was."""
        is_due = self.step == self.num_steps or (self.step > 0 and self.step % self.eval_every == 0)
        if not is_due or self.evaluated_at == self.step:
            return False
        self._evaluate()
        return True

    def _evaluate(self) -> None:
        with self.profile.section("evaluation"):
            log, model = self.config.log, self.model if self.average is None else self.average
            self.process.share_buffers(model)
            start = time.perf_counter()
            subject = (model, self.splits.validation, self.config.evaluation_solver)
            # As long as training unrolls the cell, evaluations do.
            warmup = self.config.warmup
            depth = warmup.depth if self.step < warmup.num_steps else None
            with self.process.gathered(self._evaluated):
                row = self.evaluator.measure(*subject, depth=depth)
                values = {name: value for name, value in row.named(self.task.metric).items() if value is not None}
                if log.spectrum_samples and ModelAdapter(model).has_equilibrium:
                    values |= self.evaluator.measure_spectrum(
                        *subject,
                        depth=depth,
                        num_samples=log.spectrum_samples,
                        max_products=log.spectrum_products,
                        seed=derive_seed(self.config.loop.seed, "spectrum", self.step),
                    )
            # As long as the other regularizer is at work, this one's gamma would only run away.
            if depth is None and math.isfinite(values.get("spectral_radius", math.nan)):
                self.regularizer.observe(spectral_radius=values["spectral_radius"])
            values |= {"epoch": self.step / self.reader.steps_per_epoch, "seconds": time.perf_counter() - start}
        self.evaluated_at, self.evaluation = self.step, values
        self._write("evaluation", values)

    def _write(self, event: str, values: dict[str, Any]) -> None:
        if self._log is not None:
            # So that a run whose folder is gone stops at the next line, and not at the next checkpoint.
            self.folder.locate()
            self._log.write(event, self.step, values)

    # What is saved

    def _save(self) -> None:
        with self.profile.section("logging"):
            self.process.share_buffers(self.model)
            carry = self.carry.state_dict()
            self._saved_at = self.step
            if self._log is not None:
                self._log.sync()
            elif not self.process.is_sharded:
                return
            self._save_checkpoint(
                Checkpoint(
                    weights=self.model.state_dict(),
                    average=None if self.average is None else self.average.state_dict(),
                    state={
                        **{name: getattr(self, name) for name in _SAVED},
                        "identity": self.identity.to_state(),
                        "optimizer": self.optimizer.state_dict(),
                        "regularizer": self.regularizer.state_dict(),
                        "window": dataclasses.asdict(self.window),
                        "carry": carry,
                    },
                )
            )

    def _save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint where the run now is; anew each time that it is moved in the meantime."""
        processes, keep = Processes(is_alone=not self.process.is_sharded), self.config.log.keep_checkpoints
        places = processes.gather(self.folder.locate)
        while True:
            try:
                self.folder.checkpoints(keep=keep).save(checkpoint)
                return
            except RunError:
                # Of a run that is gone this says so.
                before, places = places, processes.gather(self.folder.locate)
                if before == places:
                    raise


@torch.enable_grad()
def _check_penalty(regularizer: AbstractRegularizer, eq: Equilibrium) -> None:
    """Refuse a penalty that cannot be differentiated at a cell."""
    try:
        # Of a copy, as a regularizer may keep something from one step to the next.
        copy.copy(regularizer).penalty(eq, generator=torch.Generator().manual_seed(0))
    except RuntimeError as error:
        name = type(regularizer).__name__
        if "memory" in str(error):
            raise
        if "second derivative" not in str(error):
            raise InputError(f"The penalty of {name} cannot be computed: {str(error).splitlines()[0]}") from error
        options = (
            "" if regularizer.is_norm else "--regularizer JacobianRegularizer "
        ) + "--regularizer.estimator difference"
        raise InputError(
            f"{name} needs second derivatives of the cell, which fused attention, compiled code and many kernels do "
            f'not have: use JacobianRegularizer(estimator="difference"), which needs none ({options}).'
        ) from error


def _load_data(config: TrainConfig, process: Process) -> tuple[Splits, Identity]:
    """Return the samples, and what the run is tied to, which is the same on all processes."""
    splits = config.data.load()
    if not isinstance(splits, Splits):
        raise InputError(
            f"{type(config.data).__name__}.load returned a {type(splits).__name__}; it must return Splits."
        )
    # Once, as telling whether a cache of it is good takes a look at the whole text.
    vocabulary = config.data.vocabulary()
    if vocabulary is not None:
        _check_vocabulary(config, len(vocabulary))
    identity = Identity.of(config, splits, vocabulary)
    if not process.agrees(f"{identity.digest()} {__version__} {torch.__version__}"):
        raise InputError("The processes were given different configs, different data or different versions.")
    return splits, identity


def _num_classes(config: TrainConfig) -> int | None:
    """Return how many classes the model tells apart, if its task has labels."""
    return getattr(config.model, "num_classes", None) if config.data.task.is_labeled else None


def _build_network(config: TrainConfig, folder: RunFolder, process: Process, recipe: str | None) -> nn.Module:
    """Return the network, with the weights that a new run begins with."""
    loop, model = config.loop, build_model(config)
    if loop.init_from is not None and not folder.checkpoints().steps():
        load_weights(model, load_model(loop.init_from, recipe=recipe).state_dict())
    model.to(process.device)
    if loop.num_answers > 1 and not ModelAdapter(model).can_go_on:
        raise InputError(
            f"loop.num_answers is {loop.num_answers}; it must be 1 for this network. Only equilibrium models that "
            "carry no memory from one text segment to the next can continue a solve."
        )
    return model


def _check_vocabulary(config: TrainConfig, num_tokens: int) -> None:
    """Refuse a model that knows fewer tokens than its text has, and warn of one that knows more."""
    size = getattr(config.model, "vocab_size", None)
    if size is None:
        return
    if size < num_tokens:
        raise InputError(
            f"model.vocab_size is {size}, and the vocabulary of {config.data.name} has {num_tokens} tokens: "
            f"--model.vocab-size {num_tokens}."
        )
    if size > num_tokens:
        log.warning(
            "model.vocab_size is %d, and the vocabulary of %s has %d tokens: the other entries are never used.",
            size,
            config.data.name,
            num_tokens,
        )
