"""Exported models compute what the models compute, for batches of any size, in torch and in ONNX Runtime."""

import json
import sys

import pytest
import torch
from export.families import EQUILIBRIA, EXPLICIT, Cell
from torch import nn

from steadeq import DEQ, Anderson, Broyden, NewtonKrylov, Phantom, Picard, Reversible
from steadeq.export import OPSET, ExportError, export_model, read_metadata
from steadeq.models import MDEQClassifier, Predictions, ToyDEQ


def eager(model, x, solver=None):
    for part in model.modules():
        if isinstance(part, DEQ) and solver is not None:
            part.solver = solver
    with torch.no_grad():
        output = model.eval()(x)
    return output.log_probabilities() if isinstance(output, Predictions) else output


def batches(x):
    """Return batches of 1, 3 and 8 samples."""
    return [torch.cat([x, x.flip(-1)])[:size] for size in (1, 3, 8)]


def run(path, **inputs):
    """Return what a file computes."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(*inputs.values())
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {name: x.numpy() for name, x in inputs.items()})
    return torch.from_numpy(found)


def check(folder, model, x, solver):
    """Export to both kinds of files, which must compute what the model computes."""
    exported = export_model(model, x, solver=solver)
    expected = [eager(model, batch, solver) for batch in batches(x)]
    paths = [folder / f"model{suffix}" for suffix in (".pt2", ".onnx")]
    for path in paths:
        exported.save(path)
        for batch, theirs in zip(batches(x), expected, strict=True):
            ours = run(path, x=batch)
            assert ours.shape == theirs.shape
            assert (ours - theirs).abs().max() < 1e-5
    return paths


def test_files_compute_what_the_model_computes_and_say_what_they_are_and_not_where_they_were_made(tmp_path):
    paths = check(tmp_path, *EQUILIBRIA["toy"](), Anderson(max_evals=3, tol=0))
    expected = {"model": "ToyDEQ", "max_evals": 3, "inputs": {"x": {"shape": ["batch", 1], "dtype": "float32"}}}
    for path in paths:
        metadata = read_metadata(path)
        assert expected.items() <= metadata.items()
        assert metadata["solver"]["name"] == "Anderson"
        assert __file__.rpartition("tests")[0].encode() not in path.read_bytes()
    assert metadata["opset"] == OPSET
    assert json.dumps(metadata)


@pytest.mark.slow
@pytest.mark.parametrize("family", EQUILIBRIA)
def test_every_family_is_exported(family, tmp_path):
    check(tmp_path, *EQUILIBRIA[family](), Anderson(max_evals=4, tol=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "solver", [Picard(max_evals=5, tol=0, damping=0.7), Broyden(max_evals=5, tol=0), Anderson(max_evals=6, tol=0)]
)
def test_every_solver_is_exported(solver, tmp_path):
    check(tmp_path, *EQUILIBRIA["conv"](), solver)


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPLICIT)
def test_explicit_networks_are_exported_without_a_solver(family, tmp_path):
    check(tmp_path, *EXPLICIT[family](), None)


def test_weights_are_normalized_once_and_not_in_the_graph():
    model = MDEQClassifier(channels=(4,), groups=2, expansion=1, final_channels=4).eval()
    program = export_model(model, torch.randn(2, 3, 4, 4), solver=Picard(max_evals=2, tol=0)).program
    # What is left of norms are those of the states: one of the start, and two for each evaluation.
    norms = [node for node in program.graph.nodes if "vector_norm" in str(node.target)]
    assert len(norms) == 1 + 2 * 2
    assert not any(name.endswith((".v", ".g", "_v", "_g")) for name in program.state_dict)
    num_weights = sum(tensor.numel() for tensor in model.state_dict().values())
    assert sum(tensor.numel() for tensor in program.state_dict.values()) < 1.1 * num_weights


def test_double_precision_is_kept_and_the_model_left_as_it_is():
    # In training it drops half of its inputs, and what is exported drops none.
    model, x = nn.Sequential(nn.Dropout(0.5), ToyDEQ()).double().train(), torch.randn(4, 1, dtype=torch.float64)
    before, layer = {name: tensor.clone() for name, tensor in model.state_dict().items()}, model[1].layer
    solver = Picard(max_evals=3, tol=0)
    program = export_model(model, x, solver=solver).program.module()
    assert model.training
    assert model[1].layer is layer
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (program(x) - eager(model, x, solver)).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("solver", "adjoint", "message"),
    [
        (Anderson(max_evals=6, tol=1e-3), None, "cannot stop early"),
        (NewtonKrylov(max_evals=6, tol=0), None, "NewtonKrylov cannot be exported"),
        (None, None, "the number of evaluations per solve is needed"),
        (Picard(max_evals=6, tol=0, damping=0.5), Reversible(), r"Reversible\(\) iterates differently"),
    ],
)
def test_what_has_no_fixed_budget_is_refused(solver, adjoint, message):
    model = ToyDEQ(adjoint=adjoint or Phantom())
    with pytest.raises(ExportError, match=message):
        export_model(model, torch.randn(2, 1), solver=solver)


class Asking(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Inverse(nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x)


class Pair(nn.Module):
    """Adds what a layer makes of one input to another."""

    def __init__(self):
        super().__init__()
        self.layer = DEQ(Cell())

    def forward(self, x, y):
        return self.layer(x) + y.unsqueeze(-1)


TWO = Picard(max_evals=2, tol=0)


@pytest.mark.parametrize(
    ("model", "x", "solver", "message"),
    [
        (nn.Linear(2, 2), torch.ones(2, 2), TWO, "Linear has no equilibrium"),
        (Asking(), torch.ones(2, 2), None, r"Asking cannot be traced by torch\.export"),
        (nn.Sequential(DEQ(Cell(), init=torch.randn_like)), torch.ones(2, 4), TWO, "draws random numbers"),
        (
            *(Pair(), (torch.ones(2, 4), torch.ones(3)), TWO),
            r"shapes \(2, 4\), \(3,\); they must be batches of the same number",
        ),
    ],
    ids=["no equilibrium", "asks for values", "draws", "lengths"],
)
def test_what_cannot_be_exported_is_refused_in_one_sentence(model, x, solver, message):
    with pytest.raises(ExportError, match=message) as caught:
        export_model(model, x, solver=solver)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_written_is_refused_in_one_sentence(tmp_path, monkeypatch):
    inverse = export_model(Inverse(), torch.eye(3).expand(2, 3, 3).clone())
    with pytest.raises(ExportError, match=r"Inverse cannot be written as ONNX.*write a \.pt2 file instead") as caught:
        inverse.to_bytes("onnx")
    assert "\n" not in str(caught.value)
    with pytest.raises(ExportError, match=r"must end with \.pt2"):
        inverse.save(tmp_path / "model.pth")
    assert not list(tmp_path.iterdir())
    find = sys.modules["importlib.util"].find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxscript" else find(name))
    with pytest.raises(ExportError, match="need onnxscript: pip install onnxscript"):
        inverse.to_bytes("onnx")


def test_models_with_several_inputs_are_exported(tmp_path):
    model, x, y = Pair().eval(), torch.randn(5, 4), torch.randn(5)
    exported = export_model(model, (torch.randn(2, 4), torch.randn(2)), solver=TWO)
    assert exported.metadata["inputs"]["x1"] == {"shape": ["batch"], "dtype": "float32"}
    model.layer.solver = TWO
    for name in ("pair.pt2", "pair.onnx"):
        exported.save(tmp_path / name)
        with torch.no_grad():
            assert (run(tmp_path / name, x0=x, x1=y) - model(x, y)).abs().max() < 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "trace",
    [
        lambda model, x: torch.export.export(model, (x,)),
        lambda model, x: torch.export.export(model, (x,), strict=True),
        lambda model, x: torch.onnx.export(model, (x,), dynamo=True, verbose=False),
        lambda model, x: torch.jit.trace(model, (x,)),
    ],
    ids=["export", "strict", "onnx", "jit"],
)
def test_tracers_that_cannot_follow_a_solve_are_told_of_export_model(trace):
    with pytest.raises(Exception, match=r"steadeq\.export\.export_model"):
        trace(DEQ(Cell()).eval(), torch.randn(2, 4))
