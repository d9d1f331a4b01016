// The interface: streams.
#include <cuda_runtime_api.h>

#include "call.h"
#include "capture.h"
#include "context.h"
#include "device.h"
#include "graph.h"
#include "pools.h"
#include "process.h"
#include "stream.h"

using namespace simcuda;

namespace {

std::shared_ptr<Stream> created_stream(cudaStream_t handle) {
  check(handle != nullptr && handle != cudaStreamLegacy && handle != cudaStreamPerThread,
        cudaErrorInvalidResourceHandle);
  return find_stream(handle);
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  SIMCUDA_CALL(device, {
    check(stream != nullptr && (flags == cudaStreamDefault || flags == cudaStreamNonBlocking));
    *stream = create_stream(current_device(), flags, priority)->handle();
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

SIMCUDA_EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

SIMCUDA_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  SIMCUDA_CALL(driver, {
    const auto found = created_stream(stream);
    leave_capture(*found);
    destroy_stream(*found);
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  SIMCUDA_CALL(driver, {
    check(priority != nullptr);
    *priority = find_stream(stream)->priority();
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  SIMCUDA_CALL(driver, {
    check(flags != nullptr);
    *flags = find_stream(stream)->flags();
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  SIMCUDA_CALL(driver, {
    check(id != nullptr);
    *id = find_stream(stream)->id();
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  SIMCUDA_CALL(driver, {
    check(device != nullptr);
    *device = find_stream(stream)->device().index;
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  SIMCUDA_CALL(device, {
    const auto found = find_stream(stream);
    check(found->device().error());
    forbid_captured(*found, "cudaStreamQuery");
    activity::describe_wait(SimcudaWait::stream, found->device().index, found->activity_id());
    if (!found->poll()) return cudaErrorNotReady;
    races::learn(found->timeline());
    return cudaSuccess;
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  SIMCUDA_CALL(device, {
    const auto found = find_stream(stream);
    check(found->device().error());
    forbid_captured(*found, "cudaStreamSynchronize");
    activity::describe_wait(SimcudaWait::stream, found->device().index, found->activity_id());
    found->drain();
    release_after_wait(found->device());
    return found->device().error();
  });
}

SIMCUDA_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  SIMCUDA_CALL(device, {
    check(function != nullptr);
    Operation operation;
    operation.type = cudaGraphNodeTypeHost;
    operation.name = "host function";
    operation.work = host_work(function, data);
    operation.tells_host = true;
    operation.params.host.fn = function;
    operation.params.host.userData = data;
    return submit(*find_stream(stream), std::move(operation));
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                                 unsigned flags) {
  SIMCUDA_CALL(device, {
    check(callback != nullptr && flags == 0);
    const auto found = find_stream(stream);
    check(found->device().error());
    if (const auto capture = capture_of(*found)) {
      // Unlike a host function, the callback receives the stream's status, which a capturing stream does not have.
      const std::lock_guard lock(graphs_mutex());
      capture->invalidate("cudaStreamAddCallback");
      throw Error(cudaErrorStreamCaptureUnsupported);
    }
    forbid_implicit(*found, "cudaStreamAddCallback");
    // The callback runs even if the device has failed, and receives the error.
    std::vector<Item> items;
    items.push_back({nullptr,
                     [=, &device = found->device(), before = found->mark()] {
                       const InHostFunction inside;
                       callback(stream, device.error(), data);
                       races::learn(*before);
                     },
                     nullptr});
    found->push(std::move(items));
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void*, size_t, unsigned) {
  SIMCUDA_CALL(device, {
    const auto found = find_stream(stream);
    forbid_captured(*found, "cudaStreamAttachMemAsync");
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID attribute,
                                                  const cudaStreamAttrValue* value) {
  SIMCUDA_CALL(device, {
    check(value != nullptr);
    const auto found = find_stream(stream);
    switch (attribute) {
      case cudaLaunchAttributeAccessPolicyWindow:
      case cudaLaunchAttributeSynchronizationPolicy:
      case cudaLaunchAttributeMemSyncDomainMap:
      case cudaLaunchAttributeMemSyncDomain: {
        const std::lock_guard lock(graphs_mutex());
        found->attributes[attribute] = *value;
        return;
      }
      default:
        throw Error(cudaErrorInvalidValue);
    }
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaStreamAttrID attribute,
                                                  cudaStreamAttrValue* value) {
  SIMCUDA_CALL(device, {
    check(value != nullptr);
    const auto found = find_stream(stream);
    *value = {};
    switch (attribute) {
      case cudaLaunchAttributePriority:
        value->priority = found->priority();
        return;
      case cudaLaunchAttributeSynchronizationPolicy:
        value->syncPolicy = cudaSyncPolicyAuto;
        break;
      case cudaLaunchAttributeAccessPolicyWindow:
      case cudaLaunchAttributeMemSyncDomainMap:
      case cudaLaunchAttributeMemSyncDomain:
        break;
      default:
        throw Error(cudaErrorInvalidValue);
    }
    const std::lock_guard lock(graphs_mutex());
    if (const auto set = found->attributes.find(attribute); set != found->attributes.end()) *value = set->second;
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  SIMCUDA_CALL(device, {
    const auto target = find_stream(to), source = find_stream(from);
    const std::lock_guard lock(graphs_mutex());
    target->attributes = source->attributes;
  });
}

SIMCUDA_EXPORT std::uint64_t simcudaStreamNumber(const void* handle, int per_thread) {
  if (forked()) return simcuda_no_stream;
  try {
    const auto stream = static_cast<cudaStream_t>(const_cast<void*>(handle));
    return find_stream(per_thread && handle == nullptr ? cudaStreamPerThread : stream)->activity_id();
  } catch (const Error&) {
    return simcuda_no_stream;
  }
}
