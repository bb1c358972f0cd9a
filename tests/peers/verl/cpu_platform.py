"""verl's own device layer, told that this machine's CPU is a device: what lets its real FSDP engine run here.

verl imports this module itself, by ``VERL_USE_EXTERNAL_MODULES=peers.verl.cpu_platform``, before it looks for devices.
"""

import contextlib
import types

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

_MODULE = types.SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")},
    max_memory_allocated=lambda *a: 0,
    max_memory_reserved=lambda *a: 0,
    memory_allocated=lambda *a: 0,
    memory_reserved=lambda *a: 0,
    mem_get_info=lambda *a: (1, 1),
    empty_cache=lambda: None,
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    get_device_name=lambda *a: "cpu",
)


@PlatformRegistry.register("cpu")
class CpuPlatform(PlatformBase):
    device_name = "cpu"
    vendor_name = "none"
    device_module = _MODULE

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CPU_VISIBLE_DEVICES"

    def ray_resource_name(self):
        return "CPU"

    def ray_noset_envvars(self):
        return []

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def is_ipc_supported(self):
        return False

    def rollout_env_vars(self):
        return {}

    def get_collective_module(self):
        return None

    def cudart(self):
        return None
