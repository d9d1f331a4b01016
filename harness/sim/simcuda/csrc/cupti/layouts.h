// The record layouts that the newest clients of these headers read. Each layout begins with the older ones.
#pragma once

#include <cupti.h>

#include <cstddef>

namespace simcuda::cupti {

#if CUPTI_API_VERSION >= 130100
using KernelRecord = CUpti_ActivityKernel11;
#elif CUPTI_API_VERSION >= 130000
using KernelRecord = CUpti_ActivityKernel10;
#else
using KernelRecord = CUpti_ActivityKernel9;
#endif

#if CUPTI_API_VERSION >= 26  // CUDA 12.8
using CopyRecord = CUpti_ActivityMemcpy6;
using WaitRecord = CUpti_ActivitySynchronization2;
using EventRecord = CUpti_ActivityCudaEvent2;
using OverheadRecord = CUpti_ActivityOverhead3;
#else
using CopyRecord = CUpti_ActivityMemcpy5;
using WaitRecord = CUpti_ActivitySynchronization;
using EventRecord = CUpti_ActivityCudaEvent;
using OverheadRecord = CUpti_ActivityOverhead;
#endif

using PeerCopyRecord = CUpti_ActivityMemcpyPtoP4;
using FillRecord = CUpti_ActivityMemset4;
using CallRecord = CUpti_ActivityAPI;
using ExternalRecord = CUpti_ActivityExternalCorrelation;

constexpr std::size_t padded(std::size_t size) {
  constexpr std::size_t alignment = ACTIVITY_RECORD_ALIGNMENT;
  return (size + alignment - 1) / alignment * alignment;
}

}  // namespace simcuda::cupti
