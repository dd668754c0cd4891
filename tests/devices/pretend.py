"""A device that does not exist, for machines without one: tensors that say `cuda:0` (or `mps:0`) and are on the CPU.

A `DeviceTensor` wraps a plain tensor and says another device. What PyTorch's dispatcher hands it is checked as the device
would check it (all tensors on one device, numbers of the host only as single numbers, no float64 on MPS), counted, and
computed by the plain tensor. Tensors are made on the device by kernels for the dispatch keys that a CPU build leaves empty.

It shows whether code is right on a device, and how often the host waits, copies and launches. It cannot show speed, a
device's own rounding, or an operation that the device lacks.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
DISPATCH_KEYS = {"cuda": "CUDA", "mps": "MPS"}
#: The variable of the environment that names the device, for the guard and for us.
PRETENDED = "NORMLENS_PRETENDED_DEVICE"


class Counts:
    """What the host asked of the device, by who asked (`normlens` or the `model`) and the line of code."""

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, str]] = Counter()
        self.copies: Counter[tuple[str, str]] = Counter()
        self.launches: Counter[tuple[str, str]] = Counter()
        self.operations: Counter[str] = Counter()  # of normlens, by name
        self.float64: Counter[tuple[str, str]] = Counter()
        self.bytes_copied = 0
        self.work: list[tuple[int, int, bool]] = []  # of each launch: operations of products, bytes, half precision

    def total(self, what: str, who: str = "normlens") -> int:
        """How many `waits`, `copies` or `launches` somebody made."""
        return sum(count for (asker, _), count in getattr(self, what).items() if asker == who)


class _Settings:
    counts = Counts()
    tensor_float32 = False  # round what enters a float32 product to ten bits, unless full precision was asked for
    free_bytes = 40 * 2**30


def counts() -> Counts:
    """What has been counted since `counting` was entered."""
    return _Settings.counts


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what happens inside the block alone."""
    before, _Settings.counts = _Settings.counts, Counts()
    try:
        yield _Settings.counts
    finally:
        _Settings.counts = before


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Products of float32 tensors are rounded as tensor cores do, wherever PyTorch's settings allow that."""
    before = torch.get_float32_matmul_precision()
    _Settings.tensor_float32 = True
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        _Settings.tensor_float32 = False
        torch.set_float32_matmul_precision(before)


@contextmanager
def free_memory(bytes_: int) -> Iterator[None]:
    """The device has so much memory left."""
    before, _Settings.free_bytes = _Settings.free_bytes, bytes_
    try:
        yield
    finally:
        _Settings.free_bytes = before


def _asker() -> tuple[str, str]:
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        for who, mark in (("normlens", "/normlens/"), ("model", "/transformers/")):
            if mark in path:
                return who, f"{path.split(mark)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "model", "elsewhere"


def _wait() -> None:
    _Settings.counts.waits[_asker()] += 1


def _copied(tensor: Tensor, *, waits: bool) -> None:
    who = _asker()
    _Settings.counts.copies[who] += 1
    _Settings.counts.bytes_copied += tensor.numel() * tensor.element_size()
    if waits:
        _Settings.counts.waits[who] += 1


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on a device."""

    plain: Tensor

    @staticmethod
    def __new__(cls, plain: Tensor, device: torch.device) -> DeviceTensor:
        if device.type == "mps" and plain.dtype in (torch.float64, torch.complex128):
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
            )
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            plain.shape,
            strides=plain.stride(),
            storage_offset=plain.storage_offset(),
            dtype=plain.dtype,
            device=device,
        )
        made.plain = plain
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return perform(func, args, kwargs or {})

    # Questions that do not pass the dispatcher.

    def data_ptr(self) -> int:
        return self.plain.data_ptr()

    def untyped_storage(self) -> Any:
        return self.plain.untyped_storage()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def __repr__(self) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype}, {self.device})"


def is_pretended(device: Any) -> bool:
    """Whether a device is one of those that do not exist."""
    return isinstance(device, str | torch.device) and torch.device(device).type in DISPATCH_KEYS


def _numbered(device: Any) -> torch.device:
    found = torch.device(device)
    return torch.device(found.type, 0) if found.type in DISPATCH_KEYS and found.index is None else found


_INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
_WAITING = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten._unique2.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
    aten._local_scalar_dense.default,
}
_NUMBER_OF_THE_HOST = {aten.where.self, aten.fill_.Tensor, aten.masked_fill.Tensor, aten.masked_fill_.Tensor}
_PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}
_PRODUCTS |= {aten.mm.out, aten.bmm.out, aten.addmm.out, aten.baddbmm.out}
_FUSED = {aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default}
_NO_LAUNCH = {
    aten.detach.default,
    aten.lift_fresh.default,
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.empty_like.default,
    aten._unsafe_view.default,
    aten._local_scalar_dense.default,
}


def _device_of(func: Any, args: Any, tensors: list[Tensor]) -> torch.device | None:
    """The device on which an operation runs; an error where a real one would raise it."""
    devices = {t.device for t in tensors if isinstance(t, DeviceTensor)}
    if not devices:
        return None
    if len(devices) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {devices} (in {func})")
    for tensor in tensors:
        if isinstance(tensor, DeviceTensor) or tensor.device.type == "meta":
            continue
        if func in _INDEXED and isinstance(args[0], DeviceTensor) and any(tensor is i for i in args[1]):
            _copied(tensor, waits=True)  # an index of the host is sent first
        elif tensor.ndim or not (torch.Tag.pointwise in func.tags or func in _INDEXED | _NUMBER_OF_THE_HOST):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found {[*map(str, devices)]} and cpu (in {func})"
            )
    if func is aten.index.Tensor and any(i is not None and i.dtype is torch.bool for i in args[1]):
        _wait()  # the shape of the result is not known before
    return next(iter(devices))


def perform(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation on a device."""
    if func is aten._to_copy.default:
        return _moved(args[0], kwargs)
    if func is aten.copy_.default:
        return _copy_into(args[0], args[1], *args[2:], **kwargs)
    leaves = tree_leaves((args, kwargs))
    device = _device_of(func, args, [leaf for leaf in leaves if isinstance(leaf, Tensor)])
    if kwargs.get("device") is not None:
        device = _numbered(kwargs["device"])
        kwargs = {**kwargs, "device": torch.device("cpu") if is_pretended(device) else device}
    for leaf in leaves:
        if isinstance(leaf, torch.Generator) and device is not None and leaf.device.type != device.type:
            raise RuntimeError(f"Expected a '{device.type}' device type for generator but found '{leaf.device.type}'")
    if func in _WAITING:
        _wait()
    if func in _FUSED:
        return _attended(func, args, kwargs, device)
    if func in (aten._softmax.default, aten._log_softmax.default) and args[2]:  # only CUDA widens on the way
        return perform(func, (_moved(args[0], {"dtype": torch.float32}), args[1], False), {})
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    plain_args, plain_kwargs = tree_map_only(DeviceTensor, lambda t: t.plain, (args, kwargs))
    if func in _PRODUCTS and _Settings.tensor_float32 and torch.backends.cuda.matmul.fp32_precision == "tf32":
        plain_args = tree_map_only(Tensor, _ten_bits, plain_args)
    with torch.no_grad():
        result = func(*plain_args, **plain_kwargs)
    _count(func, plain_args, result)
    same = {id(leaf.plain): leaf for leaf in leaves if isinstance(leaf, DeviceTensor)}

    def wrapped(tensor: Tensor) -> Tensor:
        if id(tensor) in same:  # changed in place
            return same[id(tensor)]
        return tensor if device is None or not is_pretended(device) else DeviceTensor(tensor, device)

    return tree_map_only(Tensor, wrapped, result)


def _attended(func: Any, args: Any, kwargs: dict[str, Any], device: torch.device | None) -> Any:
    """CUDA's fused attention: what it takes, what it gives (rows of its sums rounded up), one launch."""
    if device is None or device.type != "cuda":
        raise NotImplementedError(f"{func} has no kernel for {device}")
    query, key, value = (tensor.plain for tensor in args[:3])
    flash = func is aten._scaled_dot_product_flash_attention.default
    allowed = (torch.float16, torch.bfloat16) if flash else (torch.float16, torch.bfloat16, torch.float32)
    if query.dtype not in allowed or query.shape[-1] % 8 or query.shape[1] != key.shape[1]:
        raise RuntimeError(f"{func} takes {allowed}, heads of a width that 8 divides, and as many of each kind")
    causal = args[4] if flash and len(args) > 4 else args[6] if len(args) > 6 else kwargs.get("is_causal", False)
    added = None if flash or args[3] is None else args[3].plain
    if added is not None:
        if added.dtype is not query.dtype or added.shape != (*query.shape[:3], key.shape[2]):
            raise RuntimeError(f"what is added must fit the scores: {added.dtype}, {tuple(added.shape)}")
        if added.stride(-1) != 1 or any(stride % 8 for stride in added.stride()[:-1]):
            raise RuntimeError(f"what is added must be aligned to 8 numbers: strides {added.stride()}")
    with torch.no_grad():
        scores = query.float() @ key.float().mT * (kwargs.get("scale") or query.shape[-1] ** -0.5)
        if causal:
            scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        scores = scores if added is None else scores + added
        log_sum = scores.logsumexp(-1)
        output = ((scores - log_sum.unsqueeze(-1)).exp() @ value.float()).to(query.dtype)
        output = output.transpose(1, 2).contiguous().transpose(1, 2)
        rows = -(-query.shape[2] // 32) * 32
        padded = torch.full((*log_sum.shape[:2], rows), torch.inf)
        padded[..., : query.shape[2]] = log_sum
    pairs = scores.numel() // (2 if causal else 1)  # the kernel leaves out what a causal mask hides
    _count(func, (query, key, value, added), output, 4 * pairs * query.shape[-1])
    state = DeviceTensor(torch.zeros((), dtype=torch.int64), device)
    first = DeviceTensor(output, device), DeviceTensor(log_sum if flash else padded, device)
    return (*first, None, None, query.shape[2], key.shape[2], state, state, state) if flash else (*first, state, state)


class HostClock:
    """An event of a device that does its work when it is asked to."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._at = 0.0

    def record(self) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: HostClock) -> float:
        return 1e3 * (later._at - self._at)


def _without_weights(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    """As PyTorch chooses among its kernels where no gradient is wanted."""
    if mask is None and query.dtype is not torch.float32:
        found = aten._scaled_dot_product_flash_attention.default(query, key, value, 0.0, causal, scale=scale)
    else:
        if mask is not None:
            keys = mask.shape[-1]
            mask = torch.nn.functional.pad(mask, (0, -keys % 8))[..., :keys] if keys % 8 else mask.contiguous()
            mask = mask.expand(*query.shape[:3], keys)
        kernel = aten._scaled_dot_product_efficient_attention.default
        found = kernel(query, key, value, mask, False, 0.0, causal, scale=scale)
    output: Tensor = found[0]
    return output


def _flash_is_usable(params: Any, debug: bool = False) -> bool:
    query, mask = params.query, params.attn_mask
    return _efficient_is_usable(params) and query.dtype is not torch.float32 and mask is None


def _efficient_is_usable(params: Any, debug: bool = False) -> bool:
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    return params.query.device.type == "cuda" and params.query.dtype in dtypes


def _ten_bits(tensor: Tensor) -> Tensor:
    if tensor.dtype is not torch.float32:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def _count(func: Any, args: Any, result: Any, flops: int = 0) -> None:
    if func.is_view or func in _NO_LAUNCH:
        return
    asker = _asker()
    tensors = [t for t in tree_leaves((args, result)) if isinstance(t, Tensor)]
    found = _Settings.counts
    found.launches[asker] += 1
    if asker[0] == "normlens":
        found.operations[func.overloadpacket.__name__] += 1
    if any(t.dtype is torch.float64 for t in tensors):
        found.float64[asker] += 1
    if func in _PRODUCTS:
        left, right = [t for t in args if isinstance(t, Tensor)][-2:]
        flops = 2 * left.numel() * right.shape[-1]
    half = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors)
    found.work.append((flops, sum(t.numel() * t.element_size() for t in tensors), half))


def _moved(source: Tensor, options: dict[str, Any]) -> Tensor:
    target = source.device if options.get("device") is None else _numbered(options["device"])
    plain = source.plain if isinstance(source, DeviceTensor) else source
    if target.type == "mps" and options.get("dtype") is torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
    kept = {name: value for name, value in options.items() if name in ("dtype", "layout", "memory_format")}
    made = aten._to_copy.default(plain, **kept)
    if not is_pretended(target):
        _copied(made, waits=True)
        return made
    if source.device == target:
        _count(aten._to_copy.default, (plain,), made)
    else:
        _copied(made, waits=not isinstance(source, DeviceTensor) and not options.get("non_blocking"))
    return DeviceTensor(made, target)


#: Where memory of the host starts that a device can write to while the host goes on.
_pinned: set[int] = set()


def _copy_into(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    into = to.plain if isinstance(to, DeviceTensor) else to
    plain = source.plain if isinstance(source, DeviceTensor) else source
    if to.device == source.device:
        _count(aten.copy_.default, (into, plain), into)
    elif source.ndim or not isinstance(to, DeviceTensor):  # one number of the host travels with the launch
        host = to if not isinstance(to, DeviceTensor) else source
        pinned = host.untyped_storage().data_ptr() in _pinned
        apart = isinstance(to, DeviceTensor) and isinstance(source, DeviceTensor)
        _copied(plain, waits=not apart and not (non_blocking and pinned))
    with torch.no_grad():
        into.copy_(plain)
    return to


# ---- installing it -------------------------------------------------------------------------------------------------------

_libraries: list[torch.library.Library] = []
#: Operations that make tensors and would otherwise find a general kernel.
_MAKING = (
    "arange arange.start arange.start_step eye eye.m full zeros ones linspace scalar_tensor rand rand.generator randn "
    "randn.generator randint randint.low randint.generator randint.low_generator randperm randperm.generator"
)


def missing_compiler() -> str | None:
    """Why this machine cannot pretend; None where it can."""
    compiler = os.environ.get("CXX", "g++")
    return None if shutil.which(compiler) else f"a C++ compiler is needed to pretend a device: {compiler} is missing"


def environment(device: str) -> dict[str, str]:
    """What a process needs in its environment to pretend this device; the guard is compiled once per installed PyTorch.

    The compiled guard finds PyTorch's libraries by their path, so the path is part of its name: another environment
    on this machine compiles its own.
    """
    source, root = Path(__file__).with_name("guard.cpp"), Path(torch.__file__).parent
    name = hashlib.sha256(source.read_bytes() + f"{torch.__version__} {root}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"normlens_guard_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise RuntimeError(f"the folder of the compiled guard must be one's own: {folder} is not; remove it")
    library = folder / f"{name}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            built = Path(unfinished) / library.name
            linked = [f"-L{root}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{root}/lib"]
            compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-shared", "-fPIC", f"-I{root}/include"]
            subprocess.run([*compiler, str(source), *linked, "-o", str(built)], check=True)
            built.replace(library)
    return {"LD_PRELOAD": str(library), PRETENDED: device}


def install() -> None:
    """Make devices `cuda` and `mps` exist in this process. There is no way back: give it a process of its own."""
    if _libraries:
        return
    if PRETENDED not in os.environ:
        raise RuntimeError("a process that pretends a device must be started with its `environment`")
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # parameters become tensors of another class
    everything, named = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _libraries.extend([everything, named])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key in DISPATCH_KEYS.values():
            everything.fallback(lambda func, *args, **kwargs: perform(func, args, kwargs), key)
            for name in _MAKING.split():
                packet, _, overload = name.partition(".")
                named.impl(name, _maker(getattr(getattr(aten, packet), overload or "default")), key)
            named.impl("copy_", _copy_into, key)
    _patch_entrances()


def _maker(func: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: perform(func, args, kwargs)


def _patch_entrances() -> None:
    """What asks a CPU build for its devices in ways that pass no dispatcher."""

    def from_data(make: Any) -> Any:
        def made(data: Any, *args: Any, device: Any = None, **options: Any) -> Tensor:
            if device is None or not is_pretended(device):
                return make(data, *args, device=device, **options)  # type: ignore[no-any-return]
            return make(data, *args, **options).to(_numbered(device))  # type: ignore[no-any-return]

        return made

    def with_pinned(make: Any) -> Any:
        def made(*args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
            tensor: Tensor = make(*args, **options)
            if pin_memory:
                _pinned.add(tensor.untyped_storage().data_ptr())
            return tensor

        return made

    def attention(own: Any) -> Any:
        def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
                   is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
            if not isinstance(query, DeviceTensor):
                own_options = {"scale": scale, "enable_gqa": enable_gqa}
                return own(query, key, value, attn_mask, dropout_p, is_causal, **own_options)  # type: ignore[no-any-return]
            if enable_gqa:
                key, value = (t.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for t in (key, value))
            if attn_mask is not None and attn_mask.dtype is torch.bool:
                floor = torch.finfo(query.dtype).min
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, floor)
            if query.device.type == "cuda" and query.shape[-1] % 8 == 0 and not torch.is_grad_enabled():
                return _without_weights(query, key, value, attn_mask, is_causal, scale)
            scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
            if is_causal:
                later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
                scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
            return (scores if attn_mask is None else scores + attn_mask).softmax(-1).to(value.dtype) @ value

        return attend

    plain_to = torch.Tensor.to

    def to(self: Tensor, *args: Any, **options: Any) -> Tensor:
        args = tuple(_numbered(a) if is_pretended(a) else a for a in args)
        return plain_to(
            self, *args, **{n: _numbered(v) if n == "device" and v is not None else v for n, v in options.items()}
        )

    changes: list[tuple[Any, str, Any]] = [
        (torch.Tensor, "to", to),
        (torch, "tensor", from_data(torch.tensor)),
        (torch, "as_tensor", from_data(torch.as_tensor)),
        (torch, "empty", with_pinned(torch.empty)),
        (
            torch.nn.functional,
            "scaled_dot_product_attention",
            attention(torch.nn.functional.scaled_dot_product_attention),
        ),
        (torch.backends.cuda, "can_use_flash_attention", _flash_is_usable),
        (torch.backends.cuda, "can_use_efficient_attention", _efficient_is_usable),
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "synchronize", lambda device=None: _wait()),
        (torch.mps, "synchronize", _wait),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "Event", HostClock),
        (torch.cuda, "device", lambda device: nullcontext()),
        (torch.cuda, "max_memory_allocated", lambda device=None: 0),
        (torch.cuda, "reset_peak_memory_stats", lambda device=None: None),
        (torch.cuda, "get_device_name", lambda device=None: "a device that does not exist"),
        (torch.mps, "recommended_max_memory", lambda: _Settings.free_bytes),
        (torch.mps, "driver_allocated_memory", lambda: 0),
        (torch.cuda, "mem_get_info", lambda device=None: (_Settings.free_bytes, _Settings.free_bytes)),
    ]
    for owner, name, value in changes:
        setattr(owner, name, value)
