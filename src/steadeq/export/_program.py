"""From a model to a graph: equilibrium layers of a fixed budget, and weights that are computed once."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from .._internal.trees import Layout
from ..adjoints import AbstractAdjoint
from ..equilibrium import Equilibrium
from ..models import Predictions
from ..nn import DEQ
from ..solvers import AbstractSolver
from ..solvers._solve import Options, solve


class ExportError(ValueError):
    """A model cannot be exported as asked for; the message is one sentence that says why, and what to do."""


def trace(
    model: nn.Module, inputs: tuple[Tensor, ...], *, solver: AbstractSolver | None
) -> torch.export.ExportedProgram:
    """Return the program of a model whose equilibria are found by a fixed number of evaluations.

    Args:
        model: The model; it is left as it is, and traced in evaluation mode.
        inputs: Batches of any values; the program takes any batch of samples of these shapes.
        solver: Solver of all equilibria; None for models without any.

    Raises:
        ExportError: Some part cannot be traced.
    """
    for x in inputs:
        if x.dim() == 0 or x.shape[0] == 0:
            raise ExportError(f"x has shape {tuple(x.shape)}; it must be a batch of samples.")
        if x.shape[0] != inputs[0].shape[0]:
            found = ", ".join(str(tuple(x.shape)) for x in inputs)
            raise ExportError(f"The inputs have shapes {found}; they must be batches of the same number of samples.")
    # A batch of one looks to the tracer as if all batches had one sample.
    inputs = tuple(torch.cat([x, x]) if x.shape[0] == 1 else x for x in inputs)
    used: set[str] = set()
    straight = _Straight(_replace_layers(model, solver, used)).eval()
    batch = torch.export.Dim("batch", min=1)
    shapes = tuple({0: batch} for _ in inputs)
    with torch.no_grad(), _sentences(model):
        more = (shapes[1:],) if shapes[1:] else ()
        program = torch.export.export(straight, inputs, dynamic_shapes=({0: batch}, *more))
        if solver is not None and not used:
            raise ExportError(f"{type(model).__name__} has no equilibrium; export it without a solver.")
        _refuse_randomness(program.graph)
        folded = _fold_constants(program)
        program = torch.export.export(folded, inputs, dynamic_shapes=shapes)
    for node in program.graph.nodes:
        # Where lines of code are on this machine concerns nobody who gets the file.
        for name in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom"):
            node.meta.pop(name, None)
    return program


class _Straight(nn.Module):
    """A model that maps tensors to tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        output = self.model(x, *more)
        return output.log_probabilities() if isinstance(output, Predictions) else output


class _StraightDEQ(nn.Module):
    """An equilibrium layer without questions to the values of tensors, instead of a `DEQ`."""

    def __init__(self, name: str, layer: DEQ, solver: AbstractSolver | None, used: set[str]) -> None:
        super().__init__()
        # Not as an attribute, which the tracer would give back as it was.
        self.note_use = lambda: used.add(name)
        self.cell, self.adjoint = layer.cell, layer.adjoint
        self.solver = None if solver is None else _solver_of(layer.adjoint, solver)
        self.initial_state, self.batch_dims = layer.initial_state, layer.batch_dims

    def forward(self, *inputs: Any, z0: Any = None, **unused: Any) -> Any:
        if self.solver is None:
            raise ExportError(
                "The model has an equilibrium, so the number of evaluations per solve is needed: pass --evals 6 or "
                "solver=Anderson(max_evals=6, tol=0)."
            )
        self.note_use()
        z0 = self.initial_state(*inputs) if z0 is None else z0
        layout = Layout(z0, batch_dims=self.batch_dims)
        options = Options(keep_last=self.adjoint.records and self.solver.is_loop)
        z, _, _ = solve(self.cell, layout.pack(z0), inputs, solver=self.solver, layout=layout, options=options)
        return layout.unpack(z)

    def solve(self, *inputs: Any, **options: Any) -> Equilibrium:
        return Equilibrium(self.cell, self(*inputs, **options), inputs)


def _solver_of(adjoint: AbstractAdjoint, solver: AbstractSolver) -> AbstractSolver:
    """Return the solver that a layer would use, or refuse it."""
    if adjoint.retraces:
        raise ExportError(
            f"A model with adjoint={type(adjoint).__name__}() iterates differently and cannot be exported; give the "
            "model another adjoint, such as Implicit(), or export a run that was trained with another one."
        )
    try:
        chosen = adjoint.forward_solver(solver)
    except ValueError as error:
        raise ExportError(str(error)) from error
    if chosen.always_syncs:
        raise ExportError(
            f"{type(chosen).__name__} cannot be exported, because its steps depend on values of tensors; choose "
            "Picard, Anderson or Broyden."
        )
    if chosen.tol != 0:
        raise ExportError(
            f"tol is {chosen.tol:g}, but an exported program cannot stop early; set tol=0, so that it always makes "
            "max_evals evaluations."
        )
    return chosen


def _replace_layers(model: nn.Module, solver: AbstractSolver | None, used: set[str]) -> nn.Module:
    """Return a copy of a model, with the same weights in memory, whose layers note in `used` that they are used."""
    tensors = [*model.parameters(), *model.buffers()]
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    if isinstance(twin, DEQ):
        return _StraightDEQ("", twin, solver, used)
    for name, part in list(twin.named_modules()):
        if isinstance(part, DEQ):
            twin.set_submodule(name, _StraightDEQ(name, part, solver, used))
    return twin


def _refuse_randomness(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        schema = node.target._schema.arguments
        given = {argument.name: argument.default_value for argument in schema}
        given.update(zip(given, node.args, strict=False), **node.kwargs)
        # Those that drop nothing are the same each time, as attention with a dropout of zero.
        if given.get("dropout_p") != 0 and given.get("train") is not False:
            raise ExportError(
                f"The model draws random numbers ({node.target}), which an exported program would not repeat; make it "
                "deterministic in evaluation mode."
            )


def _fold_constants(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """Return a program in which all that depends on weights alone is a constant."""
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    graph = module.graph
    values: dict[fx.Node, Any] = {}
    known: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            values[node] = operator.attrgetter(node.target)(module)
        elif node.op == "call_function" and all(source in values for source in node.all_input_nodes):
            # The others are about sizes, and cheap.
            kinds = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)
            if not isinstance(node.target, kinds) and node.target is not operator.getitem:
                continue
            # Evaluations of one cell compute the same many times.
            key = (node.target, repr(node.args), repr(node.kwargs))
            if key in known:
                node.replace_all_uses_with(known[key])
                continue
            known[key] = node
            arguments, options = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*arguments, **options)
    frontier = [
        node for node in values if node.op == "call_function" and any(user not in values for user in node.users)
    ]
    for index, node in enumerate(frontier):
        # A list of tensors stays; what is taken from it is folded.
        if isinstance(values[node], Tensor):
            module.register_buffer(
                f"folded_{index}", values[node].detach().clone(memory_format=torch.contiguous_format)
            )
            with graph.inserting_before(node):
                constant = graph.get_attr(f"folded_{index}")
            constant.meta.update(node.meta)
            node.replace_all_uses_with(constant)
    graph.eliminate_dead_code()
    # A new module has those tensors only that the graph still needs.
    return fx.GraphModule(module, graph)


@contextmanager
def _sentences(model: nn.Module) -> Iterator[None]:
    """Turn what the tracer says into a sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ExportError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ExportError(
            f"{type(model).__name__} cannot be traced by torch.export, because it reads the values of tensors or does "
            f"something that a graph cannot represent: {reason}"
        ) from error
