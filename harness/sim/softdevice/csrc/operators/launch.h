// Operators that run later than their launch: shapes and types are settled at once, on tensors without data, outputs
// are allocated at once, and the arithmetic is done in the stream's thread by the CPU's kernels, on tensors that alias
// the device's memory.
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

// Prepares a thread of streams once: kernels there use that thread alone, nothing is recorded for autograd, and torch's
// libraries have allocated what they keep for each thread, some 35 KiB.
void prepare_thread();

// A tensor as a piece of work knows it: where it is and how it is laid out, and no reference to it.
class Operand {
 public:
  Operand() = default;                              // an undefined tensor
  explicit Operand(const at::Tensor& device);       // aliases its memory
  static Operand constant(const at::Tensor& host);  // a value of its own: what the host's tensor holds now

  bool defined() const { return dtype_ != c10::ScalarType::Undefined; }
  bool holds_elements() const { return host_.defined() ? host_.numel() > 0 : address_ != nullptr; }
  // The tensor, for the CPU; in a stream's thread.
  at::Tensor tensor() const;
  // Copies the result of a kernel that was given `tensor()` and has left it elsewhere, because it resized it.
  void take(const at::Tensor& written) const;
  // One that holds what the memory holds now, whoever may be writing there.
  Operand frozen() const;

 private:
  void* address_ = nullptr;
  c10::DimVector sizes_, strides_;
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
  bool conjugate_ = false, negative_ = false;
  at::Tensor host_;
};

// Launches work that calls the CPU's kernels. What it throws becomes a device-side assertion.
// `name` must live for ever.
void enqueue(const Stream& stream, const char* name, std::function<void()> work);

// The stream that an operator on these tensors is launched on: the current one of their device. Throws c10::Error when
// they are on several devices, of which tensors of the host with a dimension count as one.
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

// From an operator's arguments on the stack, with tensors of the device "meta" in the place of all tensors, to its
// results. Throws what the operator is to throw.
using Shape = std::function<void(const c10::OperatorHandle&, Stack*)>;
// The same on the CPU's tensors, in the stream's thread.
using Body = std::function<void(const c10::OperatorHandle&, Stack*)>;

struct Recipe {
  Shape shape;                   // none: nothing is checked, and all results are arguments
  Body body;                     // none: the CPU's kernel of the same operator
  const char* kernel = nullptr;  // its name among the device's kernels; none: the operator's
  bool host_operands = false;    // whether tensors of the host of any size may stand among its operands
  // Throws what the body would throw too late. Called first, with the device's tensors.
  void (*check)(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) = nullptr;
  // Asked at each launch, with the arguments on top of the stack.
  using Question = bool (*)(const Stack& stack, std::size_t arguments);
  Question draws = nullptr;     // whether the body is given a generator as one argument more
  Question declines = nullptr;  // whether the fallback is to do it
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
