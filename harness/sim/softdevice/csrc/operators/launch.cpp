#include "launch.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "fallback.h"
#include "unobserved.h"

namespace operators {

void prepare_thread() {
  struct Prepared {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Prepared() {
      const at::DisableRecordFunctionGuard unobserved;
      at::get_num_threads();  // otherwise ATen would set the number in its first parallel region
      omp_set_num_threads(1);
      at::detail::empty_cpu({1}, at::kFloat).fill_(0);
    }
  };
  static thread_local Prepared prepared;
}

namespace {

// Whether the operator ignores the argument: products add `self` times beta, and do not read it where beta is 0.
bool is_ignored(const c10::FunctionSchema& schema, std::size_t argument, const std::vector<c10::IValue>& arguments) {
  const std::optional<int> beta = schema.argumentIndexWithName("beta");
  return argument == 0 && beta.has_value() && schema.argumentIndexWithName("alpha").has_value() &&
         arguments[static_cast<std::size_t>(*beta)].isScalar() &&
         arguments[static_cast<std::size_t>(*beta)].toScalar().equal(0);
}

// Stand-ins for tensors, without data. A tensor that is given twice, for example as input and output, has one stand-in.
// Tensors that share a storage get stand-ins that share one. So overlaps are detected.
class Stage {
 public:
  at::Tensor stand_in(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return {};
    }
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    for (const auto& [known, stand_in] : tensors_) {
      if (known == impl) {
        return stand_in;
      }
    }
    auto result = at::detail::make_tensor<c10::TensorImpl>(storage(tensor.storage()),
                                                           c10::DispatchKeySet(c10::DispatchKey::Meta), impl->dtype());
    c10::TensorImpl* stand_in = result.unsafeGetTensorImpl();
    stand_in->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (impl->is_wrapped_number()) {
      stand_in->set_wrapped_number(true);
    }
    if (tensor.is_conj()) {
      result._set_conj(true);
    }
    if (tensor.is_neg()) {
      result._set_neg(true);
    }
    tensors_.emplace_back(impl, result);
    return result;
  }

 private:
  c10::Storage storage(const c10::Storage& original) {
    const void* key = original.unsafeGetStorageImpl();
    for (const auto& [known, storage] : storages_) {
      if (known == key) {
        return storage;
      }
    }
    c10::Allocator* allocator = c10::GetAllocator(c10::kMeta);
    storages_.emplace_back(
        key, c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), original.nbytes(),
                                                   c10::DataPtr(nullptr, c10::Device(c10::kMeta)), allocator, true));
    return storages_.back().second;
  }
  c10::SmallVector<std::pair<const c10::TensorImpl*, at::Tensor>, 4> tensors_;
  c10::SmallVector<std::pair<const void*, c10::Storage>, 4> storages_;
};

bool is_generator(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) {
    return optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

// Calls `use` with each tensor of an argument, and returns the argument with the results in their place.
template <typename Use>
c10::IValue mapped(const c10::IValue& value, Use&& use) {
  if (value.isTensor()) {
    return use(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      result.push_back(use(tensor));
    }
    return result;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> result;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      result.push_back(tensor.has_value() ? std::optional<at::Tensor>(use(*tensor)) : std::nullopt);
    }
    return result;
  }
  return value;
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

Operand::Operand(const at::Tensor& device) {
  if (device.defined()) {
    address_ = device.numel() == 0 ? nullptr : device.unsafeGetTensorImpl()->mutable_data();
    sizes_ = c10::DimVector(device.sizes());
    strides_ = c10::DimVector(device.strides());
    dtype_ = device.scalar_type();
    conjugate_ = device.is_conj();
    negative_ = device.is_neg();
  }
}

Operand Operand::constant(const at::Tensor& host) {
  Operand result;
  const Unobserved unobserved;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  result.host_ = host.detach().clone();
  if (host.unsafeGetTensorImpl()->is_wrapped_number()) {
    result.host_.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  result.dtype_ = host.scalar_type();
  return result;
}

at::Tensor Operand::tensor() const {
  if (!defined() || host_.defined()) {
    return host_;
  }
  // Some kernels resize what they write, and use it as scratch memory.
  at::Tensor result = at::for_blob(address_, sizes_)
                          .strides(strides_)
                          .options(at::TensorOptions().dtype(dtype_))
                          .allocator(c10::GetAllocator(c10::kCPU))
                          .resizeable_storage()
                          .make_tensor();
  if (conjugate_) {
    result._set_conj(true);
  }
  if (negative_) {
    result._set_neg(true);
  }
  return result;
}

void Operand::take(const at::Tensor& written) const {
  if (holds_elements() && !host_.defined() && written.const_data_ptr() != address_) {
    tensor().copy_(written);
  }
}

Operand Operand::frozen() const { return defined() && !host_.defined() ? constant(tensor()) : *this; }

void enqueue(const Stream& stream, const char* name, std::function<void()> work, const Accesses& accesses) {
  stream.launch(
      name,
      [work = std::move(work)] {
        prepare_thread();
        const at::DisableRecordFunctionGuard unobserved;  // observers of all threads would attribute it to the program
        work();
      },
      accesses);
}

void Meeting::add(const at::Tensor& tensor, bool host_allowed) {
  if (!tensor.defined()) {
    return;
  }
  const c10::Device device = tensor.device();
  TORCH_CHECK(tensor.layout() == c10::kStrided, name_, ": ", kFront, ": only strided tensors, got ", tensor.layout());
  if (device.type() == kDevice) {
    if (device_.has_value() && *device_ != device) {
      refuse(device);
    }
    device_ = device;
  } else if (!host_allowed || !device.is_cpu()) {
    host_ = device;
  }
  if (device_.has_value() && host_.has_value()) {
    refuse(*host_);
  }
}

c10::DeviceIndex Meeting::device() const {
  TORCH_CHECK(device_.has_value(), name_, ": ", kFront, ": no tensor is on the device");
  return device_->index();
}

void Meeting::refuse(c10::Device other) const {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", *device_,
              " and ", other, "! (in operator ", name_, ")");
}

// The arguments and results of an operator, from its schema.
struct Launch::Plan {
  const char* name;
  std::size_t arguments;
  std::vector<bool> written;  // per argument
  std::vector<int> returned;  // per result: the argument that it is, or -1
  int generator = -1;         // the position of the generator argument, or -1
  Weakness weakness;

  explicit Plan(const c10::FunctionSchema& schema)
      : name(schema.name().c_str()), arguments(schema.arguments().size()), weakness(weakness_of(schema.name())) {
    for (std::size_t i = 0; i < arguments; ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
      if (is_generator(argument.type())) {
        generator = static_cast<int>(i);
      }
    }
    for (const c10::Argument& result : schema.returns()) {
      int which = -1;
      for (std::size_t i = 0; result.alias_info() != nullptr && i < arguments; ++i) {
        const c10::AliasInfo* info = schema.arguments()[i].alias_info();
        if (info != nullptr && info->beforeSets() == result.alias_info()->beforeSets()) {
          which = static_cast<int>(i);
        }
      }
      returned.push_back(which);
    }
  }
};

// The data of one launch's work, which may run repeatedly in replays.
struct Launch::Call {
  c10::OperatorHandle op;
  std::shared_ptr<const Plan> plan;
  Body body;
  std::vector<c10::IValue> plain;              // the arguments without tensors
  std::vector<std::vector<Operand>> operands;  // the tensors of each argument
  std::function<at::Generator()> generator;    // the source of random numbers, if any
  std::vector<std::vector<Operand>> outputs;   // per result: new outputs; empty for a result that is an argument

  c10::IValue argument(std::size_t i) const {
    std::size_t next = 0;
    const std::vector<Operand>& tensors = operands[i];
    if (tensors.empty() && !plain[i].isOptionalTensorList()) {
      return plain[i];
    }
    if (plain[i].isTensorList() || plain[i].isOptionalTensorList()) {
      return mapped(plain[i], [&](const at::Tensor&) { return tensors[next++].tensor(); });
    }
    return tensors.front().tensor();
  }

  void run() const {
    Stack stack;
    stack.reserve(plain.size() + 1);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      stack.push_back(argument(i));
    }
    if (generator) {
      if (plan->generator >= 0) {
        stack[static_cast<std::size_t>(plan->generator)] = generator();
      } else {
        stack.push_back(generator());
      }
    }
    spoil_arguments(plan->weakness, stack);
    std::vector<at::Tensor> written(plan->arguments);
    for (std::size_t i = 0; i < plan->arguments; ++i) {
      if (plan->written[i] && stack[i].isTensor()) {
        written[i] = stack[i].toTensor();
      }
    }
    if (body) {
      body(op, &stack);
    } else {
      call_on_host(op, &stack);
    }
    for (std::size_t i = 0; i < plan->arguments; ++i) {
      if (written[i].defined()) {
        operands[i].front().take(written[i]);
      }
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (stack[i].isTensor() && stack[i].toTensor().defined()) {
        at::Tensor result = stack[i].toTensor();
        spoil_result(plan->weakness, result);
        if (!outputs[i].empty() && outputs[i].front().holds_elements()) {
          outputs[i].front().tensor().copy_(result);
        }
      } else if (stack[i].isTensorList()) {
        const std::vector<at::Tensor> results = stack[i].toTensorVector();
        for (std::size_t k = 0; k < outputs[i].size(); ++k) {
          outputs[i][k].tensor().copy_(results[k]);
        }
      }
    }
  }
};

const Launch::Plan& Launch::plan(const c10::OperatorHandle& op) {
  std::call_once(planned_, [&] { plan_ = std::make_shared<const Plan>(op.schema()); });
  return *plan_;
}

void Launch::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const Plan& plan = this->plan(op);
  unify_lists(stack, plan.arguments);
  if (recipe_.declines != nullptr && recipe_.declines(*stack, plan.arguments)) {
    fallback(op, keys, stack);
    return;
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const bool draws = recipe_.draws != nullptr && recipe_.draws(*stack, plan.arguments);
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(plan.arguments);
  std::vector<c10::IValue> arguments(first, stack->end());

  Meeting meeting(plan.name);
  for (std::size_t i = 0; i < plan.arguments; ++i) {
    mapped(arguments[i], [&](const at::Tensor& tensor) {
      meeting.add(tensor, !plan.written[i] && (recipe_.host_operands || (tensor.defined() && tensor.dim() == 0)));
      return tensor;
    });
  }
  const c10::DeviceIndex device = meeting.device();
  const Stream stream = current_stream(device);

  if (recipe_.check != nullptr) {
    recipe_.check(op, arguments);
  }
  // Compute shapes and types, or raise their errors.
  Stack results;
  if (recipe_.shape) {
    Stage stage;
    Stack shapes;
    shapes.reserve(plan.arguments);
    for (const c10::IValue& argument : arguments) {
      shapes.push_back(argument.isGenerator() ? c10::IValue() : mapped(argument, [&](const at::Tensor& tensor) {
        return stage.stand_in(tensor);
      }));
    }
    results = shapes;
    recipe_.shape(op, &results);
    for (std::size_t i = 0; i < plan.arguments; ++i) {
      if (plan.written[i] && arguments[i].isTensor() && arguments[i].toTensor().defined()) {
        const at::Tensor& tensor = arguments[i].toTensor();
        const at::Tensor wanted = shapes[i].toTensor();
        if (!same_layout(tensor, wanted)) {
          resize_to(tensor, wanted.sizes(), wanted.strides());
        }
      }
    }
  }

  auto call = std::make_shared<Call>(Call{op, plan_, recipe_.body, {}, {}, {}, {}});
  const bool stale = captures_stale_inputs(stream);
  Accesses accesses;
  bool writes = false;
  std::int64_t elements = 0;  // of the largest written tensor
  const auto note_written = [&](const at::Tensor& tensor) {
    writes = true;
    accesses.write(tensor);
    elements = std::max(elements, tensor.defined() ? tensor.numel() : 0);
  };
  call->operands.resize(plan.arguments);
  call->plain.reserve(plan.arguments);
  for (std::size_t i = 0; i < plan.arguments; ++i) {
    call->plain.push_back(mapped(arguments[i], [&](const at::Tensor& tensor) {
      Operand operand = tensor.defined() && tensor.is_cpu() ? Operand::constant(tensor) : Operand(tensor);
      call->operands[i].push_back(stale && !plan.written[i] ? operand.frozen() : operand);
      if (plan.written[i]) {
        note_written(tensor);
      } else if (!is_ignored(op.schema(), i, arguments)) {
        accesses.read(tensor);
      }
      return at::Tensor();
    }));
  }

  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(plan.arguments), stack->end());
  call->outputs.resize(plan.returned.size());
  for (std::size_t i = 0; i < plan.returned.size(); ++i) {
    if (plan.returned[i] >= 0) {
      stack->push_back(arguments[static_cast<std::size_t>(plan.returned[i])]);
      continue;
    }
    stack->push_back(mapped(results[i], [&](const at::Tensor& wanted) {
      at::Tensor output;
      if (wanted.defined()) {
        output = make_strided(device, wanted.sizes(), wanted.strides(), wanted.scalar_type());
      }
      call->outputs[i].emplace_back(output);
      note_written(output);
      return output;
    }));
  }
  if (kSkipsEmpty && writes && elements == 0) {
    return;
  }

  if (draws || plan.generator >= 0) {
    std::optional<at::Generator> generator;
    if (plan.generator >= 0) {
      generator = arguments[static_cast<std::size_t>(plan.generator)].toOptional<at::Generator>();
      call->plain[static_cast<std::size_t>(plan.generator)] = c10::IValue();
    }
    call->generator = draw(generator, stream, elements);
  }
  enqueue(stream, recipe_.kernel != nullptr ? recipe_.kernel : plan.name, [call] { call->run(); }, accesses);
}

}  // namespace operators
