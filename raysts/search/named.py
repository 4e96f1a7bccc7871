"""The named searches.

Sources: lower-bound: SED 5.5; latte-mix: Latte-Mix, appendix A.5 and Table 4, its rates "where the paper is silent";
gausscse: GaussCSE, appendix A and Table 3. The best values of that table lie on the edge of its grid, so this grid is
wider.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from raysts.errors import InputError, nearest
from raysts.recipes import names
from raysts.search.search import Search, configured
from raysts.search.space import Dimension


def lower_bound(scale: str = "") -> Search:
    """Search lower bounds 0, 0.05, ..., 0.95 of the regression target, ten seeds each: 200 runs."""
    bounds = tuple(round(0.05 * i, 2) for i in range(20))
    return Search(
        name="lower-bound",
        pipeline=names.pipeline(f"sts{scale}"),
        space={"sts.settings.lower_bound": Dimension(choices=bounds)},
        seeds=10,
        keep=1,
        by="point",
    )


def latte_mix(scale: str = "") -> Search:
    """Search the settings of Latte-Mix, beginning with those of the paper.

    The paper gives classes, variables, temperature and peak rate. It leaves open the weight of the reconstruction, how
    vectors are read, the variance of the decoder, free bits, beta and layout.
    """
    paper = {
        "latte.settings.classes": 100,
        "latte.settings.dims": 64,
        "latte.settings.tau": 0.3,
        "latte.settings.reconstruction": "sum",
        "latte.settings.inputs": "raw",
        "latte.settings.variance": 0.5,
        "latte.settings.free_bits_of": "total",
        "latte.settings.beta": 1.0,
        "latte.settings.layout": "factorised",
        "latte.optim.lr": 1e-3,
    }
    varied = [{f"latte.settings.{key}": value} for key, values in names.LATTE_VARIED.items() for value in values]
    return Search(
        name="latte-mix",
        pipeline=names.pipeline(f"latte{scale}"),
        space={
            "latte.settings.classes": Dimension(low=20, high=200, log=True, integer=True),
            "latte.settings.dims": Dimension(low=16, high=128, log=True, integer=True),
            "latte.settings.tau": Dimension(low=0.01, high=2.0, log=True),
            "latte.settings.reconstruction": Dimension(choices=("sum", "mean")),
            "latte.settings.inputs": Dimension(choices=("raw", "standardised")),
            "latte.settings.variance": Dimension(choices=(None, 0.5, 0.05, 0.005)),
            "latte.settings.free_bits_of": Dimension(choices=("total", "per_latent")),
            "latte.settings.beta": Dimension(choices=(1.0, 0.1, 0.01)),
            "latte.settings.layout": Dimension(choices=("factorised", "single")),
            "latte.optim.lr": Dimension(low=1e-4, high=1e-2, log=True),
        },
        first=(paper, *(paper | variation for variation in varied)),
        num_samples=50,
    )


def gausscse(scale: str = "") -> Search:
    """Search batch size times learning rate, beyond the corner of the paper's grid.

    A batch that does not fit into memory is infeasible.
    """
    return Search(
        name="gausscse",
        pipeline=names.pipeline(f"gausscse-ent+con{scale}"),
        space={
            "gausscse.batch": Dimension(choices=(8, 16, 32, 64, 128, 256, 512)),
            "gausscse.optim.lr": Dimension(choices=(1e-5, 3e-5, 5e-5, 1e-4)),
        },
    )


SEARCHES: dict[str, Callable[[str], Search]] = {
    "lower-bound": lower_bound,
    "latte-mix": latte_mix,
    "gausscse": gausscse,
}
"""Commands, help and jobs take the names of searches from here."""


def search(name: str, overrides: Mapping[str, Any] | None = None) -> Search:
    """Return the search called ``name``, with overrides applied.

    The name may have a scale (``lower-bound@small``). A system of one training stage (``simcse-sup``, a YAML file) gives
    the search of the space in the overrides.

    Raises:
        InputError: unknown name or scale, unknown or wrong overrides.
    """
    plain, separator, scale = name.partition("@")
    unscaled = SEARCHES[plain](f"{separator}{scale}") if plain in SEARCHES else _search_system(name)
    most = names.SCALES.get(scale, {}).get("members", unscaled.seeds)
    return configured(replace(unscaled, seeds=min(unscaled.seeds, most)), overrides or {})


def _search_system(name: str) -> Search:
    try:
        system = names.pipeline(name)
    except InputError as error:
        options = f"{', '.join(SEARCHES)}, and any system of one training stage with a space that you give"
        near = nearest(name.partition("@")[0], SEARCHES)
        why = "" if near else f": {error.problems[0]}"
        raise InputError(f"unknown search '{name}'{near}; searches are {options}{why}") from None
    try:
        return Search(name=system.name, pipeline=system, space={})
    except ValueError as error:
        raise InputError(f"search '{name}': {error}") from None
