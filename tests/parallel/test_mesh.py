"""The mesh of one automatic axis, and emulated devices in separate processes."""

import jax
import pytest
from jax.sharding import AxisType

from jaxgraph.parallel.mesh import make_mesh
from tests.interpreter import run_alone


class TestMakeMesh:
    def test_takes_all_devices_in_order(self):
        mesh = make_mesh()
        assert mesh.axis_names == ("graph",)
        assert list(mesh.devices.flat) == jax.devices()

    @pytest.mark.parametrize("count", [1, 3, 8])
    def test_takes_the_first_devices(self, count):
        assert list(make_mesh(count).devices.flat) == jax.devices()[:count]

    def test_axis_is_automatic(self):
        assert make_mesh(2).axis_types == (AxisType.Auto,)

    def test_too_few_devices_says_how_to_emulate(self):
        wanted = len(jax.devices()) + 1
        with pytest.raises(
            ValueError, match=rf"emulate_devices\({wanted}\).*device_count={wanted}"
        ):
            make_mesh(wanted)
        with pytest.raises(ValueError, match=r"only 1 cpu device\(s\) are in devices"):
            make_mesh(2, devices=jax.devices()[:1])

    @pytest.mark.parametrize("count", [0, -1, 2.0, "2", True])
    def test_count_must_be_a_positive_integer(self, count):
        with pytest.raises(ValueError, match="num_devices must be"):
            make_mesh(count)

    def test_bad_devices_and_axis(self):
        with pytest.raises(ValueError, match="twice"):
            make_mesh(devices=[jax.devices()[0]] * 2)
        with pytest.raises(ValueError, match="empty"):
            make_mesh(devices=[])
        with pytest.raises(ValueError, match="axis must be a name"):
            make_mesh(2, axis="")


class TestEmulateDevices:
    MAKE = "from jaxgraph.parallel.mesh import emulate_devices, make_mesh\nimport jax\n"

    def test_makes_devices_before_jax_starts(self):
        done = run_alone(self.MAKE + "emulate_devices(5); print(make_mesh(5).size, jax.devices())")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("5 [CpuDevice(id=0)")

    def test_wins_over_flags_and_platform_of_the_environment(self):
        done = run_alone(
            self.MAKE + "emulate_devices(3); print(jax.default_backend(), jax.device_count())",
            XLA_FLAGS="--xla_force_host_platform_device_count=2",
            JAX_PLATFORMS="",
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "cpu 3"

    def test_too_late_is_an_error_that_says_what_to_do(self):
        done = run_alone(self.MAKE + "jax.devices(); emulate_devices(4)")
        assert done.returncode != 0
        assert "RuntimeError: it is too late to emulate 4 devices" in done.stderr
        assert "already started on 1 cpu device(s)" in done.stderr
        assert "xla_force_host_platform_device_count=4" in done.stderr
