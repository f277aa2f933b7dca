"""The first tries of each attack; `make torture` makes all of them."""

import sys

import pytest
from torture.catalog import ATTACKS
from torture.mutants import MUTANTS, ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")


def assert_nothing_failed(name: str, num_tries: int) -> None:
    failures = ATTACKS[name].run(range(num_tries))
    assert not failures, "\n".join(f"{failure.reproduction}  # {failure.reason}" for failure in failures)


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.num_quick])
def test_a_few_tries_of_each_attack_do_no_harm(name):
    assert_nothing_failed(name, ATTACKS[name].num_quick)


@pytest.mark.torture
@pytest.mark.parametrize("name", ATTACKS)
def test_no_try_of_any_attack_does_harm(name):
    assert_nothing_failed(name, ATTACKS[name].num_tries)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_one_change_and_its_tests_are_there(mutant):
    assert (ROOT / "src/steadeq" / mutant.file).read_text().count(mutant.old) == 1
    for test in mutant.tests:
        path, *names = test.partition("[")[0].split("::")
        text = (ROOT / path).read_text() if names else ""
        assert (ROOT / path).exists()
        assert all(f"def {name}(" in text or f"class {name}" in text for name in names)
    assert {word.partition(":")[0] for word in mutant.attacks} <= ATTACKS.keys()
