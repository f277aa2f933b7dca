"""`make mutants`: faults of one line, put in one at a time, and who notices each.

usage: python -m torture.mutants [MUTANT ...] [--attacks] [--workers N]

Each mutant is a copy of the sources with one change. It weakens a promise of SECURITY.md, puts a fault back by which a
clean status stood on a wrong result, or spoils what is read, recorded, compared or judged. The tests that should notice
it are run on the copy; with --attacks, the attacks of `make torture` that should are made too, which takes much longer.
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

_FAULTS_BY_FILE: dict[str, dict[str, tuple[str, ...]]] = {
    "lab/run/folder.py": {
        "no lock": (
            "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
            "pass",
            f"{_FAULTS}::test_a_folder_in_which_another_process_trains_is_refused",
            "rivals:0 rivals:1 rivals:2",
        ),
        "a run that is there is made anew": (
            "config_to_json(config), is_new=True)",
            "config_to_json(config))",
            f"{_FAULTS}::test_a_folder_that_another_process_makes_at_the_same_time_is_left_to_it",
        ),
        "a moved run is not followed": (
            "if not self._is_at(self.path):",
            "if False:",
            _MOVED,
            "moves:0 moves:1 moves:2 moves:3",
        ),
        "what is in the place of a run is taken for it": (
            "return os.path.samestat(path.stat(), os.fstat(self._handle))",
            "return path.is_dir()",
            _MOVED,
            "moves:0 moves:1 moves:2 moves:3",
        ),
    },
    "lab/files.py": {
        "links in a run are followed": (
            "if path.is_symlink():",
            "if False:",
            f"{_FAULTS}::test_a_run_writes_through_no_link",
            "links",
        ),
        "no fsync of small files": (
            "            os.fsync(file.fileno())\n        apply_umask(Path(temporary))",
            "        apply_umask(Path(temporary))",
            f"{_RESUME}::test_a_power_cut_costs_only_what_came_after_the_last_checkpoint",
            "power-cuts",
        ),
    },
    "lab/run/checkpoint.py": {
        "a link in the place of the checkpoints is followed": (
            "if self.path.is_symlink():",
            "if False:",
            f"{_MOVED}::test_checkpoints_are_not_written_through_a_link_that_was_put_in_their_place",
        ),
        "old checkpoints are deleted before the new one is there": (
            "        self.path.mkdir(exist_ok=True)\n",
            "        shutil.rmtree(self.path, ignore_errors=True)\n        self.path.mkdir(exist_ok=True)\n",
            f"{_CHECKPOINT}::test_a_full_disk_leaves_the_earlier_checkpoint_and_nothing_else",
            "kills",
        ),
        "only one checkpoint is kept": (
            "*earlier[: -self.keep])",
            "*earlier[:-1])",
            f"{_CHECKPOINT}::test_so_many_checkpoints_are_kept",
            "damages",
        ),
        "checksums are ignored": (
            "if _checksum(folder / name) != checksum:",
            "if False:",
            f"{_CHECKPOINT}::test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used",
            "damages",
        ),
        "a file without a checksum counts": (
            "if checksums.keys() != files or",
            "if",
            f"{_CHECKPOINT}::test_checksums_that_do_not_cover_a_file_do_not_vouch_for_it",
        ),
        "a damaged checkpoint is the end": (
            'log.warning("%s Trying the one before it.", error)',
            "raise",
            f"{_CHECKPOINT}::test_a_checkpoint_that_lost_all_its_files_is_named_and_the_one_before_it_is_used",
            "damages",
        ),
        "pickles are not looked at": (
            "check_saved(folder / _STATE, is_known=_is_known)",
            "pass",
            f"{_CHECKPOINT}::test_a_state_of_millions_of_instructions_is_refused_before_it_is_followed",
            "checkpoint-pickles",
        ),
        "no fsync of a checkpoint": (
            "        sync(file)\n",
            "",
            f"{_RESUME}::test_a_power_cut_costs_only_what_came_after_the_last_checkpoint",
            "power-cuts",
        ),
    },
    "lab/train/loop.py": {
        "no fsync of metrics": (
            "self._log.sync()",
            "pass",
            f"{_RESUME}::test_a_power_cut_costs_only_what_came_after_the_last_checkpoint",
            "power-cuts",
        ),
        "an interrupted run is not saved": (
            "        except Interrupted:\n            self._save()\n",
            "        except Interrupted:\n",
            f"{_RESUME}::test_a_request_to_stop_after_any_step_leaves_no_trace",
            "signals",
        ),
        "the optimizer is not restored": (
            'self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})',
            "pass",
            f"{_RESUME}::test_a_run_that_crashed_many_times_ends_like_one_that_never_did[plain]",
            "kills",
        ),
        "the regularizer is not restored": (
            'self.regularizer.load_state_dict(state["regularizer"])',
            "pass",
            f"{_RESUME}::test_a_run_that_crashed_many_times_ends_like_one_that_never_did[closed-loop]",
            "kills",
        ),
        "the average is not restored": (
            "load_weights(self.average, checkpoint.average)",
            "pass",
            f"{_RESUME}::test_a_run_that_crashed_many_times_ends_like_one_that_never_did[average]",
            "kills",
        ),
        "the window is not restored": (
            'self.window = Window(**state["window"])',
            "self.window = Window()",
            f"{_RESUME}::test_a_run_that_crashed_many_times_ends_like_one_that_never_did[window]",
            "kills",
        ),
        "the carry is not restored": (
            'self.carry.load_state_dict(state["carry"])',
            "pass",
            "tests/lab/train/test_language.py::test_a_run_resumes_bit_for_bit_with_its_carry",
            "kills",
        ),
        "metrics are not rewound": (
            "MetricsLog.rewind(self.folder.metrics_path, step=self.step, evaluated_at=self.evaluated_at)",
            "pass",
            f"{_RESUME}::test_a_run_that_crashed_many_times_ends_like_one_that_never_did[plain]",
            "kills",
        ),
        "states are not looked at": (
            'check_optimizer(state["optimizer"], self.optimizer)',
            "pass",
            "tests/lab/train/test_forged_states.py",
        ),
        "a state has the settings of an optimizer": (
            '{**state["optimizer"], "param_groups": groups}',
            'state["optimizer"]',
            "tests/lab/train/test_forged_states.py",
        ),
        "processes need not agree": (
            "if not process.agrees(",
            "if False and not process.agrees(",
            f"{_IDENTITY}::test_processes_that_were_given_different_things_do_not_begin",
            "lost-ranks",
        ),
        "a bad step is made": (
            "if is_good:\n                self.optimizer.step()",
            "if True:\n                self.optimizer.step()",
            "tests/lab/train/test_faults.py::test_a_step_that_is_not_finite_is_skipped_counted_and_recorded",
        ),
        "bad steps go on for ever": (
            "if self.num_bad_in_row >= self.config.loop.max_bad_steps:",
            "if False:",
            "tests/lab/train/test_faults.py::test_too_many_bad_steps_in_a_row_end_the_run_with_code_1_and_advice",
        ),
    },
    "lab/train/saved_state.py": {
        "an optimizer of other settings goes on": (
            " or group[name] != own[name]:",
            ":",
            "tests/lab/train/test_forged_states.py",
        ),
    },
    "lab/run/identity.py": {
        "the digest of data is ignored": (
            "if self.data.get(split) != digest:",
            "if False:",
            f"{_IDENTITY}::test_another_text_of_the_same_words_and_size_is_refused",
            "texts",
        ),
        "the digest of the vocabulary is ignored": (
            "if self.vocabulary != digest:",
            "if False:",
            f"{_IDENTITY}::test_another_vocabulary_of_the_same_size_is_refused",
            "texts",
        ),
        "another config goes on": (
            "if old.get(name) != new.get(name) and not is_younger:",
            "if False:",
            f"{_IDENTITY}::test_a_trainer_with_another_config_does_not_go_on",
            "config-digits",
        ),
    },
    "lab/data/archives.py": {
        ".. in archives": (
            '".." in path.parts or ',
            "",
            f"{_ARCHIVES}::test_names_that_lead_elsewhere_are_refused",
            "archives",
        ),
        "links in archives": (
            "if kind not in (0, stat.S_IFREG, stat.S_IFDIR):",
            "if False:",
            f"{_ARCHIVES}::test_what_is_no_plain_file_is_refused_in_a_zip_archive_too",
            "archives",
        ),
    },
    "lab/data/download.py": {
        "checksums of downloads are ignored": (
            "if found != md5:",
            "if False:",
            "tests/lab/data/test_download.py::test_a_wrong_checksum_leaves_nothing_behind",
            "servers",
        ),
    },
    "lab/signals.py": {
        "a second Ctrl-C is ignored": (
            "if self.requested and number == signal.SIGINT:",
            "if False:",
            f"{_INTERRUPTION}::test_a_second_ctrl_c_stops_at_once",
        ),
        "kill is not heard": (
            "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):",
            "for number in (signal.SIGINT,):",
            f"{_INTERRUPTION}::test_a_signal_is_noted_and_nothing_stops",
            "signals",
        ),
    },
    "lab/cli/leaving.py": {
        "each Ctrl-C stops again": (
            "if not self._has_stopped:",
            "if True:",
            "tests/lab/cli/test_signals.py::test_ctrl_c_while_the_interpreter_ends_is_no_traceback",
            "storms",
        ),
    },
    "lab/serialization.py": {
        "configs import what they name": (
            "found: Any = sys.modules.get(module_name)",
            'found: Any = __import__(module_name, fromlist=["x"])',
            "tests/lab/test_serialization.py::test_a_class_that_does_not_belong_is_refused_and_nothing_is_executed",
        ),
    },
    "models/pretrained.py": {
        "weights that are not finite": (
            '            return f"{kind} {name}"\n',
            "            return None\n",
            "tests/lab/run/test_loading.py::test_a_model_whose_weights_are_not_finite_is_refused",
            "folders",
        ),
        "weights of any dtype": (
            "return given == own or (own in _FLOATS and given in _FLOATS)",
            "return True",
            f"{_PRETRAINED}::test_weights_that_nothing_can_be_computed_with_are_refused_by_name",
            "folders",
        ),
        "a model takes memory before it is looked at": (
            'with torch.device("meta"), _no_more_parameters_than',
            "with _no_more_parameters_than",
            f"{_PRETRAINED}::test_models_are_looked_at_before_they_take_memory",
            "folders",
        ),
        "names that a Hub makes up": (
            "if name is not None and not _HUB_NAME.fullmatch(name):",
            "if False:",
            f"{_PRETRAINED}::test_a_hostile_hub_is_a_sentence_and_writes_nothing_outside_of_the_cache",
            "hubs",
        ),
    },
    "models/mdeq/model.py": {
        "layers are counted out in advance": (
            "for index in range(max(2, num_downsamplings)):",
            "for index in list(range(max(2, num_downsamplings))):",
            f"{_PRETRAINED}::test_a_config_of_any_size_is_a_sentence_in_bounded_time_and_memory",
            "folders:63",
        ),
    },
    "codec.py": {
        "sentences of any length": (
            "return text if len(text) <= most else",
            "return text if True else",
            f"{_PRETRAINED}::test_a_config_of_any_size_is_a_sentence_in_bounded_time_and_memory",
        ),
    },
    "adjoints/reversible.py": {
        "weights changed before a reversed solve": (
            'self.sources.check_versions("its backward pass")',
            "pass",
            "tests/adjoints/test_reversible.py::test_gradients_of_numbers_that_were_changed_since_the_solve_are_refused",
        ),
    },
    "adjoints/base.py": {
        "samples are not probed": (
            "check_products(problem.cell, vjp, g)",
            "pass",
            f"{_ROWS}::test_a_tie_that_is_weak_beside_rounding_is_noticed",
        ),
        "samples that leave are not missed": (
            "return check_residuals(self.cell, evaluate, z, self.z0, stats, layout.eps)",
            "return stats",
            f"{_ROWS}::test_leaving_the_batch_is_noticed",
        ),
        "the first solution is not compared with the whole map": (
            "check_solution(problem.cell, vjp(u), u, g, backward.residual, problem.layout.eps)",
            "pass",
            f"{_ROWS}::test_one_element_that_sees_one_other_is_found_by_the_residual_of_the_backward_solve",
        ),
        "a NaN spoils gradients": (
            "return is_lost.unsqueeze(1) if is_lost.any() and not is_lost.all() else None",
            "return None",
            f"{_EDGES}::TestOneBadSample",
        ),
    },
    "adjoints/_attachment.py": {
        "a second derivative leaves out the gradient that came in": (
            "return point.vjp(u, create_graph=True) + g",
            "return point.vjp(u, create_graph=True) + g.detach()",
            "tests/adjoints/test_second_derivative.py::test_first_and_second_derivatives_equal_those_of_unrolling",
        ),
        "later solutions are not compared with the whole map": (
            "if expected is not None:",
            "if False:",
            f"{_ROWS}::test_rows_that_begin_to_see_each_other_are_noticed_at_no_cost",
        ),
    },
    "_internal/independence.py": {
        "cells are known by their code alone": (
            "if callable(value) and not isinstance(value, type)]",
            "if False]",
            f"{_ROWS}::test_a_helper_that_solves_many_cells_has_each_of_them_looked_at",
        ),
    },
    "_internal/randomness.py": {
        "states are not compared with the whole map": (
            "elif norms or not bool(is_off.any()):",
            "elif True:",
            f"{_ROWS}::test_rows_that_see_each_other_only_far_from_the_first_states_are_noticed",
        ),
    },
    "solvers/_progress.py": {
        "a budget is overspent": (
            "self.goes_on = self.num_evals < self.solver.max_evals\n        if happened",
            "self.goes_on = self.num_evals <= self.solver.max_evals\n        if happened",
            "tests/solvers/test_counting.py",
        ),
        "windows without progress need not follow each other": (
            "torch.where(is_stalled, self.num_stalled + 1, 0)",
            "self.num_stalled + is_stalled.long()",
            "tests/solvers/test_loop.py::test_a_sample_stagnates_when_it_makes_no_progress",
        ),
        "drifts converge": (
            "is_met & is_finite & ~seen.have_run_away()",
            "is_met & is_finite",
            f"{_EDGES}::TestConvergedAtInfinity",
        ),
    },
    "solvers/anderson.py": {
        "a sample that goes over to Broyden keeps what it had": (
            "other, points = other.forget(goes_over), torch",
            "other, points = other, torch",
            "tests/solvers/test_handover.py",
        ),
        "columns of rounding count": (
            "slot.index, at.norm, may_sync",
            "slot.index, 0 * at.norm, may_sync",
            "tests/solvers/test_faults.py::TestDegenerateHistories",
        ),
    },
    "solvers/_map.py": {
        "squares of small states vanish": (
            "limit = torch.finfo(z.dtype).max ** 0.25",
            "limit = torch.finfo(z.dtype).max",
            f"{_EDGES}::TestSizes",
        ),
        "only the first evaluation is watched": (
            "if _version(given) != version or (copy",
            "if (is_first and _version(given) != version) or (copy",
            f"{_EDGES}::TestStateWrittenOver",
        ),
    },
    "solvers/gmres.py": {
        "squares of small gradients vanish": (
            "scale = row_norm(b)",
            "scale = torch.linalg.vector_norm(b, dim=1)",
            f"{_EDGES}::TestSizes::test_so_are_gradients",
        ),
    },
    "solvers/_solve.py": {
        "nothing is watched in inference mode": (
            "if not is_traced and torch.is_inference_mode_enabled():",
            "if False:",
            f"{_EDGES}::TestStateWrittenOver",
        ),
    },
    "jacobian/_products.py": {
        "a NaN spoils penalties": ("if num_good in (0, len(is_good)):", "if True:", f"{_EDGES}::TestOneBadSample"),
        "errors without rounding": (
            "_ROUNDING = 10",
            "_ROUNDING = 0",
            "tests/jacobian/test_spectrum.py::test_in_single_precision_errors_cover_rounding",
        ),
    },
    "solvers/_window.py": {
        "weights come from later tokens": (
            "found = products(self.filled(window), vector)\n        return found if self._prefix is None else",
            "found = products(self.filled(window), vector)\n        return found if True else",
            f"{_DRIVERS}::test_a_causal_solve_is_causal_bit_for_bit {_LANGUAGE}",
        ),
    },
    "solvers/base.py": {
        "stops come from later tokens": (
            "return values.unflatten(0, (-1, self.length)).cummax(dim=1).values.flatten(0, 1)",
            "return values.unflatten(0, (-1, self.length)).amax(1, True).expand(-1, self.length).flatten(0, 1)",
            f"{_DRIVERS}::test_a_causal_solve_is_causal_bit_for_bit {_LANGUAGE}",
        ),
    },
    "solvers/loop.py": {
        "a loop returns its last point": ("returns_image = True", "returns_image = False", f"{_DRIVERS}::TestLoop"),
    },
    "_fixed_point.py": {
        "functions are not compiled whole": (
            "not any(map(draws_masks, modules_of(f))) else None,",
            "not isinstance(held, MaskedMap) else None,",
            "tests/nn/test_compiled_solves.py::test_a_plain_function_is_compiled_whole",
        ),
    },
    "solvers/broyden.py": {
        "tensors on the default device": (
            "torch.eye(size, dtype=u.dtype, device=u.device)",
            "torch.eye(size, dtype=u.dtype)",
            "tests/test_devices.py",
        ),
    },
    "lab/data/readers.py": {
        "a batch with an empty part is read": (
            "num_full + (rest >= num_parts)",
            "num_full + (rest > 0)",
            "tests/lab/data/test_readers.py::test_the_last_batch_is_left_out_if_a_part_would_be_empty",
        ),
        "whatever was read ahead is taken": (
            "if self._ahead is not None and self._ahead[0] == (step, part):",
            "if self._ahead is not None:",
            "tests/lab/data/test_readers.py::test_what_is_on_disk_is_read_ahead_and_the_same",
        ),
        "all steps augment alike": (
            'derive_seed(self._seed, "augmentation", step, part)',
            'derive_seed(self._seed, "augmentation", 0, part)',
            "tests/lab/data/test_readers.py::test_the_order_and_the_augmentation_are_functions_of_seed_step_and_part",
        ),
    },
    "lab/data/token_cache.py": {
        "a text in the cache is not compared with its source": (
            'return tokens if header == {**source, "tokens": digest.hexdigest()} else None',
            "return tokens",
            "tests/lab/data/test_corpus.py::test_whatever_the_damage_the_cache_is_right_or_made_anew",
        ),
    },
    "lab/data/images.py": {
        "images of formats that start programs": (
            "Image.open(file, formats=FORMATS)",
            "Image.open(file)",
            "tests/lab/data/test_image_folder.py::test_no_program_is_started_to_decode_an_image",
        ),
        "images of any size": (
            "if image.width * image.height > MAX_PIXELS:",
            "if False:",
            "tests/lab/data/test_image_folder.py::test_images_that_are_far_too_large_are_refused_before_they_are_decoded",
        ),
    },
    "lab/optimizers.py": {
        "a warm-up begins without a rate": (
            "self.learning_rate * (step + 1) / self.warmup_steps",
            "self.learning_rate * step / self.warmup_steps",
            "tests/lab/train/test_loop.py::test_learning_rates_follow_the_closed_form",
        ),
    },
    "lab/train/step.py": {
        "bad samples stay in running means": (
            "buffer.copy_(before)",
            "pass",
            "tests/lab/train/test_faults.py::test_a_bad_sample_does_not_cost_the_others_their_gradients",
        ),
    },
    "lab/train/evaluation.py": {
        "evaluations of a text forget what was before": (
            "carry = answer.carry if keeps_carry else None",
            "carry = None",
            "tests/lab/train/test_language.py::test_perplexity_is_that_of_all_tokens_with_the_last_short_segment",
        ),
    },
    "lab/run/record.py": {
        "a line of metrics counts once": (
            "np.diff(steps, prepend=0)[known]",
            "np.ones_like(steps)[known]",
            "tests/lab/run/test_record.py::test_a_line_counts_as_many_steps_as_it_covers",
        ),
        "a run that went on has diverged": (
            'has_diverged=events[-1:] == ["diverged"]',
            'has_diverged="diverged" in events',
            "tests/lab/run/test_record.py::test_a_diverged_run_says_so",
        ),
    },
    "lab/run/archive.py": {
        "unfinished runs are archived": (
            "if not (record.is_finished or record.has_diverged):",
            "if False:",
            "tests/lab/run/test_archive.py::test_a_run_that_is_not_finished_is_refused",
        ),
        "paths on a machine are archived": (
            "if _PLACE.match(found))",
            "if False)",
            "tests/lab/run/test_archive.py::test_a_run_that_names_a_place_on_the_machine_is_refused",
        ),
        "arguments are archived": (
            "replace(session, arguments=())",
            "session",
            "tests/lab/run/test_archive.py::test_nothing_of_the_command_line_is_archived",
        ),
    },
    "lab/runner.py": {
        "an evaluation of an earlier step is used again": (
            'known.split != "test" or known.step != (steps[-1] if steps else record.step)',
            'known.split != "test"',
            "tests/lab/test_runner.py::test_an_evaluation_is_made_once_and_again_where_it_does_not_fit",
        ),
    },
    "lab/report/groups.py": {
        "scores beyond the budget are compared": (
            "if row.max_evals <= budget]",
            "if True]",
            "tests/lab/report/test_groups.py::test_test_scores_are_those_at_the_evaluation_budget",
        ),
    },
    "lab/report/headline.py": {
        "what is larger is called better": (
            '"better" if is_larger == task.higher_is_better else',
            '"better" if is_larger else',
            "tests/lab/report/test_headline.py",
        ),
    },
    "lab/report/html.py": {
        "reports are not escaped": (
            "autoescape=True",
            "autoescape=False",
            "tests/lab/report/test_html.py::test_whatever_the_names_of_runs_are_the_page_is_one",
        ),
    },
    "lab/report/panels.py": {
        "control characters are drawn": (
            'text.set_text("\\n".join(map(printable, text.get_text().split("\\n"))))',
            "pass",
            "tests/lab/report/test_html.py::test_whatever_the_names_of_runs_are_the_page_is_one",
        ),
    },
    "lab/cli/arguments.py": {
        "classes are chosen in any order": (
            'key=lambda pair: pair[0].count(".")',
            'key=lambda pair: -pair[0].count(".")',
            "tests/lab/cli/test_arguments.py",
        ),
    },
    "lab/cli/evaluate.py": {
        "texts of other vocabularies are evaluated": (
            "if num_tokens != size:",
            "if False:",
            "tests/lab/cli/test_convert.py::test_data_that_does_not_fit_is_refused_in_a_sentence",
        ),
    },
    "lab/cli/repair.py": {
        "a repair may cost its score": (
            "return sign * float(new) >= least and sign",
            "return sign",
            "tests/lab/cli/test_repair.py",
        ),
    },
    "paper/judging.py": {
        "the spread over seeds decides nothing": (
            "for sign in (-1, 1) if found.std else ():",
            "for sign in ():",
            "tests/paper/test_judging.py::test_a_difference_within_the_spread_over_seeds_decides_nothing",
        ),
        "models that diverged are compared with": (
            "    if lost:",
            "    if False:",
            "tests/paper/test_judging.py::test_nothing_is_compared_with_a_model_that_diverged",
        ),
    },
    "paper/planned.py": {
        "archived runs take the place of those with weights": (
            "run if known.is_archived else known",
            "known",
            "tests/paper/test_partial.py::test_a_run_that_one_result_needs_with_its_weights_is_no_archived_one",
        ),
    },
    "solvers/_krylov.py": {
        "half of the Arnoldi vectors survive a restart": (
            "[torch.zeros_like(self.norm)] * size",
            "[torch.ones_like(self.norm)] * size",
            "tests/jacobian/test_spectrum.py::test_a_restart_keeps_the_hessenberg_matrix_that_of_the_operator",
        ),
    },
    "adjoints/shine.py": {
        "SHINE has no fallback": (
            "u = torch.where((stretch <= self.max_stretch)[:, None], u, g)",
            "u = u",
            "tests/adjoints/test_approximate.py::test_shine_falls_back_sample_by_sample",
        ),
    },
    "adjoints/unrolled.py": {
        "one evaluation too few is recorded": (
            "self.steps_of(solver) - self.last, 0)",
            "self.steps_of(solver) - self.last + 1, 0)",
            "tests/adjoints/test_unrolled.py",
        ),
    },
    "jacobian/_differences.py": {
        "two evaluations of a difference have two masks": (
            "        self._rewind()\n        return self.layout",
            "        return self.layout",
            "tests/jacobian/test_difference.py::TestRandomness",
        ),
    },
    "jacobian/frobenius.py": {
        "intervals are too short": (
            "clamp(max=2 / num_probes) / 9",
            "clamp(max=1 / num_probes) / 9",
            "tests/jacobian/test_frobenius.py::test_intervals_have_their_rate_at_every_rank",
        ),
    },
    "jacobian/penalty.py": {
        "kept vectors hide what grows": (
            "random = 0.1 * random + unit(",
            "random = unit(",
            "tests/jacobian/test_spectral_penalty.py::TestRegularizer",
        ),
    },
    "jacobian/schedules.py": {
        "a closed loop piles up what its guard cuts off": (
            "rate=0.0 if is_cut and error > 0 else self.rate",
            "rate=self.rate",
            "tests/jacobian/test_regularizers.py",
        ),
    },
    "nn/weight_norm.py": {
        "transposed convolutions are normalized along the wrong dimension": (
            "return 1 if isinstance(layer, _TRANSPOSED) else 0",
            "return 0",
            "tests/nn/test_weight_norm.py::test_values_and_gradients_are_those_of_torch",
        ),
    },
    "nn/relative_attention.py": {
        "a window is one position longer": (
            "distances >= self.window",
            "distances > self.window",
            "tests/nn/test_relative_attention.py::test_it_is_the_formula",
        ),
    },
    "models/transformer/generation.py": {
        "the token that reaches top_p is left out": (
            "kept.cumsum(dim=0) - kept >= self.top_p",
            "kept.cumsum(dim=0) >= self.top_p",
            "tests/models/test_generation.py::test_probabilities_are_what_the_options_say",
        ),
    },
    "diagnosis/verdict.py": {
        "long growth is not told": (
            "return math.exp(log_rate) if is_known and is_smooth and power > 0.5 else None",
            "return None",
            "tests/test_diagnosis.py::test_every_fate_is_told",
        ),
    },
    "models/looped_conv.py": {
        "two paths are added and not averaged": (
            "(h + branch) / 2 if",
            "h + branch if",
            "tests/models/test_looped_conv.py::test_spectral_norms_are_at_most_one",
        ),
    },
    "export/_program.py": {
        "a model is exported as it is trained": (
            "straight = _Straight(_replace_layers(model, solver, used)).eval()",
            "straight = _Straight(_replace_layers(model, solver, used))",
            "tests/export/test_export.py::test_double_precision_is_kept_and_the_model_left_as_it_is",
        ),
        "weights are normalized at every evaluation of a file": (
            "folded = _fold_constants(program)",
            "folded = program.module(check_guards=False)",
            "tests/export/test_export.py::test_weights_are_normalized_once_and_not_in_the_graph",
        ),
    },
}
"""By file and name: what is there, what takes its place, who should notice it, and which attacks should."""

MUTANTS = tuple(
    Mutant(name=name, file=file, old=old, new=new, tests=tuple(tests.split()), attacks=tuple(" ".join(attacks).split()))
    for file, faults in _FAULTS_BY_FILE.items()
    for name, (old, new, tests, *attacks) in faults.items()
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
