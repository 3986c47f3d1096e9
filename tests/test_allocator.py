"""Memory that is freed and wanted again does not come from the system a second time."""

from __future__ import annotations

import platform

import pytest

from fedwinnow.device import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_a_large_block_is_used_again():
    import resource

    import torch

    def pages_of_a_block() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2**23)  # 32 MB: 8,192 pages of 4 kB
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory()
    pages_of_a_block()
    assert pages_of_a_block() < 500
