"""Text token by token: the model's probabilities, drawn as asked for, from any start of the solves."""

import itertools

import pytest
import torch

from steadeq import Anderson, Equilibrium, OneStep, jacobian_penalty
from steadeq.models import DEQTransformerLM, EquilibriumTransformer, StackedTransformer, ToyDEQ, TransformerXL
from steadeq.models.transformer import Sampling, generate, generation, is_language_model, vocabulary_size

VOCAB_SIZE = 20
SIZES = {"vocab_size": VOCAB_SIZE, "features": 16, "num_heads": 2, "hidden_features": 32}
TIGHT = Anderson(max_evals=300, tol=1e-12)
PROMPT = torch.tensor([3, 1, 4, 1, 5])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw_text(length):
    """Return tokens that each have a few likely successors, frequent tokens more likely than rare ones."""
    generator = seeded(1)
    frequencies = 1 / torch.arange(1, VOCAB_SIZE + 1)
    table = frequencies * torch.rand(VOCAB_SIZE, VOCAB_SIZE, generator=generator) ** 4
    tokens = [0]
    for _ in range(length - 1):
        tokens.append(int(torch.multinomial(table[tokens[-1]], 1, generator=generator)))
    return torch.tensor(tokens)


@pytest.fixture(scope="module")
def trained():
    """A regularized model after a second of training."""
    torch.manual_seed(0)
    model = DEQTransformerLM(**SIZES, memory_length=48, std=0.05, adjoint=OneStep())
    columns = draw_text(8 * 401).view(8, 401)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for begin in [*range(0, 400, 10)] * 2:
        predictions, eq = model.solve(columns[:, begin : begin + 10])
        loss = predictions.losses(columns[:, begin + 1 : begin + 11]).mean()
        penalty = jacobian_penalty(Equilibrium.at(eq.f, eq.z.detach(), *eq.inputs))
        optimizer.zero_grad()
        (loss + penalty).backward()
        optimizer.step()
    return model.double().eval().requires_grad_(False)


def tokens_of(steps):
    return [step.token for step in steps]


def untrained(**options):
    """Return a model with one equilibrium that is easy to find, as what is injected outweighs the state."""
    torch.manual_seed(0)
    model = DEQTransformerLM(**SIZES, **{"memory_length": 48, "std": 0.1, **options})
    model.double().eval().requires_grad_(False)
    for module in (model.cell.attention.qkv, model.cell.attention.position, model.cell.linear1, model.cell.linear2):
        module.g.mul_(0.3)
    model.cell.attention.out.g.mul_(20)
    return model


def explicit(**options):
    torch.manual_seed(0)
    return TransformerXL(**SIZES, num_layers=2, std=0.1, **{"memory_length": 48, **options}).double().eval()


def without_carry(kind=EquilibriumTransformer):
    torch.manual_seed(0)
    options = {"depth": 2} if kind is StackedTransformer else {"residual_scale": 0.5}
    return kind(kind="language", **SIZES, cutoffs=(8,), **options).double().eval().requires_grad_(False)


def watch(layer, monkeypatch):
    """Return a list of pairs that grows with each solve of a layer: its start, and its equilibrium."""
    solves, solve = [], type(layer).solve

    def watched(layer, *inputs, z0, **options):
        eq = solve(layer, *inputs, z0=z0, **options)
        solves.append((z0, eq.z))
        return eq

    monkeypatch.setattr(type(layer), "solve", watched)
    return solves


# Starts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_start_of_the_solves_does_not_change_the_tokens(trained, temperature):
    options = {"num_tokens": 40, "temperature": temperature, "solver": TIGHT}
    warm, cold = (
        list(trained.generate(PROMPT, **options, generator=seeded(), warm_start=warm_start))
        for warm_start in (True, False)
    )
    assert tokens_of(warm) == tokens_of(cold)
    for one, other in zip(warm, cold, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-9)


def test_a_warm_start_saves_evaluations_on_a_trained_model(trained):
    warm, cold = (
        sum(
            step.num_evals
            for step in trained.generate(PROMPT, num_tokens=60, generator=seeded(), warm_start=warm_start)
        )
        for warm_start in (True, False)
    )
    assert warm < 0.9 * cold


def test_a_warm_start_begins_at_the_equilibrium_of_the_last_position(trained, monkeypatch):
    solves = watch(trained.layer, monkeypatch)
    list(trained.generate(PROMPT, num_tokens=3))
    starts, values = zip(*solves, strict=True)
    # The prompt but its last token, and then one token at a time; nothing is read after the last one.
    assert [start.shape[1] for start in starts] == [4, 1, 1, 1]
    assert not starts[0].any()
    for start, value in zip(starts[1:], values, strict=False):
        assert torch.equal(start, value[:, -1:])
    solves.clear()
    list(trained.generate(PROMPT, num_tokens=3, warm_start=False))
    assert not any(start.any() for start, _ in solves)


# Probabilities


def assert_probabilities_of(model, prompt, steps, **options):
    """Check the tokens against one long segment."""
    whole = torch.cat([prompt, torch.tensor(tokens_of(steps))])
    with torch.no_grad():
        predictions = model(whole[None, :-1], **options)
    expected = -predictions.losses(whole[None, 1:])[0, len(prompt) - 1 :]
    actual = torch.tensor([step.log_probability for step in steps], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("warm_start", [True, False])
def test_token_by_token_is_one_long_segment(trained, warm_start):
    steps = trained.generate(PROMPT, num_tokens=20, generator=seeded(), solver=TIGHT, warm_start=warm_start, top_k=5)
    assert_probabilities_of(trained, PROMPT, list(steps), solver=TIGHT)


READERS = {
    "an adaptive softmax and a window": (lambda: untrained(cutoffs=[5, 12], div_value=2, window=7), 5),
    "explicit": (explicit, 5),
    # No position sees more of the past than the memory has.
    "scrolls out of the memory": (lambda: explicit(memory_length=4, window=5), 30),
    "without a carry": (without_carry, 5),
    "explicit without a carry": (lambda: without_carry(StackedTransformer), 5),
}


@pytest.mark.parametrize(("make", "prompt_length"), READERS.values(), ids=READERS)
def test_models_of_all_kinds_read_in_the_same_way(make, prompt_length):
    model, prompt = make(), draw_text(prompt_length)
    is_explicit = isinstance(model, TransformerXL | StackedTransformer)
    options = {} if is_explicit else {"solver": TIGHT}
    steps = list(generate(model, prompt, num_tokens=20, generator=seeded(), **options))
    assert_probabilities_of(model, prompt, steps, **options)
    assert all((step.num_evals is None) == is_explicit for step in steps)
    assert not any(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("kind", [EquilibriumTransformer, StackedTransformer])
def test_a_model_without_a_carry_sees_as_many_tokens_as_its_context_has(kind):
    model, context = without_carry(kind), 4
    options = {"solver": TIGHT} if kind is EquilibriumTransformer else {}
    steps = list(generate(model, PROMPT, num_tokens=8, generator=seeded(), context=context, **options))
    whole = torch.cat([PROMPT, torch.tensor(tokens_of(steps))])
    for index, step in enumerate(steps):
        end = len(PROMPT) + index
        with torch.no_grad():
            predictions = model(whole[None, end - context : end], **options)
        expected = float(predictions.log_probabilities()[0, -1, step.token])
        assert step.log_probability == pytest.approx(expected, abs=1e-8)


def test_a_long_prompt_is_read_in_segments(trained, monkeypatch):
    prompt = draw_text(30)
    expected = tokens_of(trained.generate(prompt, num_tokens=10, temperature=0, solver=TIGHT))
    monkeypatch.setattr(generation, "PROMPT_SEGMENT", 7)
    assert tokens_of(trained.generate(prompt, num_tokens=10, temperature=0, solver=TIGHT)) == expected


def test_a_model_without_memory_sees_the_last_token_only():
    model = untrained(memory_length=0)
    (one,) = model.generate(PROMPT, num_tokens=1, temperature=0, solver=TIGHT)
    (other,) = model.generate(PROMPT[-1:], num_tokens=1, temperature=0, solver=TIGHT)
    assert one.token == other.token
    assert one.log_probability == pytest.approx(other.log_probability, abs=1e-9)


def test_tokens_come_as_they_are_asked_for_and_leave_no_trace():
    model = untrained().requires_grad_(True)
    steps = model.generate(PROMPT, num_tokens=10**9, generator=seeded())
    first = list(itertools.islice(steps, 3))
    assert len(first) == 3
    assert torch.is_grad_enabled()
    assert model.cell.linear1._kept == []
    assert list(model.generate(PROMPT, num_tokens=0)) == []


def test_a_warm_start_begins_at_all_known_equilibria_and_changes_no_token(monkeypatch):
    model = without_carry()
    cold = list(generate(model, PROMPT, num_tokens=8, temperature=0, solver=TIGHT, warm_start=False))
    solves = watch(model.layer, monkeypatch)
    warm = list(generate(model, PROMPT, num_tokens=8, temperature=0, solver=TIGHT, context=7))
    starts, values = zip(*solves, strict=True)
    assert [start.shape[1] for start in starts] == [5, 6, 7, 7, 7, 7, 7, 7]
    assert not starts[0].any()
    for start, value in zip(starts[1:], values, strict=False):
        assert torch.equal(start, torch.cat([value, value[:, -1:]], dim=1)[:, -7:])
    # As long as nothing scrolls out of the context.
    assert tokens_of(warm[:3]) == tokens_of(cold[:3])


def test_models_say_whether_they_are_language_models():
    sizes = {name: SIZES[name] for name in ("features", "num_heads", "hidden_features")}
    blocks = (EquilibriumTransformer, StackedTransformer)
    languages = [without_carry(kind) for kind in blocks] + [untrained(), explicit()]
    others = [kind(kind="image", **sizes) for kind in blocks] + [ToyDEQ()]
    others += [kind(kind="grid", vocab_size=VOCAB_SIZE, **sizes) for kind in blocks]
    assert [vocabulary_size(model) for model in languages if is_language_model(model)] == [VOCAB_SIZE] * 4
    for model in others:
        assert not is_language_model(model)
        with pytest.raises(ValueError, match=f"{type(model).__name__}, which is not a language model"):
            generate(model, PROMPT, num_tokens=3)


# Draws


def test_a_seed_stands_for_a_text_without_the_tokens_that_are_forbidden(trained):
    forbidden = [token for token in range(VOCAB_SIZE) if token not in (2, 7)]
    texts = [
        tokens_of(trained.generate(PROMPT, num_tokens=20, generator=seeded(seed), forbidden=forbidden))
        for seed in (0, 0, 1)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert set(texts[0]) == {2, 7}


def test_temperature_zero_takes_the_most_likely_token(trained):
    for step in trained.generate(PROMPT, num_tokens=5, temperature=0, solver=TIGHT):
        assert step.log_probability >= -torch.tensor(float(VOCAB_SIZE)).log()
    assert Sampling(temperature=0).draw(torch.tensor([0.2, 0.5, 0.3]).log()) == 1
    assert Sampling(temperature=0, forbidden=(1,)).draw(torch.tensor([0.2, 0.5, 0.3]).log()) == 2
    assert Sampling(temperature=0).draw(torch.tensor([0.1, 0.45, 0.45]).log()) == 1
    # No division by zero.
    assert Sampling(temperature=1e-300).probabilities(torch.tensor([0.2, 0.5, 0.3]).log()).tolist() == [0, 1, 0]


def expected_probabilities(weights, *, temperature=1.0, top_k=None, top_p=None, forbidden=()):
    """Compute them token by token."""
    weights = [0.0 if token in forbidden else weight ** (1 / temperature) for token, weight in enumerate(weights)]
    ranked = sorted(range(len(weights)), key=lambda token: -weights[token])[:top_k]
    total = sum(weights[token] for token in ranked)
    kept, reached = [], 0.0
    for token in ranked:
        if top_p is None or reached < top_p:
            kept.append(token)
        reached += weights[token] / total
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(weights))]


WEIGHTS = [0.05, 0.3, 0.1, 0.25, 0.0, 0.2, 0.1]
CASES = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 100},
    {"top_p": 0.01},
    {"top_p": 0.6},
    {"top_p": 1.0},
    {"forbidden": (1, 5)},
    {"temperature": 2.0, "top_k": 4, "top_p": 0.7, "forbidden": (3,)},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_probabilities_are_what_the_options_say(options):
    actual = Sampling(**options).probabilities(torch.tensor(WEIGHTS, dtype=torch.float64).log())
    assert actual.tolist() == pytest.approx(expected_probabilities(WEIGHTS, **options), abs=1e-12)


@pytest.mark.parametrize("options", [{}, {"temperature": 2.0, "top_k": 4}, {"top_p": 0.7}], ids=str)
def test_tokens_are_drawn_as_often_as_that(options):
    generator, sampling = seeded(), Sampling(**options)
    log_probabilities = torch.tensor(WEIGHTS).log()
    num_draws = 4000
    drawn = torch.tensor([sampling.draw(log_probabilities, generator) for _ in range(num_draws)])
    frequencies = torch.bincount(drawn, minlength=len(WEIGHTS)) / num_draws
    expected = torch.tensor(expected_probabilities(WEIGHTS, **options))
    assert ((frequencies - expected).abs() <= 4 * (expected * (1 - expected) / num_draws).sqrt()).all()


# Refusals


@pytest.mark.parametrize(
    ("make", "options", "problem"),
    [
        (untrained, {"temperature": -1.0}, "temperature is -1.0"),
        (untrained, {"temperature": float("nan")}, "temperature is nan"),
        (untrained, {"top_k": 0}, "top_k is 0"),
        (untrained, {"top_p": 0.0}, "top_p is 0.0"),
        (untrained, {"top_p": 1.5}, "top_p is 1.5"),
        (untrained, {"num_tokens": -1}, "num_tokens is -1"),
        (untrained, {"prompt": torch.tensor([], dtype=torch.int64)}, "at least one token"),
        (untrained, {"prompt": torch.tensor([[1, 2]])}, r"of shape \(1, 2\)"),
        (untrained, {"prompt": torch.tensor([1.0])}, r"prompt is torch\.float32"),
        (untrained, {"prompt": torch.tensor([3, 20])}, "has the token 20; tokens are numbered from 0 to 19"),
        (untrained, {"prompt": torch.tensor([3, -1])}, "prompt has the token -1"),
        (explicit, {"solver": TIGHT}, "TransformerXL is an explicit network"),
        (without_carry, {"context": 0}, "context is 0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_first_token(make, options, problem):
    with pytest.raises(ValueError, match=problem):
        generate(make(), **{"prompt": PROMPT, "num_tokens": 3, **options})


@pytest.mark.parametrize(
    ("forbidden", "problem"),
    [([20], "forbidden has 20"), ([-1], "forbidden has -1"), (range(VOCAB_SIZE), "forbidden has all tokens")],
)
def test_forbidding_what_cannot_be_forbidden_is_refused(forbidden, problem):
    with pytest.raises(ValueError, match=problem):
        next(untrained().generate(PROMPT, num_tokens=3, forbidden=forbidden))


def test_a_model_that_went_wrong_says_so():
    model = untrained()
    model.softmax.biases[0].fill_(float("nan"))
    with pytest.raises(RuntimeError, match="probabilities are not numbers"):
        next(model.generate(PROMPT, num_tokens=3))
