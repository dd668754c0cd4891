// What PyTorch's bindings ask for before they touch a tensor of a device: somebody who can switch to it. A CPU build has
// nobody for cuda and mps, so this one switches between devices that do not exist.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace {

template <c10::DeviceType kind>
struct NoDevices final : public c10::impl::DeviceGuardImplInterface {
  static c10::DeviceIndex& current() {
    static thread_local c10::DeviceIndex index = 0;
    return index;
  }
  c10::DeviceType type() const override { return kind; }
  c10::Device getDevice() const override { return c10::Device(kind, current()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current() = device.index();
  }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};

c10::impl::DeviceGuardImplRegistrar for_cuda(c10::DeviceType::CUDA, new NoDevices<c10::DeviceType::CUDA>());
c10::impl::DeviceGuardImplRegistrar for_mps(c10::DeviceType::MPS, new NoDevices<c10::DeviceType::MPS>());

}  // namespace

// A backward pass asks which accelerator there is. Where this library is preloaded, it is the one that is pretended.
namespace at::accelerator {

__attribute__((visibility("default"))) std::optional<c10::DeviceType> getAccelerator(bool /*checked*/) {
  const char* name = std::getenv("NORMLENS_PRETENDED_DEVICE");
  if (name == nullptr) return std::nullopt;
  return std::string(name) == "mps" ? c10::DeviceType::MPS : c10::DeviceType::CUDA;
}

}  // namespace at::accelerator

// ... and whether anything runs there already.
namespace at {

struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs /*unused*/) {}
  bool hasPrimaryContext(DeviceIndex /*device*/) const override { return true; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);

struct MPSHooks final : MPSHooksInterface {
  bool hasPrimaryContext(DeviceIndex /*device*/) const override { return true; }
};
REGISTER_MPS_HOOKS(MPSHooks);

}  // namespace at
