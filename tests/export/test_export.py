"""Exported models compute what the models compute, for batches of any size, in torch and in ONNX Runtime."""

import io
import json
import sys

import pytest
import torch
from export.families import EQUILIBRIA, EXPLICIT, Cell
from torch import nn

from steadeq import DEQ, Anderson, Broyden, NewtonKrylov, Phantom, Picard, Reversible
from steadeq.export import OPSET, ExportError, export_model, read_metadata
from steadeq.models import MDEQClassifier, Predictions, ToyDEQ

SIX = Anderson(max_evals=6, tol=0)


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


def run_onnx(content, x):
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(session.run(None, {"x": batch.numpy()})[0]) for batch in x]


def check(model, x, solver, *, kinds=("pt2", "onnx")):
    exported = export_model(model, x, solver=solver)
    expected = [eager(model, batch, solver) for batch in batches(x)]
    for kind in kinds:
        content = exported.to_bytes(kind)
        if kind == "pt2":
            program = torch.export.load(io.BytesIO(content)).module()
            found = [program(batch) for batch in batches(x)]
        else:
            found = run_onnx(content, batches(x))
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            assert (ours - theirs).abs().max() < 1e-5
    return exported


def test_a_file_of_torch_export_computes_what_the_model_computes():
    check(*EQUILIBRIA["toy"](), Anderson(max_evals=3, tol=0), kinds=["pt2"])


def test_a_file_of_onnx_computes_what_the_model_computes():
    check(*EQUILIBRIA["toy"](), Anderson(max_evals=3, tol=0), kinds=["onnx"])


@pytest.mark.slow
@pytest.mark.parametrize("family", EQUILIBRIA)
def test_every_family_is_exported(family):
    check(*EQUILIBRIA[family](), Anderson(max_evals=4, tol=0))


@pytest.mark.slow
@pytest.mark.parametrize("solver", [Picard(max_evals=5, tol=0, damping=0.7), Broyden(max_evals=5, tol=0), SIX])
def test_every_solver_is_exported(solver):
    check(*EQUILIBRIA["conv"](), solver)


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPLICIT)
def test_explicit_networks_are_exported_without_a_solver(family):
    check(*EXPLICIT[family](), None)


def test_double_precision_is_kept():
    model, x = ToyDEQ().double(), torch.randn(4, 1, dtype=torch.float64)
    solver = Picard(max_evals=3, tol=0)
    program = export_model(model, x, solver=solver).program.module()
    assert (program(x) - eager(model, x, solver)).abs().max() < 1e-10


def test_weights_are_normalized_once_and_not_in_the_graph():
    model = MDEQClassifier(channels=(4,), groups=2, expansion=1, final_channels=4).eval()
    program = export_model(model, torch.randn(2, 3, 4, 4), solver=Picard(max_evals=2, tol=0)).program
    # What is left of norms are those of the states: one of the start, and two for each evaluation.
    norms = [node for node in program.graph.nodes if "vector_norm" in str(node.target)]
    assert len(norms) == 1 + 2 * 2
    assert not any(name.endswith((".v", ".g", "_v", "_g")) for name in program.state_dict)
    num_weights = sum(tensor.numel() for tensor in model.state_dict().values())
    assert sum(tensor.numel() for tensor in program.state_dict.values()) < 1.1 * num_weights


def test_the_model_is_left_as_it_is():
    model = ToyDEQ().train()
    before, layer = {name: tensor.clone() for name, tensor in model.state_dict().items()}, model.layer
    export_model(model, torch.randn(2, 1), solver=Picard(max_evals=2, tol=0))
    assert model.training
    assert model.layer is layer
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_files_say_what_they_are_and_not_where_they_were_made(tmp_path):
    exported = export_model(ToyDEQ(), torch.randn(1, 1), solver=Anderson(max_evals=2, tol=0))
    expected = {"model": "ToyDEQ", "max_evals": 2, "inputs": {"x": {"shape": ["batch", 1], "dtype": "float32"}}}
    for name in ("toy.pt2", "toy.onnx"):
        exported.save(tmp_path / name)
        metadata = read_metadata(tmp_path / name)
        assert expected.items() <= metadata.items()
        assert metadata["solver"]["name"] == "Anderson"
        assert __file__.rpartition("tests")[0].encode() not in (tmp_path / name).read_bytes()
    assert metadata["opset"] == OPSET
    assert json.dumps(metadata)


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


def test_a_network_without_an_equilibrium_takes_no_solver():
    with pytest.raises(ExportError, match="Linear has no equilibrium"):
        export_model(nn.Linear(2, 2), torch.randn(2, 2), solver=SIX)


class Asking(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_a_model_that_asks_for_values_is_refused_in_one_sentence():
    with pytest.raises(ExportError, match=r"Asking cannot be traced by torch\.export") as caught:
        export_model(Asking(), torch.randn(2, 2))
    assert "\n" not in str(caught.value)


def test_a_model_that_draws_random_numbers_is_refused():
    model = nn.Sequential(DEQ(Cell(), init=torch.randn_like))
    with pytest.raises(ExportError, match="draws random numbers"):
        export_model(model, torch.randn(2, 4), solver=Picard(max_evals=2, tol=0))


class Inverse(nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x)


def test_an_operation_that_onnx_lacks_is_refused_in_one_sentence():
    exported = export_model(Inverse(), torch.eye(3).expand(2, 3, 3).clone())
    with pytest.raises(ExportError, match=r"Inverse cannot be written as ONNX.*write a \.pt2 file instead") as caught:
        exported.to_bytes("onnx")
    assert "\n" not in str(caught.value)


def test_without_onnx_a_sentence_says_what_to_install(monkeypatch):
    exported = export_model(nn.Linear(2, 2), torch.randn(2, 2))
    find = sys.modules["importlib.util"].find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxscript" else find(name))
    with pytest.raises(ExportError, match="need onnxscript: pip install onnxscript"):
        exported.to_bytes("onnx")


class Pair(nn.Module):
    """Adds what a layer makes of one input to another."""

    def __init__(self):
        super().__init__()
        self.layer = DEQ(Cell())

    def forward(self, x, y):
        return self.layer(x) + y.unsqueeze(-1)


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_models_with_several_inputs_are_exported(kind):
    model, inputs = Pair().eval(), (torch.randn(2, 4), torch.randn(2))
    exported = export_model(model, inputs, solver=SIX)
    content = exported.to_bytes(kind)
    x, y = torch.randn(5, 4), torch.randn(5)
    if kind == "pt2":
        found = torch.export.load(io.BytesIO(content)).module()(x, y)
    else:
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(None, {"x0": x.numpy(), "x1": y.numpy()})[0])
    model.layer.solver = SIX
    with torch.no_grad():
        assert (found - model(x, y)).abs().max() < 1e-5
    assert exported.metadata["inputs"]["x1"] == {"shape": ["batch"], "dtype": "float32"}


def test_inputs_of_different_lengths_are_refused():
    with pytest.raises(ExportError, match=r"shapes \(2, 4\), \(3,\); they must be batches of the same number"):
        export_model(Pair(), (torch.randn(2, 4), torch.randn(3)), solver=SIX)


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


def test_other_endings_are_refused(tmp_path):
    exported = export_model(nn.Linear(2, 2), torch.randn(2, 2))
    with pytest.raises(ExportError, match=r"must end with \.pt2"):
        exported.save(tmp_path / "model.pth")
    assert not list(tmp_path.iterdir())
