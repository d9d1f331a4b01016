// Copies within a device, between devices, and between device and host, with conversions of type and layout.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/expand.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "../core/faults.h"
#include "../core/pinned.h"
#include "../operators/launch.h"
#include "common.h"
#include "factories.h"

namespace soft::aten {
namespace {

using operators::Operand;

bool on_device(const at::Tensor& tensor) { return tensor.device().type() == kSoft; }

// Copies in a stream's thread. Faults skip the last quarter, or flip a bit in the middle.
void transfer(const Operand& to, const Operand& from) {
  const at::Tensor target = to.tensor();
  const bool drops = strikes(Fault::copy_drops_bytes);
  const bool corrupts = strikes(Fault::copy_corrupts_bytes);
  if (!drops && !corrupts) {
    target.copy_(from.tensor());
    return;
  }
  const at::Tensor before = target.clone(at::MemoryFormat::Contiguous).reshape({-1});
  at::Tensor after = before.clone();
  after.view(target.sizes()).copy_(from.tensor());
  if (drops) {
    const std::int64_t kept = after.numel() - std::max<std::int64_t>(after.numel() / 4, 1);
    after.slice(0, kept).copy_(before.slice(0, kept));
  }
  if (corrupts) {
    static_cast<std::uint8_t*>(after.data_ptr())[after.nbytes() / 2] ^= 1;
  }
  target.copy_(after.view(target.sizes()));
}

void launch_transfer(Stream& stream, Operand to, Operand from) {
  operators::enqueue(operators::Stream(stream), "aten::copy_",
                     [to = std::move(to), from = std::move(from)] { transfer(to, from); });
}

// Returns the source's current stream after making it wait for the target's stream. Later work on the target's stream
// waits for the copy.
Stream& between(const at::Tensor& to, const at::Tensor& from) {
  Stream& source = stream_of(from);
  Stream& target = stream_of(to);
  if (&source != &target) {
    translated([&] { source.wait(target.mark()); });
  }
  launch_transfer(source, Operand(to), Operand(from));
  if (&source != &target) {
    translated([&] { target.wait(source.mark()); });
  }
  return source;
}

bool pinned(const at::Tensor& host) { return PinnedAllocator::get().owns(host.storage().data()); }

// Keeps pinned memory until the stream has used it.
void keep(const at::Tensor& host, Stream& stream) { PinnedAllocator::get().record(host.storage().data(), stream); }

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  TORCH_CHECK(self.defined() && source.defined(), "copy_: an undefined tensor");
  TORCH_CHECK(self.layout() == c10::kStrided && source.layout() == c10::kStrided, "soft: only strided tensors");
  TORCH_CHECK((on_device(self) || self.is_cpu()) && (on_device(source) || source.is_cpu()), "copy_: cannot copy from ",
              source.device(), " to ", self.device());
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (self.is_same(source)) {
    return self;
  }
  if (source._is_zerotensor()) {
    return self.zero_();
  }
  const at::Tensor from = source.expand(self.sizes());
  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, from);
  if (self.numel() == 0) {
    return self;
  }

  bool returns_at_once = true;
  Stream* stream = nullptr;
  if (on_device(self) && on_device(from)) {
    stream = &between(self, from);
  } else if (on_device(self)) {
    stream = &stream_of(self);
    returns_at_once = non_blocking;
    // Memory that is not pinned is read now, since it may change or be freed after this call has returned.
    const bool later = non_blocking && pinned(from);
    launch_transfer(*stream, Operand(self), later ? Operand(from) : Operand::constant(from));
    if (later) {
      keep(from, *stream);
    }
  } else {
    stream = &stream_of(from);
    returns_at_once = non_blocking && pinned(self);
    launch_transfer(*stream, Operand(self), Operand(from));
    if (returns_at_once) {
      keep(self, *stream);
    }
  }
  if (!returns_at_once || (stream->capture() == nullptr && strikes(Fault::non_blocking_blocks))) {
    translated([&] { stream->synchronize(); });
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  at::Tensor result = target;
  return copy_(result, source, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) {
    target.resize_(source.sizes());
  }
  return copy_from(source, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  translated([&] { stream_of(self).synchronize(); });
  return at::_local_scalar_dense(Operand(self).tensor());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("copy_", copy_);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar_dense);
}

}  // namespace soft::aten
