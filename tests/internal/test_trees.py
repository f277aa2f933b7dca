import dataclasses
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from steadeq import Anderson, Picard, fixed_point
from steadeq._internal.autocast import state_layout
from steadeq._internal.trees import Layout, Shared, check_inputs, describe, leaves, map_leaves


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]

STRUCTURES = {
    "tensor": lambda a, b, c: a,
    "one_tuple": lambda a, b, c: (a,),
    "tuple": lambda a, b, c: (a, b),
    "list": lambda a, b, c: [a, b, c],
    "namedtuple": lambda a, b, c: Pair(a, b),
    "dict": lambda a, b, c: {"b": a, "a": b},
    "nested": lambda a, b, c: (a, {"x": [b], "y": Pair(c, a)}),
}

SHAPES = {
    "vectors": ((5,), (2,), (1,)),
    "scalars": ((), (3,), ()),
    "images": ((2, 3, 4), (1, 2, 2), (4, 1, 1)),
    "volumes": ((2, 2, 3, 2), (3, 2), (2, 1, 2, 1)),
}


def make(structure, shapes, dtypes, batch_size=3):
    tensors = [torch.randn(batch_size, *shape).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return STRUCTURES[structure](*tensors)


def assert_same(actual, expected):
    assert type(actual) is type(expected)
    if isinstance(expected, Tensor):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    else:
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)


class TestRoundTrip:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
    @pytest.mark.parametrize("structure", STRUCTURES)
    def test_unpacking_a_packed_state_gives_it_back(self, structure, shapes, dtype):
        z = make(structure, shapes, [dtype] * 3)
        layout = Layout(z)
        matrix = layout.pack(z)
        assert matrix.shape == (3, layout.dim) == (3, sum(leaf[0].numel() for leaf in leaves(z)))
        assert_same(layout.unpack(matrix), z)
        if dtype == torch.float32:
            storage = matrix.untyped_storage().data_ptr()
            assert all(leaf.untyped_storage().data_ptr() == storage for leaf in leaves(layout.unpack(matrix)))
        # A matrix of other rows is that many samples.
        assert {leaf.shape[0] for leaf in leaves(layout.unpack(torch.randn(7, layout.dim)))} == {7}

    @pytest.mark.parametrize("structure", ["tuple", "namedtuple", "list", "dict", "nested"])
    def test_leaves_of_different_dtypes_keep_theirs(self, structure):
        z = make(structure, SHAPES["images"], [torch.bfloat16, torch.float64, torch.float16])
        layout = Layout(z)
        assert layout.dtype == torch.float64
        assert_same(layout.unpack(layout.pack(z)), z)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_the_matrix_has_at_least_single_precision(self, dtype):
        layout = Layout(torch.zeros(2, 3, dtype=dtype))
        assert layout.dtype == layout.pack(torch.zeros(2, 3, dtype=dtype)).dtype
        assert layout.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert layout.rounds == (dtype in (torch.bfloat16, torch.float16))
        assert layout.eps == torch.finfo(dtype).eps

    def test_precision_is_that_of_the_narrowest_leaf_and_of_autocast_inside_it(self):
        z = (torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.bfloat16))
        assert Layout(z).eps == torch.finfo(torch.bfloat16).eps
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert state_layout(torch.zeros(2, 3)).eps == torch.finfo(torch.bfloat16).eps
            # A layout by itself reads nothing but its arguments.
            assert Layout(torch.zeros(2, 3)).eps == torch.finfo(torch.float32).eps
        assert state_layout(torch.zeros(2, 3)).eps == torch.finfo(torch.float32).eps
        assert Layout(torch.zeros(2, 3), autocast_dtype=torch.float16).eps == torch.finfo(torch.float16).eps

    @pytest.mark.parametrize(
        ("shape", "memory_format"),
        [
            *((shape, torch.contiguous_format) for shape in ((4,), (4, 3), (4, 2, 3, 5))),
            ((4, 3, 5, 2), torch.channels_last),
            ((4, 3, 2, 5, 2), torch.channels_last_3d),
        ],
    )
    def test_a_dense_tensor_is_packed_and_unpacked_by_views(self, shape, memory_format):
        z = torch.randn(shape).to(memory_format=memory_format)
        layout = Layout(z)
        matrix = layout.pack(z)
        assert matrix.is_contiguous()
        assert matrix.data_ptr() == z.data_ptr()
        back = layout.unpack(matrix)
        assert back.data_ptr() == z.data_ptr()
        assert back.is_contiguous(memory_format=memory_format)
        assert_same(back, z)

    @pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
    @pytest.mark.parametrize("image_format", [torch.contiguous_format, torch.channels_last])
    def test_an_image_in_another_memory_format_is_read_element_by_element(self, memory_format, image_format):
        z = torch.randn(2, 3, 4, 5).to(memory_format=memory_format)
        image = torch.randn(2, 3, 4, 5).to(memory_format=image_format)
        layout = Layout(z)
        assert_same(layout.unpack(layout.pack_image(image, 2)), image)

    def test_a_transposed_tensor_is_packed_by_its_elements(self):
        z = torch.randn(5, 4, 3).transpose(0, 1)
        layout = Layout(z)
        torch.testing.assert_close(layout.pack(z), z.contiguous().flatten(1), rtol=0, atol=0)
        assert_same(layout.unpack(layout.pack(z)), z)


def assert_one_sentence(error, *parts):
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    for part in parts:
        assert part in text


ONE, TWO = torch.zeros(2, 3), torch.zeros(2, 4)


@dataclasses.dataclass(frozen=True)
class Context:
    x: torch.Tensor
    scale: float
    mask: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Carry:
    high: torch.Tensor
    low: torch.Tensor


@pytest.mark.parametrize(
    ("z0", "kind", "parts"),
    [
        *((z0, ValueError, ("z0 has no tensors", describe(z0), "or dataclass")) for z0 in ((), ({}, []))),
        *(
            ((ONE, ONE.to(dtype)), TypeError, ("z0 holds a leaf of type", str(dtype), "floating-point"))
            for dtype in (torch.int64, torch.complex64)
        ),
        ({"a": ONE, "b": None}, TypeError, ("leaf of type NoneType", "floating-point tensor")),
        ((ONE, Context(ONE, 1.0)), TypeError, ("z0 holds a leaf of type float", "floating-point tensor")),
        ((ONE, torch.zeros(3, 3)), ValueError, ("z0 has leaves of shapes", "(2, 3)", "(3, 3)", "the same batch")),
        (torch.tensor(1.0), ValueError, ("z0 has leaves of shapes",)),
        ((ONE, ONE.to("meta")), ValueError, ("z0 has leaves on", "cpu", "meta", "one device")),
        *(
            (torch.zeros(shape), ValueError, ("z0 has an empty batch", str(shape), "at least one element"))
            for shape in ((0, 3), (2, 0))
        ),
    ],
)
def test_what_is_no_state_is_refused_before_f_is_called(z0, kind, parts):
    with pytest.raises(kind) as error:
        fixed_point(lambda z: pytest.fail("f was called"), z0)
    assert_one_sentence(error, *parts)


@pytest.mark.parametrize(
    ("z0", "image", "parts"),
    [
        *(
            (z0, image, (f"f returned {describe(image)}", f"the state is {describe(z0)}", "same structure"))
            for z0, image in (
                (ONE, (ONE,)),
                ((ONE, ONE), [ONE, ONE]),
                ((ONE, ONE), (ONE,)),
                ({"a": ONE}, {"b": ONE}),
                ((ONE, [ONE]), (ONE, ONE)),
            )
        ),
        (Carry(ONE, ONE), (ONE, ONE), ("f returned (tensor, tensor)", "the state is Carry(high=tensor, low=tensor)")),
        *((ONE, image, (f"f returned {type(image).__name__}", "the state is tensor")) for image in (None, 1.0)),
        *(
            (ONE, torch.zeros(shape), (f"f returned a tensor of shape {shape}", "(2, 3)"))
            for shape in ((2, 4), (2,), (3, 3), (2, 3, 1), (1, 3))
        ),
        (
            {"a": ONE, "b": TWO},
            {"a": ONE, "b": ONE},
            ("leaf 1 of {'a': tensor, 'b': tensor}", "shape (2, 3)", "(2, 4)"),
        ),
        *(
            (ONE, ONE.to(dtype), (f"of dtype {dtype}", "the state has torch.float32"))
            for dtype in (torch.float64, torch.bfloat16, torch.int64)
        ),
        (ONE, ONE.to("meta"), ("f returned a tensor on meta", "the state is on cpu")),
    ],
)
def test_images_that_are_not_like_the_state_are_refused(z0, image, parts):
    with pytest.raises(ValueError, match="f returned") as error:
        fixed_point(lambda z: image, z0)
    assert_one_sentence(error, *parts)


def test_a_wrong_image_is_refused_after_the_first_evaluation_too():
    calls = []

    def f(z):
        calls.append(1)
        return z + 1 if len(calls) < 3 else torch.cat([z, z], dim=1)

    with pytest.raises(ValueError, match=r"shape \(2, 6\)"):
        fixed_point(f, ONE, solver=Picard(tol=1e-12))


class TestRefusedInputs:
    @pytest.mark.parametrize("given", [{"a": [torch.zeros(4), torch.zeros(3)]}, Context(torch.zeros(3), 1.0)])
    def test_an_input_of_another_batch_inside_a_structure(self, given):
        with pytest.raises(ValueError, match=r"inputs\[0\] has shape \(3,\)"):
            fixed_point(lambda z, x: z, torch.zeros(4, 2), given)

    @pytest.mark.parametrize("shape", [(), (2,), (1, 4), (5, 4)])
    def test_an_input_of_another_batch(self, shape):
        with pytest.raises(ValueError, match=r"inputs\[1\] has shape") as error:
            check_inputs((torch.zeros(4, 2), torch.zeros(shape)), Layout(torch.zeros(4, 1)))
        assert_one_sentence(error, str(tuple(shape)), "(4)", "closure")


class TestImages:
    def test_a_narrower_image_is_accepted_under_autocast(self):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            eq = fixed_point(lambda z: (0.5 * z + 1).bfloat16(), torch.zeros(2, 4), solver=Picard(tol=1e-2))
        assert eq.z.dtype == torch.float32
        torch.testing.assert_close(eq.z, torch.full((2, 4), 2.0), rtol=0.02, atol=0)

    def test_channels_last_reaches_f_at_every_evaluation(self):
        seen = []

        def f(z):
            seen.append(z.is_contiguous(memory_format=torch.channels_last))
            return 0.5 * z + 1

        z = fixed_point(f, torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)).z
        assert all(seen)
        assert z.is_contiguous(memory_format=torch.channels_last)


class TestOwnership:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("structure", ["tensor", "tuple", "dict"])
    def test_an_f_that_writes_into_its_argument_is_refused(self, structure, dtype):
        # The last leaf is narrow, and so a copy.
        z0 = make(structure, SHAPES["vectors"], [dtype, torch.bfloat16, dtype])
        with pytest.raises(ValueError, match="f changed the state in place") as error:
            fixed_point(lambda z: map_leaves(lambda leaf: leaf.mul_(0.5).add_(1), z), z0)
        assert_one_sentence(error, "return a new one")

    def test_an_f_that_writes_into_its_own_intermediates_is_fine(self):
        z = fixed_point(lambda z: (0.5 * z).add_(1), torch.zeros(2, 3), solver=Picard(tol=1e-5)).z
        torch.testing.assert_close(z, torch.full((2, 3), 2.0), rtol=1e-4, atol=0)

    @pytest.mark.parametrize("max_evals", [1, 2, 10])
    @pytest.mark.parametrize("structure", ["tensor", "tuple"])
    def test_the_start_is_left_alone_and_not_shared(self, structure, max_evals):
        z0 = make(structure, SHAPES["vectors"], [torch.float32] * 3)
        before = map_leaves(Tensor.clone, z0)
        f = lambda z: map_leaves(lambda leaf: 0.5 * leaf + 1, z)  # noqa: E731
        z = fixed_point(f, z0, solver=Anderson(max_evals=max_evals, tol=0)).z
        for leaf in leaves(z):
            leaf.add_(1)
        assert_same(z0, before)

    def test_the_state_is_not_shared_with_what_f_returned(self):
        x = torch.ones(2, 3)
        fixed_point(lambda z, x: x, torch.zeros(2, 3), x).z.add_(1)
        torch.testing.assert_close(x, torch.ones(2, 3))


def test_a_dataclass_among_the_inputs_leaves_with_its_samples():
    x = torch.randn(16, 4)
    x[::2] *= 30
    sizes = set()

    def f(z, context):
        sizes.add((z.shape[0], context.x.shape[0]))
        assert isinstance(context, Context)
        assert context.mask is None
        return torch.tanh(0.9 * z + context.scale * context.x)

    eq = fixed_point(f, torch.zeros_like(x), Context(x, 0.5), solver=Anderson(tol=1e-5))
    assert len(sizes) > 1
    assert all(rows == given for rows, given in sizes)
    expected = fixed_point(
        lambda z, x: torch.tanh(0.9 * z + 0.5 * x), torch.zeros_like(x), x, solver=Anderson(tol=1e-5)
    )
    assert torch.equal(eq.z, expected.z)


def test_what_samples_share_may_be_a_dataclass_of_a_kind_of_its_own():
    @dataclasses.dataclass(frozen=True)
    class Weights(Shared):
        weight: torch.Tensor

    shared = Weights(0.3 * torch.eye(4))
    x = torch.randn(16, 4)
    f = lambda z, x, shared: torch.tanh(z @ shared.weight + x)  # noqa: E731
    eq = fixed_point(f, torch.zeros_like(x), x, shared, compact=True)
    assert eq.stats.converged.all()


def test_a_dataclass_is_a_state_as_a_tuple_is():
    x = torch.randn(3, 4, requires_grad=True)

    def cycle(high, low):
        low = torch.tanh(0.3 * low + 0.2 * high + x)
        return torch.cos(0.5 * high + 0.1 * low), low

    zeros = torch.zeros(3, 4), torch.zeros(3, 4)
    found = fixed_point(lambda z: Carry(*cycle(z.high, z.low)), Carry(*zeros)).z
    expected = fixed_point(lambda z: cycle(*z), zeros).z
    assert isinstance(found, Carry)
    assert torch.equal(found.high, expected[0])
    assert torch.equal(found.low, expected[1])
    gradients = [torch.autograd.grad(high.sum() + low.sum(), x)[0] for high, low in ((found.high, found.low), expected)]
    assert torch.equal(*gradients)


@pytest.mark.parametrize(("kind", "answer"), [(dict, dict), (OrderedDict, OrderedDict), (dict, OrderedDict)])
def test_a_state_keeps_its_kind_of_dict_and_images_are_read_by_their_keys(kind, answer):
    seen = []

    def f(z):
        seen.append(type(z))
        return answer(b=0.5 * z["b"], a=0.5 * z["a"] + 1)

    eq = fixed_point(f, kind(a=torch.zeros(2, 3), b=torch.ones(2, 3)))
    assert set(seen) == {kind}
    assert type(eq.z) is kind
    torch.testing.assert_close(eq.z["a"], torch.full((2, 3), 2.0), rtol=1e-2, atol=0)


@pytest.mark.parametrize("z0", [torch.zeros(2, 3), {"a": torch.zeros(2, 3)}, (torch.zeros(2, 3), torch.zeros(2, 1))])
def test_outputs_beside_the_state_are_refused_with_what_to_do(z0):
    with pytest.raises(ValueError, match="besides the state are not supported: compute them from the equilibrium"):
        fixed_point(lambda z: (z, torch.zeros(())), z0)
