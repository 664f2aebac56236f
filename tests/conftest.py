"""Settings shared by every test: strict arithmetic rules, checked annotations, both precisions."""

import os

# Before JAX is imported: tests are about correctness, and several of them run side by side.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Nearly all the time of the tests is compilation of small programs that run once: half of it is
# optimisation that they do not need. Rounding may depend on it, so `.ci/run` repeats the tests in
# which rounding decides with XLA_FLAGS empty.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Every annotation of the four packages becomes a run-time check.
install_import_hook(["memory", "kernels", "svgd", "t3"], "typecheck_support.checked")

settings.register_profile(
    "steintrain",
    max_examples=20,
    deadline=None,  # the first example of a shape compiles
    derandomize=True,  # the same examples in every run
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("steintrain")


@pytest.fixture(autouse=True, scope="session")
def _private_cache(tmp_path_factory):
    """Keeps the tests from reading or writing the user's own calibration."""
    folder = tmp_path_factory.mktemp("cache")
    previous = os.environ.get("STEINTRAIN_CACHE_DIR")
    os.environ["STEINTRAIN_CACHE_DIR"] = str(folder)
    yield folder
    if previous is None:
        del os.environ["STEINTRAIN_CACHE_DIR"]
    else:
        os.environ["STEINTRAIN_CACHE_DIR"] = previous


@pytest.fixture(autouse=True, scope="module")
def _programs_end_with_their_file():
    """Frees compiled programs: their memory maps would reach the 65,530 that Linux allows a process."""
    yield
    jax.clear_caches()


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """Runs a test in both precisions: a NumPy dtype, `dtype.name` for tables of tolerances."""
    return np.dtype(request.param)


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def relative_error():
    """`relative_error(a, b)`: l2 norm of a - b over that of b, in float64."""

    def measure(value, reference):
        value = np.asarray(jnp.asarray(value), np.float64)
        reference = np.asarray(jnp.asarray(reference), np.float64)
        norm = np.linalg.norm(reference)
        return float(np.linalg.norm(value - reference) / (norm if norm > 0 else 1.0))

    return measure
