"""A world with a volume for each test."""

from __future__ import annotations

import pathlib

import pytest

from tests.node_operations.nodes import NodeWorld


@pytest.fixture
def world(tmp_path: pathlib.Path) -> NodeWorld:
    """A world with one ext4 volume of 1 GiB that no node ever had."""
    return NodeWorld(tmp_path).with_volume()


@pytest.fixture
def empty_world(tmp_path: pathlib.Path) -> NodeWorld:
    """A world without a volume."""
    return NodeWorld(tmp_path)
