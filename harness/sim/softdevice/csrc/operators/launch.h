// Operators that run later than their launch. The launch computes shapes and types on tensors without data, and
// allocates the outputs. The CPU's kernels compute the results in the stream's thread, on tensors that alias the
// device's memory.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "front.h"
#include "on_host.h"

namespace operators {

// Prepares a thread of streams once: its kernels run single-threaded, autograd records nothing, and torch's libraries
// have made their allocations per thread, around 35 KiB.
void prepare_thread();

// A tensor in a piece of work: its address and layout, but no reference to it.
class Operand {
 public:
  Operand() = default;                              // an undefined tensor
  explicit Operand(const at::Tensor& device);       // aliases its memory
  static Operand constant(const at::Tensor& host);  // holds a copy of the host tensor's current value

  bool defined() const { return dtype_ != c10::ScalarType::Undefined; }
  bool holds_elements() const { return host_.defined() ? host_.numel() > 0 : address_ != nullptr; }
  // Returns the tensor for the CPU. Call it in a stream's thread.
  at::Tensor tensor() const;
  // Copies the result of a kernel that was given `tensor()` and has left it elsewhere, because it resized it.
  void take(const at::Tensor& written) const;
  // Returns an operand with a copy of the memory's current contents, without waiting for pending writes.
  Operand frozen() const;

 private:
  void* address_ = nullptr;
  c10::DimVector sizes_, strides_;
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
  bool conjugate_ = false, negative_ = false;
  at::Tensor host_;
};

// Launches work that calls the CPU's kernels. An exception becomes a device-side assertion. `name` must never be freed.
void enqueue(const Stream& stream, const char* name, std::function<void()> work, const Accesses& accesses = {});

// Determines the device of an operator's tensors, on whose current stream the operator is launched. Throws c10::Error
// if they are on several devices. Host tensors count as a device of their own unless `host_allowed`.
class Meeting {
 public:
  explicit Meeting(const char* name) : name_(name) {}
  void add(const at::Tensor& tensor, bool host_allowed);
  c10::DeviceIndex device() const;

 private:
  [[noreturn]] void refuse(c10::Device other) const;
  const char* name_;
  std::optional<c10::Device> device_, host_;
};

// Computes an operator's results from the arguments on the stack, with "meta" tensors in place of all tensors. Throws
// the operator's errors.
using Shape = std::function<void(const c10::OperatorHandle&, Stack*)>;
// Computes the results on CPU tensors, in the stream's thread.
using Body = std::function<void(const c10::OperatorHandle&, Stack*)>;

struct Recipe {
  Shape shape;                   // none: no checks, and all results are arguments
  Body body;                     // none: the CPU's kernel of the same operator
  const char* kernel = nullptr;  // the name of the device's kernel; null: the operator's name
  bool host_operands = false;    // whether operands may be host tensors of any size
  // Throws errors that the body would throw too late. Called first, with the device's tensors.
  void (*check)(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) = nullptr;
  // Evaluated at each launch, with the arguments on top of the stack.
  using Question = bool (*)(const Stack& stack, std::size_t arguments);
  Question draws = nullptr;     // whether the body gets a generator as an additional argument
  Question declines = nullptr;  // whether the fallback handles the call
};

// The boxed kernel of one operator.
class Launch final : public c10::OperatorKernel {
 public:
  explicit Launch(Recipe recipe) : recipe_(std::move(recipe)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

  struct Call;
  struct Plan;

 private:
  const Plan& plan(const c10::OperatorHandle& op);

  const Recipe recipe_;
  std::once_flag planned_;
  std::shared_ptr<const Plan> plan_;
};

}  // namespace operators
