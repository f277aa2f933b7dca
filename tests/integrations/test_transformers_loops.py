"""The loops within looped models of Transformers, against the models themselves."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the extra integrations: make integrations")
pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "pad_token_id": 0}


def make(kind):
    torch.manual_seed(0)
    if kind == "hrm":
        if not hasattr(transformers, "HrmTextConfig"):
            pytest.skip("this version has no HRM-Text")
        config = transformers.HrmTextConfig(
            **SIZES, num_hidden_layers=1, num_key_value_heads=2, head_dim=8, H_cycles=3, L_cycles=2
        )
        return transformers.HrmTextForCausalLM(config).eval()
    config = transformers.AlbertConfig(**SIZES, embedding_size=8, num_hidden_layers=3)
    return transformers.AlbertForMaskedLM(config).eval()


@pytest.mark.parametrize("kind", ["hrm", "albert"])
def test_the_loop_is_that_of_the_model(kind):
    from steadeq.integrations.transformers import looped

    model, tokens = make(kind), torch.randint(1, 17, (3, 6))
    labels = torch.randint(1, 17, (3, 6))
    loop = looped(model, tokens, labels=labels)
    state = loop.z0
    with torch.no_grad():
        for _ in range(loop.training_depth):
            state = loop.f(state)
        logits = model(tokens).logits
    expected = (logits.argmax(dim=-1) == labels).double().mean(dim=1)
    assert loop.training_depth == 3
    torch.testing.assert_close(loop.metric(state).double(), expected)
    head = model.lm_head if kind == "hrm" else model.predictions
    torch.testing.assert_close(head(state[0] if kind == "hrm" else state), logits)
    diagnosis = loop.diagnose(max_evals=16, max_products=4)
    torch.testing.assert_close(diagnosis.metric[3], expected)
    assert "token accuracy" in str(diagnosis)


def test_a_model_without_a_known_loop_is_refused():
    from steadeq.integrations.transformers import looped

    config = transformers.BertConfig(**SIZES, num_hidden_layers=1)
    with pytest.raises(ValueError, match="model is of type 'bert'; known are"):
        looped(transformers.BertModel(config), torch.ones(2, 4, dtype=torch.int64))
