"""One color for one model in all figures: its place in the palette; other settings of it have other dashes."""

from . import language, vision

_NUM_COLORS = 8
_PLACES: dict[str, int] = {
    # Without the penalty, and with it.
    language.POST: 0,
    vision.MDEQ: 0,
    "no penalty": 0,
    "ReLU, no penalty": 0,
    "softplus, no penalty": _NUM_COLORS,
    "ReLU + JR": 1,
    "softplus + JR": _NUM_COLORS + 1,
    language.POST_JR: 1,
    vision.MDEQ_JR: 1,
    # Explicit networks.
    language.TRANSFORMER_XL: 2,
    vision.RESNET: 2,
    language.PRE: 3,
    vision.VIT: 3,
    language.PRE_JR: 4,
    vision.VIT_JR: 4,
    "closed loop": 4,
    language.WEIGHT_DECAY: 5,
    vision.WEIGHT_DECAY: 5,
    "linear schedule": 5,
    "γ at all steps": _NUM_COLORS + 5,
    language.SMALL_BUDGET: 6,
    vision.SMALL_BUDGET: 6,
    "no penalty, few evaluations": 6,
    language.NO_WEIGHT_NORM: 7,
    vision.MONOTONE: 7,
    "residual, closed loop": 7,
    "spectral radius, closed loop": 3,
    # The same models in other settings.
    language.POST_BROYDEN: _NUM_COLORS,
    vision.ANDERSON: _NUM_COLORS,
    language.POST_FASTER: 2 * _NUM_COLORS,
    language.POST_FASTER_ANDERSON: 3 * _NUM_COLORS,
    language.TWENTY: 2 * _NUM_COLORS + 6,
    language.POST_JR_FASTER: _NUM_COLORS + 1,
    vision.ANDERSON_JR: _NUM_COLORS + 1,
    language.TWICE_AS_LONG: 2 * _NUM_COLORS + 1,
    language.TRANSFORMER_XL_SAME_BLOCK: _NUM_COLORS + 2,
    vision.RESNET_DEEP: _NUM_COLORS + 2,
    language.TIED: 2 * _NUM_COLORS + 2,
    vision.RESNET_GROUP_NORM: 2 * _NUM_COLORS + 2,
    language.PRE_FASTER: _NUM_COLORS + 3,
    language.PRE_JR_FASTER: _NUM_COLORS + 4,
    "closed loop on evaluations": _NUM_COLORS + 4,
    vision.MULTI_TIER: _NUM_COLORS + 7,
}
_FIXED_GAMMAS = 1
"""Color of models with the penalty, which those with a fixed weight share."""


def place_of(name: str) -> int | None:
    """Return the place of a model's color, given its name with or without a data set before it.

    Example:
        >>> place_of("MDEQ"), place_of("Imagenette-64: MDEQ"), place_of("unknown")
        (0, 0, None)
    """
    return _PLACES.get(name.rpartition(": ")[2])


def places_of_gammas(names: list[str]) -> dict[str, int]:
    """Return places of models with fixed weights of the penalty: one color, and dashes in their order.

    Example:
        >>> places_of_gammas(["γ = 0.5", "γ = 2"])
        {'γ = 0.5': 1, 'γ = 2': 9}
    """
    return {name: _FIXED_GAMMAS + _NUM_COLORS * index for index, name in enumerate(names)}
