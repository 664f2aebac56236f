"""What a device has left."""

import types

import jax
import pytest

import memory
from memory import _available


def test_a_processor_has_what_the_machine_has_left():
    found = memory.available_bytes()
    assert 2**20 < found < 2**50
    assert memory.available_bytes(jax.devices()[0]) > 2**20


def test_an_accelerator_reports_it():
    def device(statistics):
        return types.SimpleNamespace(platform="gpu", memory_stats=lambda: statistics)

    assert memory.available_bytes(device({"bytes_limit": 100, "bytes_in_use": 30})) == 70
    assert memory.available_bytes(device(None)) is None


NO_LIMIT = 9223372036854771712


def version_1(limit, used, cached=0):
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": used,
        "memory.stat": f"inactive_file 1\ntotal_inactive_file {cached}",
    }


def version_2(limit, used, cached=0):
    return {
        "memory.max": limit,
        "memory.current": used,
        "memory.stat": f"file 900\ninactive_file {cached}",
    }


TREES = {
    "version 2, own group": (
        "0::/job/step\n",
        {"job/step": version_2(100, 60, 25), "job": version_2("max", 80)},
        [65],
    ),
    "version 2, a group around it is tighter": (
        "0::/job/step\n",
        {"job/step": version_2(100, 60), "job": version_2(90, 80, 5)},
        [40, 15],
    ),
    "version 2, container that sees its group at the top": (
        "0::/\n",
        {".": version_2(100, 30), "job": version_2(10, 9)},
        [70],
    ),
    "version 2, exceeded": ("0::/job\n", {"job": version_2(100, 130, 10)}, [0]),
    "version 2, no statistics": (
        "0::/job\n",
        {"job": {"memory.max": 100, "memory.current": 30}},
        [70],
    ),
    "version 1": (
        "4:cpu:/other\n3:hugetlb,memory:/job/step\n0::/\n",
        {
            "memory/job/step": version_1(100, 60, 25),
            "memory/job": version_1(90, 80),
            "memory": version_1(NO_LIMIT, 500),
            "memory/other": version_1(1, 1),
        },
        [65, 10, NO_LIMIT - 500],
    ),
    "version 1, container that sees the machine's path": (
        "3:memory:/docker/0123\n",
        {"memory": version_1(100, 60)},
        [40],
    ),
    "no group": ("", {}, []),
}


@pytest.mark.parametrize("name", TREES)
def test_limits_of_control_groups(name, tmp_path):
    own, groups, expected = TREES[name]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(own)
    for group, files in groups.items():
        folder = tmp_path / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(f"{text}\n")
    assert list(_available._left_in_groups(tmp_path)) == expected


def test_systems_without_such_files_have_no_limits(tmp_path):
    assert list(_available._left_in_groups(tmp_path)) == []
    # Falls back to free pages.
    assert all(found > 0 for found in _available._left_on_machine(tmp_path))
