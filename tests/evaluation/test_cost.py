import itertools

import pytest

from raysts.errors import InputError
from raysts.evaluation.compression import DTYPES, Cost, check
from raysts.evaluation.cost import ModelCost
from raysts.models.sentence_model import SentenceModel


def test_costs_in_words() -> None:
    rest = "91 MB, 384 dimensions, 1810 texts of 12 tokens a second here (905 a CPU second)"
    numbers = (90_900_000, 384, 12.4, 1810.4, 905.2)
    texts = [ModelCost(parameters, *numbers).text for parameters in (22_700_000, None)]
    assert texts == [f"22.7 M parameters, {rest}", rest]
    assert Cost("dev", 0.8, 0.79).text == "on dev the rank correlation is 79.00 instead of 80.00 (-1.00, x100)"


def test_vectors_keep_one_dimension_at_least_and_all_at_most(small: SentenceModel) -> None:
    for dims, dtype in itertools.product((None, 1, small.dim), DTYPES):
        check(small, dims, dtype)
    for dims in (0, small.dim + 1):
        with pytest.raises(InputError, match=f"--dims {dims}: the model's vectors have {small.dim} dimensions"):
            check(small, dims, "float32")
    with pytest.raises(InputError, match="--dtype 'int4' must be one of float32, int8, binary"):
        check(small, 1, "int4")
