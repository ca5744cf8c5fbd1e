"""The small data folder of ``evaluation_data`` as fixtures."""

from __future__ import annotations

import pytest
from evaluation_data import write_data

from resetcli.data.sources import DataSource


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("eval") / "data")


@pytest.fixture()
def source(data_dir):
    return DataSource(data_dir)
