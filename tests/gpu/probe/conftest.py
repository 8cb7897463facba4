# SPDX-License-Identifier: Apache-2.0
"""The real pynvml on the fake library."""

import ctypes
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.nvml import FakeNvml, build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_nvml(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """One idle GPU, until the test changes it."""
    fake = FakeNvml(tmp_path, nvml_library)
    for name in ("FAKE_NVML", "FAKE_NVML_LOG"):
        monkeypatch.setenv(name, fake.environment[name])
    return fake


@pytest.fixture
def pynvml(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A copy of the module for this test alone, so no other test of this process uses the fake."""
    spec = importlib.util.find_spec("pynvml")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    spec.loader.exec_module(module)
    module.nvmlLib = ctypes.CDLL(str(fake_nvml.library))
    return module
