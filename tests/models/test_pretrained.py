"""Models as folders, and as what the Hugging Face Hub serves."""

import hashlib
import json
import resource
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from export.families import EQUILIBRIA, EXPLICIT, Cell
from safetensors.torch import load_file, save_file
from torch import nn

import steadeq
from steadeq import DEQ, Anderson, Broyden, Implicit, OneStep, Picard
from steadeq.models import (
    MDEQ,
    AbstractEquilibriumModel,
    AbstractModelConfig,
    MDEQClassifier,
    PretrainedModel,
    ResNet,
    ToyDEQ,
)

IMAGES = {"channels": (8, 8), "expansion": 2}


class Mine(AbstractEquilibriumModel):
    """A model of a user: its constructor is not like ours, two names share a weight, and one buffer is not float."""

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        scale: float = 1.0
        names: tuple[str, ...] = ("a", "b")
        note: str | None = None

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layer, self.first, self.second = DEQ(Cell()), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.tensor(3))

    def encode(self, x):
        return torch.zeros_like(x), (self.first(x),)

    def decode(self, z):
        return self.config.scale * self.second(z)


MODELS = {
    **{name: make for name, make in (EQUILIBRIA | EXPLICIT).items() if name != "sequential"},
    "mdeq backbone": lambda: (MDEQ(**IMAGES), torch.ones(1, 3, 8, 8)),
    "of a user": lambda: (Mine(Mine.Config(scale=2.0, note="é")), torch.ones(2, 4)),
}


def output(model, x):
    with torch.no_grad():
        result = model(x)
    return result.log_probabilities() if hasattr(result, "log_probabilities") else result


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_bit_for_bit(name, tmp_path):
    model, x = MODELS[name]()
    output(model, x)  # running means that are not those of a new model
    model.save_pretrained(tmp_path / "new" / "folder")
    names = sorted(p.name for p in (tmp_path / "new" / "folder").iterdir())
    assert names == ["README.md", "config.json", "model.safetensors"]
    loaded = type(model).from_pretrained(tmp_path / "new" / "folder")
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert not loaded.training
    weights = loaded.state_dict()
    assert weights.keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        assert tensor.dtype == weights[key].dtype
        assert torch.equal(tensor, weights[key])
    assert all(p.requires_grad for p in loaded.parameters())
    ours, theirs = output(model.eval(), x), output(loaded, x)
    assert all(map(torch.equal, *((ours, theirs) if isinstance(ours, tuple) else ([ours], [theirs]))))


def test_the_config_names_its_class_and_all_fields_so_that_any_class_above_finds_the_model(tmp_path):
    ToyDEQ(hidden=6).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written == {"class": "steadeq.models.toy:ToyDEQ.Config", "hidden": 6}
    for kind in (PretrainedModel, AbstractEquilibriumModel, ToyDEQ):
        assert type(kind.from_pretrained(tmp_path)) is ToyDEQ


def test_what_is_shared_is_written_once_and_stays_shared(tmp_path):
    Mine(Mine.Config()).save_pretrained(tmp_path)
    assert "second.weight" not in load_file(tmp_path / "model.safetensors")
    loaded = Mine.from_pretrained(tmp_path)
    assert loaded.second.weight is loaded.first.weight


def test_solver_adjoint_and_fields_can_be_given(tmp_path):
    MDEQClassifier(**IMAGES, final_channels=8).save_pretrained(tmp_path)
    model = MDEQClassifier.from_pretrained(tmp_path, solver=Broyden(max_evals=4), adjoint=OneStep(), dropout=0.2)
    assert (model.layer.solver, model.layer.adjoint, model.config.dropout) == (Broyden(max_evals=4), OneStep(), 0.2)
    plain = MDEQClassifier.from_pretrained(tmp_path)
    assert isinstance(plain.layer.solver, Anderson)
    assert isinstance(plain.layer.adjoint, Implicit)
    with pytest.raises(
        ValueError, match=r"does not fit .*head.classifier.weight has shape \(10, 8\) instead of \(3, 8\)"
    ):
        MDEQClassifier.from_pretrained(tmp_path, num_classes=3)
    with pytest.raises(TypeError, match=r"drop is not a field of MDEQClassifier.Config"):
        MDEQClassifier.from_pretrained(tmp_path, drop=0.1)


def test_an_explicit_network_has_no_use_for_a_solver(tmp_path):
    ResNet(blocks=(1,), widths=(4,)).save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="solver is given, but ResNet has no equilibrium layer"):
        ResNet.from_pretrained(tmp_path, solver=Picard())


# What is refused


def write(folder, **changes):
    """Save a model and change its config; a value of None removes the field."""
    ToyDEQ(hidden=6).save_pretrained(folder)
    content = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hiden": 3}, "there is no field 'hiden'. Did you mean 'hidden'"),
        ({"hidden": None}, "hidden is missing"),
        ({"hidden": "6"}, "hidden is '6'; it must be an integer"),
        ({"hidden": True}, "hidden is True; it must be an integer"),
        ({"hidden": 0}, "hidden is 0; it must be an integer >= 1"),
        ({"hidden": 7}, r"layer.cell.W1 has shape \(6, 1\) instead of \(7, 1\)"),
        ({"class": None}, "it has no 'class'"),
        ({"class": "steadeq.models.conv:ConvDEQ.Config"}, "which is not an imported ToyDEQ"),
        ({"class": "os:system"}, "which is not an imported ToyDEQ"),
    ],
)
def test_a_config_is_read_strictly(changes, message, tmp_path):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as error:
        ToyDEQ.from_pretrained(tmp_path)
    assert str(error.value).startswith(str(tmp_path))
    assert "\n" not in str(error.value)


def test_nothing_is_imported_because_a_file_says_so(tmp_path, monkeypatch):
    write(tmp_path, **{"class": "evil:Model.Config"})
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="not an imported PretrainedModel"):
        PretrainedModel.from_pretrained(tmp_path)
    assert "evil" not in sys.modules


def test_a_folder_that_is_not_whole_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config.json cannot be read: No such file"):
        ToyDEQ.from_pretrained(tmp_path)
    write(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-5])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged"):
        ToyDEQ.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model.safetensors cannot be read: No such file"):
        ToyDEQ.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is damaged: it is not JSON"):
        ToyDEQ.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="/no/such/folder is not a folder"):
        ToyDEQ.from_pretrained("/no/such/folder")


def test_a_config_of_something_else_is_not_replaced_but_a_saved_model_is(tmp_path):
    for foreign in ('{"recipe": "digits"}', '{"model_type": "bert"}', "not JSON", "[]"):
        (tmp_path / "config.json").write_text(foreign)
        with pytest.raises(ValueError, match=r"config.json is not the config of a steadeq model"):
            ToyDEQ().save_pretrained(tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
        assert (tmp_path / "config.json").read_text() == foreign
    (tmp_path / "config.json").unlink()
    ToyDEQ(hidden=6).save_pretrained(tmp_path)
    ToyDEQ(hidden=7).save_pretrained(tmp_path)
    assert ToyDEQ.from_pretrained(tmp_path).config.hidden == 7


def test_a_failed_save_leaves_the_model_that_was_there(tmp_path, monkeypatch):
    ToyDEQ(hidden=6).save_pretrained(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(ValueError, match="cannot be written: No space left on device"):
        ToyDEQ(hidden=7).save_pretrained(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_model_without_a_config_says_what_it_needs(tmp_path):
    class Plain(PretrainedModel):
        pass

    with pytest.raises(TypeError, match=r"Plain has no config; store the config that it was built from as self.config"):
        Plain().save_pretrained(tmp_path)


# What somebody else made


@pytest.mark.parametrize("name", MODELS)
def test_models_are_looked_at_before_they_take_memory(name, tmp_path, monkeypatch):
    """Every model of ours can be built without memory, so that its config is compared with the weights first."""
    model, _ = MODELS[name]()
    model.save_pretrained(tmp_path)
    builds, kind = [], type(model.config)
    plain = kind.build
    monkeypatch.setattr(kind, "build", lambda self: builds.append(torch.get_default_device().type) or plain(self))
    PretrainedModel.from_pretrained(tmp_path)
    assert builds == ["meta", "cpu"]


class Counting(PretrainedModel):
    """A model of a user that looks at numbers while it is built."""

    @dataclass(frozen=True, kw_only=True)
    class Config(AbstractModelConfig):
        def build(self):
            return Counting(self)

    def __init__(self, config):
        super().__init__()
        self.config, self.linear = config, nn.Linear(int(torch.ones(3).sum().item()), 2)


def test_a_model_that_cannot_be_built_without_numbers_is_loaded_all_the_same(tmp_path):
    model = Counting(Counting.Config())
    model.save_pretrained(tmp_path)
    assert torch.equal(Counting.from_pretrained(tmp_path).linear.weight, model.linear.weight)


HUGE = {
    "no integer": ("toy", {"hidden": 10**30}, "hidden is 1000000000000000000000000000000; it must be an integer"),
    "a huge size": ("toy", {"hidden": 2**62}, ""),
    "a large size": ("toy", {"hidden": 10**11}, "does not fit"),
    "a negative size": ("toy", {"hidden": -(10**9)}, ""),
    "many layers": ("transformer-xl", {"num_layers": 10**12}, "more parameters than"),
    "many blocks": ("resnet", {"blocks": [10**9, 1]}, "more parameters than"),
    "many halvings": ("mdeq backbone", {"num_downsamplings": 3 * 10**7}, "more parameters than"),
    "many widths": ("resnet", {"widths": [4] * 5000, "blocks": [1] * 5000}, ""),
    "many cutoffs": ("deq transformer", {"cutoffs": [4] * 3000}, "strictly between 0 and 50 tokens"),
    "channels": ("mdeq backbone", {"channels": [10**9, 10**9]}, ""),
    "tokens": ("deq transformer", {"vocab_size": 10**12}, ""),
    "a list for a class": ("toy", {"class": ["steadeq.models.toy:ToyDEQ.Config"]}, "class is ['steadeq"),
    "an object for a class": ("toy", {"class": {"a:b": 1}}, "class is {'a:b': 1}"),
    "a long class": ("toy", {"class": "a:" + 10**5 * "b"}, "..."),
    "a deep list": ("toy", {"hidden": [[[[]]]]}, "hidden is [[[[]]]]"),
}


@pytest.mark.parametrize("case", HUGE)
def test_a_config_of_any_size_is_a_sentence_in_bounded_time_and_memory(case, tmp_path):
    name, changes, message = HUGE[case]
    MODELS[name]()[0].save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"config\.json|model\.safetensors") as caught:
        PretrainedModel.from_pretrained(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500
    assert time.process_time() - start < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_that_nothing_can_be_computed_with_are_refused_by_name(dtype, tmp_path):
    ToyDEQ(hidden=6).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"layer.cell.b": weights["layer.cell.b"].to(dtype)}, tmp_path / "model.safetensors")
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(
        ValueError, match=rf"model\.safetensors does not fit .*: layer\.cell\.b is {name} instead of float32"
    ):
        ToyDEQ.from_pretrained(tmp_path)


def test_a_counter_is_not_taken_from_a_number_of_another_kind(tmp_path):
    Mine(Mine.Config()).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"count": torch.tensor(3.5)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="count is float32 instead of int64"):
        Mine.from_pretrained(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_precision_is_kept_as_it_was_saved(dtype, tmp_path):
    model = ToyDEQ(hidden=6).to(dtype)
    model.save_pretrained(tmp_path)
    loaded = ToyDEQ.from_pretrained(tmp_path)
    assert all(map(torch.equal, loaded.parameters(), model.parameters()))
    assert {tensor.dtype for tensor in loaded.parameters()} == {dtype}


# The Hub

UNREADABLE = "is not a local folder, and cannot be read from the Hugging Face Hub: "
COMMIT = "0123456789abcdef0123456789abcdef01234567"


HOSTILE = {
    "an ETag that leads out of the cache": ({"ETag": '"../../../../escaped"'}, 200),
    "a linked ETag that leads out of the cache": ({"X-Linked-Etag": '"../../../../escaped"'}, 200),
    "an ETag that is a path": ({"ETag": '"{folder}/escaped"'}, 200),
    "a commit that leads out of the cache": ({"X-Repo-Commit": "../../../../escaped"}, 200),
    "a commit of no file": ({"X-Repo-Commit": "../../../../escaped", "X-Error-Code": "EntryNotFound"}, 404),
    "redirects to itself": ({"Location": "/hostile/5/resolve/main/config.json"}, 302),
    "redirects to nowhere": ({"Location": "http://[::1"}, 307),
    "redirects to a file": ({"Location": "file:///etc/passwd"}, 302),
}
"""Headers that the client makes names of files of, or that send it in circles, with their status."""


class Hub(BaseHTTPRequestHandler):
    """Serves a folder as the model `someone/toy`, in the way of the Hub, and `hostile/N` with the headers of above."""

    folder: Path
    requests: ClassVar[list[str]] = []

    def do_GET(self):
        self.requests.append(self.path)
        name, _, place = self.path.removeprefix("/").partition("/resolve/")
        revision, _, file = place.partition("/")
        path = self.folder / file
        is_known = name == "someone/toy" and revision in ("main", COMMIT) and path.is_file()
        content, status = (path.read_bytes(), 200) if is_known else (b"", 404)
        headers = {"X-Repo-Commit": COMMIT, "Content-Length": str(len(content))}
        if name.startswith("hostile/"):
            more, status = list(HOSTILE.values())[int(name.removeprefix("hostile/"))]
            more = {key: value.format(folder=self.folder.parent) for key, value in more.items()}
            headers |= {"ETag": '"a"', **more}
        elif is_known:
            headers["ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
        else:
            headers["X-Error-Code"] = "EntryNotFound" if name == "someone/toy" else "RepoNotFound"
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_args):
        pass


SCRIPT = """
import sys
from steadeq.models import ToyDEQ
for name in sys.argv[1:]:
    try:
        print(float(ToyDEQ.from_pretrained(name).layer.cell.b.detach().double().sum()))
    except ValueError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Load models by their names from a Hub, in another process; return its folder, its requests and what is said."""
    pytest.importorskip("huggingface_hub")
    folder = tmp_path_factory.mktemp("hub")
    ToyDEQ(hidden=6).save_pretrained(folder / "served")
    names = ["someone/toy", "someone/else", "...", *(f"hostile/{number}" for number in range(len(HOSTILE)))]
    handler = type("Handler", (Hub,), {"folder": folder / "served", "requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(folder / "cache"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "PATH": "/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(steadeq.__file__).parents[1]),
        }
        command = [sys.executable, "-c", SCRIPT, *names]
        result = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        server.shutdown()
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    return folder, handler.requests, dict(zip(names, lines, strict=True))


def test_a_model_comes_from_the_hub_and_what_is_not_there_is_refused(asked):
    folder, requests, said = asked
    bias = ToyDEQ.from_pretrained(folder / "served").layer.cell.b
    assert float(said["someone/toy"]) == float(bias.detach().double().sum())
    # The weights are those of the commit that the config came from.
    assert f"/someone/toy/resolve/{COMMIT}/model.safetensors" in requests
    assert said["someone/else"].startswith(f"someone/else {UNREADABLE}")
    assert said["..."].startswith("... is not a local folder")


def test_a_hostile_hub_is_a_sentence_and_writes_nothing_outside_of_the_cache(asked):
    folder, _, said = asked
    for name in (f"hostile/{number}" for number in range(len(HOSTILE))):
        assert said[name].startswith(f"{name} {UNREADABLE}")
    assert sorted(path.name for path in folder.iterdir()) == ["cache", "served"]
    assert not list(folder.rglob("*escaped*"))


def test_without_the_package_a_name_on_the_hub_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"someone/toy is not a local folder, .*pip install huggingface_hub"):
        ToyDEQ.from_pretrained("someone/toy")
    with pytest.raises(ValueError, match=r"pip install huggingface_hub"):
        ToyDEQ().push_to_hub("someone/toy")


def test_pushing_uploads_all_files(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    calls = []

    class Api:
        def create_repo(self, repo_id, *, private, exist_ok):
            calls.append((repo_id, private, exist_ok))

        def upload_folder(self, *, repo_id, folder_path):
            calls.append((repo_id, sorted(p.name for p in Path(folder_path).iterdir())))
            assert ToyDEQ.from_pretrained(folder_path).config.hidden == 6
            return "https://hub/commit"

    monkeypatch.setattr(hub, "HfApi", Api)
    assert ToyDEQ(hidden=6).push_to_hub("someone/toy", private=True) == "https://hub/commit"
    assert calls == [("someone/toy", True, True), ("someone/toy", ["README.md", "config.json", "model.safetensors"])]
