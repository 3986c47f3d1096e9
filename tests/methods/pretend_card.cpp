// A device that behaves like a graphics card with its own memory, but computes on the processor: the tensors of an
// operation must be on one device, and what comes back from it has to be asked for. For tests only.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/CPUAllocator.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <set>

namespace {

constexpr auto CARD = c10::DeviceType::PrivateUse1;
const c10::Device card(CARD, 0);
std::map<std::string, int64_t> waits;
std::mutex writing;

void count(const std::string& name) {
  std::lock_guard<std::mutex> held(writing);
  waits[name]++;
}

struct Guard final : public c10::impl::NoOpDeviceGuardImpl<CARD> {
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return card; }
  c10::Device exchangeDevice(c10::Device) const override { return card; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, card); }
  c10::Stream getNewStream(c10::Device, int) const override { return c10::Stream(c10::Stream::DEFAULT, card); }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, card); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, card); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

struct Allocator final : public c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr there = c10::GetCPUAllocator()->allocate(size);
    void* place = there.get();
    auto* kept = new c10::DataPtr(std::move(there));
    return {place, kept, [](void* context) { delete static_cast<c10::DataPtr*>(context); }, card};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};
Allocator memory;
REGISTER_ALLOCATOR(CARD, &memory)

// --- both sides of the same memory --------------------------------------------------------------------------------

at::Tensor on_processor(const at::Tensor& there) {
  return at::from_blob(there.data_ptr(), there.sizes(), there.strides(), [there](void*) {},
                       there.options().device(c10::kCPU).requires_grad(false));
}

at::Tensor on_card(const at::Tensor& here) {
  at::Tensor made = at::detail::empty_strided_generic(here.sizes(), here.strides(), &memory,
                                                c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), here.scalar_type());
  on_processor(made).copy_(here);
  return made;
}

void change_size(const at::Tensor& of, at::IntArrayRef size) {
  auto* impl = of.unsafeGetTensorImpl();
  const size_t needed = (impl->storage_offset() + c10::multiply_integers(size)) * of.element_size();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (storage->nbytes() < needed) {
    auto more = memory.allocate(needed);
    std::memcpy(more.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(more));
    storage->set_nbytes(needed);
  }
  impl->set_sizes_contiguous(size);
}

at::Tensor empty(at::SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(type),
                                   format);
}

at::Tensor empty_strided(at::SymIntArrayRef size, at::SymIntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (to.is_cpu()) count("copy to the processor");
  at::Tensor source = from.is_cpu() ? from : on_processor(from);
  at::Tensor target = to.is_cpu() ? to : on_processor(to);
  target.copy_(source);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  change_size(to, from.sizes());
  return copy_from(from, to, false);
}

at::Scalar one_number(const at::Tensor& self) {
  count("one number");
  return on_processor(self).item();
}

at::Tensor as_strided(const at::Tensor& self, at::SymIntArrayRef size, at::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  std::optional<int64_t> start;
  if (offset.has_value()) start = offset->guard_int(__FILE__, __LINE__);
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

at::Tensor view(const at::Tensor& self, at::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, at::SymIntArrayRef size, at::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize(const at::Tensor& self, at::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  change_size(self, C10_AS_INTARRAYREF_SLOW(size));
  return self;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  std::optional<at::Tensor> shift;
  if (bias.has_value() && bias->defined()) shift = on_processor(*bias);
  return on_card(at::convolution(on_processor(input), on_processor(weight), shift, stride, padding, dilation,
                                 transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& slope, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> asked) {
  auto found = at::convolution_backward(on_processor(slope), on_processor(input), on_processor(weight),
                                        at::OptionalIntArrayRef({weight.size(transposed ? 1 : 0)}), stride, padding,
                                        dilation, transposed, output_padding, groups, asked);
  auto moved = [](const at::Tensor& one) { return one.defined() ? on_card(one) : one; };
  return {moved(std::get<0>(found)), moved(std::get<1>(found)), moved(std::get<2>(found))};
}

// --- every other operation ----------------------------------------------------------------------------------------

const std::set<std::string> WAITING = {"aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
                                       "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
                                       "aten::repeat_interleave"};

bool is_index(const std::string& name) {
  return name.rfind("aten::index", 0) == 0 || name == "aten::_index_put_impl_" || name.rfind("aten::_unsafe_index", 0) == 0;
}

void run_on_processor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const auto arguments = schema.arguments().size();
  const auto begin = stack->size() - arguments;
  const bool indexed = is_index(name) && name != "aten::index_select" && name != "aten::index_add" &&
                       name != "aten::index_add_" && name != "aten::index_copy_" && name != "aten::index_copy" &&
                       name != "aten::index_fill_";
  std::vector<c10::IValue> given(stack->begin() + begin, stack->end());
  if (WAITING.count(name)) count(name);
  for (size_t place = 0; place < arguments; place++) {
    auto& value = (*stack)[begin + place];
    auto fetched = [&](const at::Tensor& one, bool index) {
      if (!one.defined()) return one;
      if (index && (one.scalar_type() == at::kBool || one.scalar_type() == at::kByte)) count(name + " by a mask");
      if (one.device().type() == CARD) return on_processor(one);
      TORCH_CHECK(one.dim() == 0 || (index && given[0].toTensor().device().type() == CARD), name,
                  ": tensors on different devices: ", schema.arguments()[place].name(), " is on the processor");
      return one;
    };
    const auto* output = schema.arguments()[place].alias_info();
    if (value.isTensor() && output != nullptr && output->isWrite() && value.toTensor().numel() == 0) {
      value = at::empty({0}, value.toTensor().options().device(c10::kCPU));  // it may be made larger
    } else if (value.isTensor()) {
      value = fetched(value.toTensor(), false);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) list.push_back(fetched(one, indexed));
      value = c10::IValue(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      const auto asked = value.toOptionalTensorList();
      for (const std::optional<at::Tensor> one : asked) {
        list.push_back(one.has_value() ? std::optional<at::Tensor>(fetched(*one, indexed)) : std::nullopt);
      }
      value = c10::IValue(list);
    } else if (value.isDevice()) {
      value = c10::IValue(c10::Device(c10::kCPU));
    } else if (value.isGenerator()) {
      TORCH_CHECK(false, name, ": a generator of the processor was given for the card");
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const auto& returns = schema.returns();
  const auto first = stack->size() - returns.size();
  for (size_t place = 0; place < returns.size(); place++) {
    auto& value = (*stack)[first + place];
    const auto* alias = returns[place].alias_info();
    if (value.isTensor() && alias != nullptr && alias->isWrite()) {
      for (size_t from = 0; from < arguments; from++) {
        const auto* of = schema.arguments()[from].alias_info();
        if (of == nullptr || !given[from].isTensor() || of->beforeSets() != alias->beforeSets()) continue;
        const at::Tensor& original = given[from].toTensor();
        if (original.sizes() != value.toTensor().sizes()) {  // an output that was given empty
          change_size(original, value.toTensor().sizes());
          on_processor(original).copy_(value.toTensor());
        }
        value = given[from];
        break;
      }
    } else if (value.isTensor() && value.toTensor().defined()) {
      value = on_card(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) list.push_back(on_card(one));
      value = c10::IValue(list);
    }
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_processor>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &one_number);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("waits", [] { std::lock_guard<std::mutex> held(writing); return waits; });
  m.def("forget", [] { std::lock_guard<std::mutex> held(writing); waits.clear(); });
}
