// Copies. torch's own code handles plain memory copies, pinned memory and temporaries. This file replaces its kernels:
// copies on the device that change the type or the layout.
#include "copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/cuda/PeerToPeerAccess.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/expand.h>
#include <c10/core/Event.h>

#include "front.h"
#include "launch.h"

namespace simcuda {
namespace {

using operators::Operand;

bool plain(const at::Tensor& tensor) {
  return tensor.is_cuda() && tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor._is_zerotensor();
}

// Whether the copy is a plain copy of memory.
bool bytes_alone(const at::Tensor& self, const at::Tensor& source) {
  if (self.scalar_type() != source.scalar_type() || self.is_conj() != source.is_conj() ||
      self.is_neg() != source.is_neg() || self.sizes() != source.sizes()) {
    return false;
  }
  return (self.is_contiguous() && source.is_contiguous()) ||
         (self.strides() == source.strides() && self.is_non_overlapping_and_dense());
}

}  // namespace

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.device() != source.device() && (self.is_conj() != source.is_conj() || self.is_neg() != source.is_neg())) {
    // After a plain copy, torch would run a kernel of its own on the target.
    at::Tensor to = self, from = source;
    if (to.is_conj()) {
      to = to.conj();
      from = from.conj();
    }
    if (to.is_neg()) {
      to = to._neg_view();
      from = from._neg_view();
    }
    to.copy_(from.resolve_conj().resolve_neg(), non_blocking);
    return self;
  }
  if (!plain(self) || !plain(source) || bytes_alone(self, source)) {
    return at::native::copy_(self, source, non_blocking);
  }
  if (self.device() != source.device() && !at::cuda::get_p2p_access(source.device().index(), self.device().index())) {
    return at::native::copy_(self, source, non_blocking);  // by temporaries, whose copies call this function again
  }
  const at::Tensor from = source.expand(self.sizes());
  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, from);
  if (self.numel() == 0) {
    return self;
  }
  // The copy runs on the source's current stream, after the work on the target's stream. Later work there waits for the
  // copy.
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(source.device().index());
  const c10::cuda::CUDAStream target = c10::cuda::getCurrentCUDAStream(self.device().index());
  const auto follow = [](const c10::cuda::CUDAStream& later, const c10::cuda::CUDAStream& earlier) {
    if (later != earlier) {
      c10::Event event(c10::DeviceType::CUDA);
      event.record(earlier.unwrap());
      event.block(later.unwrap());
    }
  };
  follow(stream, target);
  operators::Accesses accesses;
  accesses.read(from);
  accesses.write(self);
  operators::enqueue(
      operators::Stream(stream), "aten::copy_",
      [to = Operand(self), from = Operand(from)] { to.tensor().copy_(from.tensor()); }, accesses);
  follow(target, stream);
  return self;
}

}  // namespace simcuda
