"""`make mutants`: faults of one line, put in one at a time, and who notices each.

usage: python -m torture.mutants [MUTANT ...] [--attacks] [--workers N]

Each mutant is a copy of the sources with one change. It weakens a promise of SECURITY.md, or puts a fault back by which
a clean status stood on a wrong result. The tests that should notice it are run on the copy; with --attacks, the attacks
of `make torture` that should are made too, which takes much longer.
A mutant that nobody notices is a promise that nobody checks. Who notices which goes to mutants.json and mutants.md;
with names, only these mutants are judged anew.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_suffix(".json")
_starting = threading.Lock()
_context = multiprocessing.get_context("forkserver")
# What all children need, and nothing of ours, of which each has a copy of its own.
_context.set_forkserver_preload(
    ["torch", "torch.distributed", "pytest", "matplotlib.figure", "safetensors.torch", "rich"]
)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change that should be noticed."""

    name: str
    file: str
    """Where, below src/steadeq."""
    old: str
    """What is there, once."""
    new: str
    tests: tuple[str, ...]
    """Tests that should fail."""
    attacks: tuple[str, ...] = ()
    """Attacks, or tries of them, that should do harm."""

    def apply(self, root: Path) -> None:
        """Make the change in a copy of the sources."""
        path = root / "src/steadeq" / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.name}: {self.old!r} is there {text.count(self.old)} times"
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Who noticed a mutant."""

    mutant: Mutant
    tests: tuple[str, ...]
    attacks: tuple[str, ...] | None
    """None if none were made."""

    @property
    def is_killed(self) -> bool:
        """Whether anybody did."""
        return bool(self.tests or self.attacks)


_FAULTS, _CHECKPOINT = "tests/lab/train/test_faults.py", "tests/lab/run/test_checkpoint.py"
_MOVED, _RESUME = "tests/lab/train/test_moved.py", "tests/lab/train/test_resume.py"
_EDGES, _DRIVERS, _LANGUAGE = (
    "tests/test_edges.py",
    "tests/solvers/test_drivers.py",
    "tests/models/test_language_models.py",
)
_ROWS = f"{_EDGES}::TestRowsThatSeeEachOther"
_IDENTITY, _ARCHIVES = "tests/lab/run/test_identity.py", "tests/lab/data/test_archives.py"
_PRETRAINED, _INTERRUPTION = "tests/models/test_pretrained.py", "tests/lab/train/test_interruption.py"

MUTANTS = (
    Mutant(
        name="no lock",
        file="lab/run/folder.py",
        old="fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        new="pass",
        tests=(f"{_FAULTS}::test_a_folder_in_which_another_process_trains_is_refused",),
        attacks=("rivals:0", "rivals:1", "rivals:2"),
    ),
    Mutant(
        name="a run that is there is made anew",
        file="lab/run/folder.py",
        old="config_to_json(config), is_new=True)",
        new="config_to_json(config))",
        tests=(f"{_FAULTS}::test_a_folder_that_another_process_makes_at_the_same_time_is_left_to_it",),
    ),
    Mutant(
        name="a moved run is not followed",
        file="lab/run/folder.py",
        old="if not self._is_at(self.path):",
        new="if False:",
        tests=(_MOVED,),
        attacks=("moves:0", "moves:1", "moves:2", "moves:3"),
    ),
    Mutant(
        name="what is in the place of a run is taken for it",
        file="lab/run/folder.py",
        old="return os.path.samestat(path.stat(), os.fstat(self._handle))",
        new="return path.is_dir()",
        tests=(_MOVED,),
        attacks=("moves:0", "moves:1", "moves:2", "moves:3"),
    ),
    Mutant(
        name="links in a run are followed",
        file="lab/files.py",
        old="if path.is_symlink():",
        new="if False:",
        tests=(f"{_FAULTS}::test_a_run_writes_through_no_link",),
        attacks=("links",),
    ),
    Mutant(
        name="a link in the place of the checkpoints is followed",
        file="lab/run/checkpoint.py",
        old="if self.path.is_symlink():",
        new="if False:",
        tests=(f"{_MOVED}::test_checkpoints_are_not_written_through_a_link_that_was_put_in_their_place",),
    ),
    Mutant(
        name="old checkpoints are deleted before the new one is there",
        file="lab/run/checkpoint.py",
        old="        self.path.mkdir(exist_ok=True)\n",
        new="        shutil.rmtree(self.path, ignore_errors=True)\n        self.path.mkdir(exist_ok=True)\n",
        tests=(f"{_CHECKPOINT}::test_a_full_disk_leaves_the_earlier_checkpoint_and_nothing_else",),
        attacks=("kills",),
    ),
    Mutant(
        name="only one checkpoint is kept",
        file="lab/run/checkpoint.py",
        old="*earlier[: -self.keep])",
        new="*earlier[:-1])",
        tests=(f"{_CHECKPOINT}::test_so_many_checkpoints_are_kept",),
        attacks=("damages",),
    ),
    Mutant(
        name="checksums are ignored",
        file="lab/run/checkpoint.py",
        old="if _checksum(folder / name) != checksum:",
        new="if False:",
        tests=(f"{_CHECKPOINT}::test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used",),
        attacks=("damages",),
    ),
    Mutant(
        name="a file without a checksum counts",
        file="lab/run/checkpoint.py",
        old="if checksums.keys() != files or",
        new="if",
        tests=(f"{_CHECKPOINT}::test_checksums_that_do_not_cover_a_file_do_not_vouch_for_it",),
    ),
    Mutant(
        name="a damaged checkpoint is the end",
        file="lab/run/checkpoint.py",
        old='log.warning("%s Trying the one before it.", error)',
        new="raise",
        tests=(f"{_CHECKPOINT}::test_a_checkpoint_that_lost_all_its_files_is_named_and_the_one_before_it_is_used",),
        attacks=("damages",),
    ),
    Mutant(
        name="pickles are not looked at",
        file="lab/run/checkpoint.py",
        old="check_saved(folder / _STATE, is_known=_is_known)",
        new="pass",
        tests=(f"{_CHECKPOINT}::test_a_state_of_millions_of_instructions_is_refused_before_it_is_followed",),
        attacks=("checkpoint-pickles",),
    ),
    Mutant(
        name="no fsync of a checkpoint",
        file="lab/run/checkpoint.py",
        old="        sync(file)\n",
        new="",
        tests=(f"{_RESUME}::test_a_power_cut_costs_only_what_came_after_the_last_checkpoint",),
        attacks=("power-cuts",),
    ),
    Mutant(
        name="no fsync of small files",
        file="lab/files.py",
        old="            os.fsync(file.fileno())\n        apply_umask(Path(temporary))",
        new="        apply_umask(Path(temporary))",
        tests=(f"{_RESUME}::test_a_power_cut_costs_only_what_came_after_the_last_checkpoint",),
        attacks=("power-cuts",),
    ),
    Mutant(
        name="no fsync of metrics",
        file="lab/train/loop.py",
        old="self._log.sync()",
        new="pass",
        tests=(f"{_RESUME}::test_a_power_cut_costs_only_what_came_after_the_last_checkpoint",),
        attacks=("power-cuts",),
    ),
    Mutant(
        name="an interrupted run is not saved",
        file="lab/train/loop.py",
        old="        except Interrupted:\n            self._save()\n",
        new="        except Interrupted:\n",
        tests=(f"{_RESUME}::test_a_request_to_stop_after_any_step_leaves_no_trace",),
        attacks=("signals",),
    ),
    Mutant(
        name="the optimizer is not restored",
        file="lab/train/loop.py",
        old='self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})',
        new="pass",
        tests=(f"{_RESUME}::test_a_run_that_crashed_many_times_ends_like_one_that_never_did[plain]",),
        attacks=("kills",),
    ),
    Mutant(
        name="the regularizer is not restored",
        file="lab/train/loop.py",
        old='self.regularizer.load_state_dict(state["regularizer"])',
        new="pass",
        tests=(f"{_RESUME}::test_a_run_that_crashed_many_times_ends_like_one_that_never_did[closed-loop]",),
        attacks=("kills",),
    ),
    Mutant(
        name="the average is not restored",
        file="lab/train/loop.py",
        old="load_weights(self.average, checkpoint.average)",
        new="pass",
        tests=(f"{_RESUME}::test_a_run_that_crashed_many_times_ends_like_one_that_never_did[average]",),
        attacks=("kills",),
    ),
    Mutant(
        name="the window is not restored",
        file="lab/train/loop.py",
        old='self.window = Window(**state["window"])',
        new="self.window = Window()",
        tests=(f"{_RESUME}::test_a_run_that_crashed_many_times_ends_like_one_that_never_did[window]",),
        attacks=("kills",),
    ),
    Mutant(
        name="the carry is not restored",
        file="lab/train/loop.py",
        old='self.carry.load_state_dict(state["carry"])',
        new="pass",
        tests=("tests/lab/train/test_language.py::test_a_run_resumes_bit_for_bit_with_its_carry",),
        attacks=("kills",),
    ),
    Mutant(
        name="metrics are not rewound",
        file="lab/train/loop.py",
        old="MetricsLog.rewind(self.folder.metrics_path, step=self.step, evaluated_at=self.evaluated_at)",
        new="pass",
        tests=(f"{_RESUME}::test_a_run_that_crashed_many_times_ends_like_one_that_never_did[plain]",),
        attacks=("kills",),
    ),
    Mutant(
        name="states are not looked at",
        file="lab/train/loop.py",
        old='check_optimizer(state["optimizer"], self.optimizer)',
        new="pass",
        tests=("tests/lab/train/test_forged_states.py",),
    ),
    Mutant(
        name="an optimizer of other settings goes on",
        file="lab/train/saved_state.py",
        old=" or group[name] != own[name]:",
        new=":",
        tests=("tests/lab/train/test_forged_states.py",),
    ),
    Mutant(
        name="a state has the settings of an optimizer",
        file="lab/train/loop.py",
        old='{**state["optimizer"], "param_groups": groups}',
        new='state["optimizer"]',
        tests=("tests/lab/train/test_forged_states.py",),
    ),
    Mutant(
        name="processes need not agree",
        file="lab/train/loop.py",
        old="if not process.agrees(",
        new="if False and not process.agrees(",
        tests=(f"{_IDENTITY}::test_processes_that_were_given_different_things_do_not_begin",),
        attacks=("lost-ranks",),
    ),
    Mutant(
        name="the digest of data is ignored",
        file="lab/run/identity.py",
        old="if self.data.get(split) != digest:",
        new="if False:",
        tests=(f"{_IDENTITY}::test_another_text_of_the_same_words_and_size_is_refused",),
        attacks=("texts",),
    ),
    Mutant(
        name="the digest of the vocabulary is ignored",
        file="lab/run/identity.py",
        old="if self.vocabulary != digest:",
        new="if False:",
        tests=(f"{_IDENTITY}::test_another_vocabulary_of_the_same_size_is_refused",),
        attacks=("texts",),
    ),
    Mutant(
        name="another config goes on",
        file="lab/run/identity.py",
        old="if old.get(name) != new.get(name) and not is_younger:",
        new="if False:",
        tests=(f"{_IDENTITY}::test_a_trainer_with_another_config_does_not_go_on",),
        attacks=("config-digits",),
    ),
    Mutant(
        name=".. in archives",
        file="lab/data/archives.py",
        old='".." in path.parts or ',
        new="",
        tests=(f"{_ARCHIVES}::test_names_that_lead_elsewhere_are_refused",),
        attacks=("archives",),
    ),
    Mutant(
        name="links in archives",
        file="lab/data/archives.py",
        old="if kind not in (0, stat.S_IFREG, stat.S_IFDIR):",
        new="if False:",
        tests=(f"{_ARCHIVES}::test_what_is_no_plain_file_is_refused_in_a_zip_archive_too",),
        attacks=("archives",),
    ),
    Mutant(
        name="checksums of downloads are ignored",
        file="lab/data/download.py",
        old="if found != md5:",
        new="if False:",
        tests=("tests/lab/data/test_download.py::test_a_wrong_checksum_leaves_nothing_behind",),
        attacks=("servers",),
    ),
    Mutant(
        name="a second Ctrl-C is ignored",
        file="lab/signals.py",
        old="if self.requested and number == signal.SIGINT:",
        new="if False:",
        tests=(f"{_INTERRUPTION}::test_a_second_ctrl_c_stops_at_once",),
    ),
    Mutant(
        name="kill is not heard",
        file="lab/signals.py",
        old="for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):",
        new="for number in (signal.SIGINT,):",
        tests=(f"{_INTERRUPTION}::test_a_signal_is_noted_and_nothing_stops",),
        attacks=("signals",),
    ),
    Mutant(
        name="each Ctrl-C stops again",
        file="lab/cli/leaving.py",
        old="if not self._has_stopped:",
        new="if True:",
        tests=("tests/lab/cli/test_signals.py::test_ctrl_c_while_the_interpreter_ends_is_no_traceback",),
        attacks=("storms",),
    ),
    Mutant(
        name="configs import what they name",
        file="lab/serialization.py",
        old="found: Any = sys.modules.get(module_name)",
        new='found: Any = __import__(module_name, fromlist=["x"])',
        tests=(
            "tests/lab/test_serialization.py::test_a_class_that_does_not_belong_is_refused_and_nothing_is_executed",
        ),
    ),
    Mutant(
        name="weights that are not finite",
        file="models/pretrained.py",
        old='            return f"{kind} {name}"\n',
        new="            return None\n",
        tests=("tests/lab/run/test_loading.py::test_a_model_whose_weights_are_not_finite_is_refused",),
        attacks=("folders",),
    ),
    Mutant(
        name="weights of any dtype",
        file="models/pretrained.py",
        old="return given == own or (own in _FLOATS and given in _FLOATS)",
        new="return True",
        tests=(f"{_PRETRAINED}::test_weights_that_nothing_can_be_computed_with_are_refused_by_name",),
        attacks=("folders",),
    ),
    Mutant(
        name="a model takes memory before it is looked at",
        file="models/pretrained.py",
        old='with torch.device("meta"), _no_more_parameters_than',
        new="with _no_more_parameters_than",
        tests=(f"{_PRETRAINED}::test_models_are_looked_at_before_they_take_memory",),
        attacks=("folders",),
    ),
    Mutant(
        name="layers are counted out in advance",
        file="models/mdeq/model.py",
        old="for index in range(max(2, num_downsamplings)):",
        new="for index in list(range(max(2, num_downsamplings))):",
        tests=(f"{_PRETRAINED}::test_a_config_of_any_size_is_a_sentence_in_bounded_time_and_memory",),
        attacks=("folders:63",),
    ),
    Mutant(
        name="sentences of any length",
        file="codec.py",
        old="return text if len(text) <= most else",
        new="return text if True else",
        tests=(f"{_PRETRAINED}::test_a_config_of_any_size_is_a_sentence_in_bounded_time_and_memory",),
    ),
    Mutant(
        name="names that a Hub makes up",
        file="models/pretrained.py",
        old="if name is not None and not _HUB_NAME.fullmatch(name):",
        new="if False:",
        tests=(f"{_PRETRAINED}::test_a_hostile_hub_is_a_sentence_and_writes_nothing_outside_of_the_cache",),
        attacks=("hubs",),
    ),
    Mutant(
        name="weights changed before a reversed solve",
        file="adjoints/reversible.py",
        old='self.sources.check_versions("its backward pass")',
        new="pass",
        tests=(
            "tests/adjoints/test_reversible.py::test_gradients_of_numbers_that_were_changed_since_the_solve_are_refused",
        ),
    ),
    Mutant(
        name="samples are not probed",
        file="adjoints/base.py",
        old="check_products(problem.cell, vjp, g)",
        new="pass",
        tests=(f"{_ROWS}::test_a_tie_that_is_weak_beside_rounding_is_noticed",),
    ),
    Mutant(
        name="samples that leave are not missed",
        file="adjoints/base.py",
        old="return check_residuals(self.cell, evaluate, z, self.z0, stats, layout.eps)",
        new="return stats",
        tests=(f"{_ROWS}::test_leaving_the_batch_is_noticed",),
    ),
    Mutant(
        name="the first solution is not compared with the whole map",
        file="adjoints/base.py",
        old="check_solution(problem.cell, vjp(u), u, g, backward.residual, problem.layout.eps)",
        new="pass",
        tests=(f"{_ROWS}::test_one_element_that_sees_one_other_is_found_by_the_residual_of_the_backward_solve",),
    ),
    Mutant(
        name="later solutions are not compared with the whole map",
        file="adjoints/_attachment.py",
        old="if expected is not None:",
        new="if False:",
        tests=(f"{_ROWS}::test_rows_that_begin_to_see_each_other_are_noticed_at_no_cost",),
    ),
    Mutant(
        name="cells are known by their code alone",
        file="_internal/independence.py",
        old="if callable(value) and not isinstance(value, type)]",
        new="if False]",
        tests=(f"{_ROWS}::test_a_helper_that_solves_many_cells_has_each_of_them_looked_at",),
    ),
    Mutant(
        name="states are not compared with the whole map",
        file="_internal/randomness.py",
        old="elif norms or not bool(is_off.any()):",
        new="elif True:",
        tests=(f"{_ROWS}::test_rows_that_see_each_other_only_far_from_the_first_states_are_noticed",),
    ),
    Mutant(
        name="drifts converge",
        file="solvers/_progress.py",
        old="is_met & is_finite & ~seen.have_run_away()",
        new="is_met & is_finite",
        tests=(f"{_EDGES}::TestConvergedAtInfinity",),
    ),
    Mutant(
        name="columns of rounding count",
        file="solvers/anderson.py",
        old="slot.index, at.norm, may_sync",
        new="slot.index, 0 * at.norm, may_sync",
        tests=("tests/solvers/test_faults.py::TestDegenerateHistories",),
    ),
    Mutant(
        name="squares of small states vanish",
        file="solvers/_map.py",
        old="limit = torch.finfo(z.dtype).max ** 0.25",
        new="limit = torch.finfo(z.dtype).max",
        tests=(f"{_EDGES}::TestSizes",),
    ),
    Mutant(
        name="squares of small gradients vanish",
        file="solvers/gmres.py",
        old="scale = row_norm(b)",
        new="scale = torch.linalg.vector_norm(b, dim=1)",
        tests=(f"{_EDGES}::TestSizes::test_so_are_gradients",),
    ),
    Mutant(
        name="only the first evaluation is watched",
        file="solvers/_map.py",
        old="if _version(given) != version or (copy",
        new="if (is_first and _version(given) != version) or (copy",
        tests=(f"{_EDGES}::TestStateWrittenOver",),
    ),
    Mutant(
        name="nothing is watched in inference mode",
        file="solvers/_solve.py",
        old="if not is_traced and torch.is_inference_mode_enabled():",
        new="if False:",
        tests=(f"{_EDGES}::TestStateWrittenOver",),
    ),
    Mutant(
        name="a NaN spoils gradients",
        file="adjoints/base.py",
        old="return is_lost.unsqueeze(1) if is_lost.any() and not is_lost.all() else None",
        new="return None",
        tests=(f"{_EDGES}::TestOneBadSample",),
    ),
    Mutant(
        name="a NaN spoils penalties",
        file="jacobian/_products.py",
        old="if num_good in (0, len(is_good)):",
        new="if True:",
        tests=(f"{_EDGES}::TestOneBadSample",),
    ),
    Mutant(
        name="weights come from later tokens",
        file="solvers/_window.py",
        old="found = products(self.filled(window), vector)\n        return found if self._prefix is None else",
        new="found = products(self.filled(window), vector)\n        return found if True else",
        tests=(f"{_DRIVERS}::test_a_causal_solve_is_causal_bit_for_bit", _LANGUAGE),
    ),
    Mutant(
        name="stops come from later tokens",
        file="solvers/base.py",
        old="return values.unflatten(0, (-1, self.length)).cummax(dim=1).values.flatten(0, 1)",
        new="return values.unflatten(0, (-1, self.length)).amax(1, True).expand(-1, self.length).flatten(0, 1)",
        tests=(f"{_DRIVERS}::test_a_causal_solve_is_causal_bit_for_bit", _LANGUAGE),
    ),
    Mutant(
        name="a loop returns its last point",
        file="solvers/loop.py",
        old="returns_image = True",
        new="returns_image = False",
        tests=(f"{_DRIVERS}::TestLoop",),
    ),
    Mutant(
        name="functions are not compiled whole",
        file="_fixed_point.py",
        old="code=None if isinstance(held, MaskedMap) else code,",
        new="code=None,",
        tests=("tests/nn/test_compiled_solves.py::test_a_plain_function_is_compiled_whole",),
    ),
    Mutant(
        name="errors without rounding",
        file="jacobian/_products.py",
        old="_ROUNDING = 10",
        new="_ROUNDING = 0",
        tests=("tests/jacobian/test_spectrum.py::test_in_single_precision_errors_cover_rounding",),
    ),
    Mutant(
        name="tensors on the default device",
        file="solvers/broyden.py",
        old="torch.eye(size, dtype=u.dtype, device=u.device)",
        new="torch.eye(size, dtype=u.dtype)",
        tests=("tests/test_devices.py",),
    ),
    Mutant(
        name="a budget is overspent",
        file="solvers/_progress.py",
        old="self.goes_on = self.num_evals < self.solver.max_evals\n        if happened",
        new="self.goes_on = self.num_evals <= self.solver.max_evals\n        if happened",
        tests=("tests/solvers/test_counting.py",),
    ),
    Mutant(
        name="windows without progress need not follow each other",
        file="solvers/_progress.py",
        old="torch.where(is_stalled, self.num_stalled + 1, 0)",
        new="self.num_stalled + is_stalled.long()",
        tests=("tests/solvers/test_loop.py::test_a_sample_stagnates_when_it_makes_no_progress",),
    ),
    Mutant(
        name="a sample that goes over to Broyden keeps what it had",
        file="solvers/anderson.py",
        old="other, points = other.forget(goes_over), torch",
        new="other, points = other, torch",
        tests=("tests/solvers/test_handover.py",),
    ),
    Mutant(
        name="half of the Arnoldi vectors survive a restart",
        file="solvers/_krylov.py",
        old="[torch.zeros_like(self.norm)] * size",
        new="[torch.ones_like(self.norm)] * size",
        tests=("tests/jacobian/test_spectrum.py::test_a_restart_keeps_the_hessenberg_matrix_that_of_the_operator",),
    ),
    Mutant(
        name="SHINE has no fallback",
        file="adjoints/shine.py",
        old="u = torch.where((stretch <= self.max_stretch)[:, None], u, g)",
        new="u = u",
        tests=("tests/adjoints/test_approximate.py::test_shine_falls_back_sample_by_sample",),
    ),
    Mutant(
        name="one evaluation too few is recorded",
        file="adjoints/unrolled.py",
        old="self.steps_of(solver) - self.last, 0)",
        new="self.steps_of(solver) - self.last + 1, 0)",
        tests=("tests/adjoints/test_unrolled.py",),
    ),
    Mutant(
        name="a second derivative leaves out the gradient that came in",
        file="adjoints/_attachment.py",
        old="return point.vjp(u, create_graph=True) + g",
        new="return point.vjp(u, create_graph=True) + g.detach()",
        tests=("tests/adjoints/test_second_derivative.py::test_first_and_second_derivatives_equal_those_of_unrolling",),
    ),
    Mutant(
        name="two evaluations of a difference have two masks",
        file="jacobian/_differences.py",
        old="        self._rewind()\n        return self.layout",
        new="        return self.layout",
        tests=("tests/jacobian/test_difference.py::TestRandomness",),
    ),
    Mutant(
        name="intervals are too short",
        file="jacobian/frobenius.py",
        old="clamp(max=2 / num_probes) / 9",
        new="clamp(max=1 / num_probes) / 9",
        tests=("tests/jacobian/test_frobenius.py::test_intervals_have_their_rate_at_every_rank",),
    ),
    Mutant(
        name="kept vectors hide what grows",
        file="jacobian/penalty.py",
        old="random = 0.1 * random + unit(",
        new="random = unit(",
        tests=("tests/jacobian/test_spectral_penalty.py::TestRegularizer",),
    ),
    Mutant(
        name="a closed loop piles up what its guard cuts off",
        file="jacobian/schedules.py",
        old="rate=0.0 if is_cut and error > 0 else self.rate",
        new="rate=self.rate",
        tests=("tests/jacobian/test_regularizers.py",),
    ),
    Mutant(
        name="transposed convolutions are normalized along the wrong dimension",
        file="nn/weight_norm.py",
        old="return 1 if isinstance(layer, _TRANSPOSED) else 0",
        new="return 0",
        tests=("tests/nn/test_weight_norm.py::test_values_and_gradients_are_those_of_torch",),
    ),
    Mutant(
        name="a window is one position longer",
        file="nn/relative_attention.py",
        old="distances >= self.window",
        new="distances > self.window",
        tests=("tests/nn/test_relative_attention.py::test_it_is_the_formula",),
    ),
    Mutant(
        name="the token that reaches top_p is left out",
        file="models/transformer/generation.py",
        old="kept.cumsum(dim=0) - kept >= self.top_p",
        new="kept.cumsum(dim=0) >= self.top_p",
        tests=("tests/models/test_generation.py::test_probabilities_are_what_the_options_say",),
    ),
    Mutant(
        name="long growth is not told",
        file="diagnosis/verdict.py",
        old="return math.exp(log_rate) if is_known and is_smooth and power > 0.5 else None",
        new="return None",
        tests=("tests/test_diagnosis.py::test_every_fate_is_told",),
    ),
    Mutant(
        name="two paths are added and not averaged",
        file="models/looped_conv.py",
        old="(h + branch) / 2 if",
        new="h + branch if",
        tests=("tests/models/test_looped_conv.py::test_spectral_norms_are_at_most_one",),
    ),
    Mutant(
        name="a model is exported as it is trained",
        file="export/_program.py",
        old="straight = _Straight(_replace_layers(model, solver, used)).eval()",
        new="straight = _Straight(_replace_layers(model, solver, used))",
        tests=("tests/export/test_export.py::test_double_precision_is_kept_and_the_model_left_as_it_is",),
    ),
    Mutant(
        name="weights are normalized at every evaluation of a file",
        file="export/_program.py",
        old="folded = _fold_constants(program)",
        new="folded = program.module(check_guards=False)",
        tests=("tests/export/test_export.py::test_weights_are_normalized_once_and_not_in_the_graph",),
    ),
)


def judge(mutant: Mutant, *, with_attacks: bool) -> Verdict:
    """Return who notices a mutant."""
    with _copy() as root:
        mutant.apply(root)
        tests = _failing(root, mutant.tests)
        attacks = None
        if mutant.attacks and (with_attacks or not tests):
            # A tenth of the tries is mostly enough; all of them take minutes.
            for share in ("0.1", "1"):
                output = _run(root, _run_attacks, (*mutant.attacks, "--share", share, "--workers", "1"))
                attacks = tuple(dict.fromkeys(re.findall(r'make torture ARGS="([\w-]+):\d+"', output)))
                if attacks:
                    break
    return Verdict(mutant=mutant, tests=tests, attacks=attacks)


def check_tests(mutants: Sequence[Mutant]) -> None:
    """Refuse tests that fail without a fault, as these notice nothing."""
    with _copy() as root:
        for name in _failing(root, tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))):
            sys.exit(f"{name} fails without any fault; repair that first.")


@contextmanager
def _copy() -> Iterator[Path]:
    """Make a copy of sources and tests."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        yield Path(folder)


def _failing(root: Path, tests: tuple[str, ...]) -> tuple[str, ...]:
    """Return the name of the first test that fails, without the values of its parameters."""
    output = _run(root, _run_tests, tests)
    return tuple(re.findall(r"^(?:FAILED|ERROR) \S*::(\w+)", output, flags=re.MULTILINE))


def _run(root: Path, function: Callable[[tuple[str, ...]], int], words: tuple[str, ...]) -> str:
    """Return what a function says about the sources in a folder."""
    output = root / "output"
    process = _context.Process(target=_work, args=(root, function, words))
    with _starting:
        process.start()
        # Who starts the next one would ask how this one ended, and the answer can be had only once.
        multiprocessing.process._children.discard(process)
    process.join()
    code = process.exitcode
    assert code is not None
    if code < 0:
        # As tests of signals are, where nobody handles the signal.
        return f"FAILED tests::ended_by_signal_{-code}\n"
    # That tests are not found, or cannot be read, notices nothing.
    assert code in (0, 1), output.read_text()[-2000:]
    return output.read_text()


def _work(root: Path, function: Callable[[tuple[str, ...]], int], words: tuple[str, ...]) -> None:
    """Do something in a child, for which the copy in a folder is what is installed."""
    handle = os.open(root / "output", os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(handle, number)
    os.chdir(root)
    paths = [str(root / name) for name in ("src", "tests")]
    sys.path[:0] = paths
    os.environ.update(PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    sys.exit(function(words))


def _run_tests(words: tuple[str, ...]) -> int:
    return int(pytest.main(["-x", "-q", "-m", "slow or not slow", *words]))


def _run_attacks(words: tuple[str, ...]) -> int:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torture"]:
        # Those of the copy, which attack the copy.
        del sys.modules[name]
    sys.argv = ["torture", *words]
    return importlib.import_module("torture.__main__").main()


def main() -> int:
    """Judge the mutants; return 1 if one is left alive."""
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mutants", nargs="*", help="names; all if none are given")
    parser.add_argument("--attacks", action="store_true", help="make attacks too, and not only where no test fails")
    parser.add_argument("--workers", type=int, default=2, help="how many mutants at a time")
    arguments = parser.parse_args()
    if unknown := set(arguments.mutants) - {mutant.name for mutant in MUTANTS}:
        sys.exit(f"There is no mutant {sorted(unknown)[0]!r}; there are: {', '.join(m.name for m in MUTANTS)}.")
    chosen = [mutant for mutant in MUTANTS if not arguments.mutants or mutant.name in arguments.mutants]
    check_tests(chosen)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    num_alive = 0
    with ThreadPoolExecutor(arguments.workers) as pool:
        futures = [pool.submit(judge, mutant, with_attacks=arguments.attacks) for mutant in chosen]
        for future in as_completed(futures):
            verdict = future.result()
            num_alive += not verdict.is_killed
            print(f"{'killed' if verdict.is_killed else 'ALIVE':7} {verdict.mutant.name}", flush=True)
            known[verdict.mutant.name] = {"tests": verdict.tests, "attacks": verdict.attacks}
            ordered = {mutant.name: known[mutant.name] for mutant in MUTANTS if mutant.name in known}
            RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
            RESULTS.with_suffix(".md").write_text(_table(ordered))
    return 1 if num_alive else 0


def _table(verdicts: dict[str, Any]) -> str:
    """Return who kills which, for people."""
    files, rows, num_killed = {mutant.name: mutant.file for mutant in MUTANTS}, [], 0
    for name, verdict in verdicts.items():
        tests = ", ".join(f"`{test}`" for test in verdict["tests"])
        attacks = "" if verdict["attacks"] is None else ", ".join(verdict["attacks"]) or "none"
        rows.append(f"| {name} | `{files[name]}` | {tests or 'none'} | {attacks} |")
        num_killed += bool(verdict["tests"] or verdict["attacks"])
    return "\n".join(
        [
            "# Faults that were put in, and who noticed them",
            "",
            f"`make mutants`: {num_killed} of {len(verdicts)} that were judged, of "
            f"{len(MUTANTS)}, were noticed. Tests stop at the first that fails, "
            "which is named. Attacks are made where no test fails, or with `--attacks`; else nothing is said of them.",
            "",
            "| fault | file | test | attack |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    # By its name, under which the children find it.
    sys.exit(importlib.import_module("torture.mutants").main())
