# SPDX-License-Identifier: Apache-2.0
"""Each test file of the module that runs in User-mode Linux has a defect to find: tests/mutants/planted.py."""

from pathlib import Path

from tests.mutants.planted import DEFECTS

ROOT = Path(__file__).resolve().parents[2]
# These need the debug kernel and IOMMUFD.
ELSEWHERE = {*ROOT.glob("tests/kmod/failures/test_*.py"), ROOT / "tests/kmod/test_vfio_selftests.py"}
EMULATED = "\npytestmark = pytest.mark.emulated\n"


def test_each_file_has_a_defect_to_find() -> None:
    files = {*ROOT.glob("tests/kmod/**/test_*.py"), *ROOT.glob("tests/time/test_*.py")} - ELSEWHERE
    here = [str(file.relative_to(ROOT)) for file in files if EMULATED not in file.read_text()]
    assert sorted(here) == sorted(defect.tests for defect in DEFECTS)


def test_each_defect_can_be_planted() -> None:
    for defect in DEFECTS:
        assert (ROOT / "kmod" / defect.source).read_text().count(defect.old) == 1, defect.wrong


def test_each_defect_is_whole_statements() -> None:
    for defect in DEFECTS:
        assert all(part.endswith((";", "}")) for part in (defect.old, defect.new)), defect.wrong
