#include "callbacks.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>

#include "enabled.h"
#include "names.h"
#include "simcuda_driver.h"

namespace simcuda::cupti {

namespace {

Enabled enabled_[CUPTI_CB_DOMAIN_SIZE];
std::atomic<bool> subscribed{false};
std::atomic<CUpti_CallbackFunc> callback_{nullptr};
std::atomic<void*> data_{nullptr};
char subscriber;

bool known(CUpti_CallbackDomain domain) { return domain > CUPTI_CB_DOMAIN_INVALID && domain < CUPTI_CB_DOMAIN_SIZE; }

bool on(CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  return id < most_ids && enabled_[domain][id].load(std::memory_order_relaxed);
}

// Looks up a function of the simulated driver, which is already loaded. During a callback, calls of the driver are not
// observed.
template <typename Call>
Call driver(const char* name) {
  return reinterpret_cast<Call>(dlsym(RTLD_DEFAULT, name));
}

CUcontext current_context() {
  static const auto get = driver<CUresult (*)(CUcontext*)>("cuCtxGetCurrent");
  CUcontext context = nullptr;
  return get != nullptr && get(&context) == CUDA_SUCCESS ? context : nullptr;
}

CUcontext primary_context(int device) {
  static const auto retain = driver<CUresult (*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain");
  static const auto release = driver<CUresult (*)(CUdevice)>("cuDevicePrimaryCtxRelease_v2");
  CUcontext context = nullptr;
  if (retain == nullptr || release == nullptr || retain(&context, device) != CUDA_SUCCESS) return nullptr;
  release(device);  // the runtime retains the primary context
  return context;
}

void notify(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* what) {
  if (const auto callback = callback_.load(std::memory_order_acquire)) {
    callback(data_.load(std::memory_order_acquire), domain, id, what);
  }
}

void notify_call(const SimcudaActivity& activity, CUpti_ApiCallbackSite site) {
  const auto domain = activity.driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
  const Function function = function_of(activity);
  if (function.id == 0 || !on(domain, function.id)) return;
  int result = activity.result;
  CUpti_CallbackData data{};
  data.callbackSite = site;
  data.functionName = function.name;
  data.functionReturnValue = site == CUPTI_API_EXIT ? &result : nullptr;
  data.context = current_context();
  data.contextUid = data.context == nullptr ? 0 : context_of(simcudaCurrentDevice());
  data.correlationData = activity.data;
  data.correlationId = activity.correlation;
  notify(domain, function.id, &data);
}

}  // namespace

CUptiResult subscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* data) {
  if (handle == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  if (subscribed.exchange(true)) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  data_.store(data, std::memory_order_release);
  callback_.store(callback, std::memory_order_release);
  *handle = reinterpret_cast<CUpti_SubscriberHandle>(&subscriber);
  return CUPTI_SUCCESS;
}

CUptiResult unsubscribe(CUpti_SubscriberHandle handle) {
  if (!is_subscriber(handle)) return CUPTI_ERROR_INVALID_PARAMETER;
  disable_callbacks();
  return CUPTI_SUCCESS;
}

bool is_subscriber(CUpti_SubscriberHandle handle) {
  return subscribed && handle == reinterpret_cast<CUpti_SubscriberHandle>(&subscriber);
}

CUptiResult enable_callback(CUpti_CallbackDomain domain, const CUpti_CallbackId* id, bool enabled) {
  if (!known(domain) || (id != nullptr && (*id == 0 || *id >= most_ids))) return CUPTI_ERROR_INVALID_PARAMETER;
  if (id != nullptr) {
    enabled_[domain][*id] = enabled;
  } else {
    for (auto& one : enabled_[domain]) one = enabled;
  }
  return CUPTI_SUCCESS;
}

CUptiResult callback_enabled(CUpti_CallbackDomain domain, CUpti_CallbackId id, bool& enabled) {
  if (!known(domain) || id == 0 || id >= most_ids) return CUPTI_ERROR_INVALID_PARAMETER;
  enabled = on(domain, id);
  return CUPTI_SUCCESS;
}

void disable_callbacks() {
  callback_.store(nullptr, std::memory_order_release);
  for (auto& domain : enabled_) {
    for (auto& one : domain) one = false;
  }
  subscribed = false;
}

bool call_callbacks_enabled() {
  return any(enabled_[CUPTI_CB_DOMAIN_RUNTIME_API]) || any(enabled_[CUPTI_CB_DOMAIN_DRIVER_API]);
}

bool context_callbacks_enabled() { return on(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED); }

void call_back(const SimcudaActivity& activity) {
  switch (activity.kind) {
    case SimcudaActivityKind::call_begins:
      notify_call(activity, CUPTI_API_ENTER);
      break;
    case SimcudaActivityKind::call:
      notify_call(activity, CUPTI_API_EXIT);
      break;
    case SimcudaActivityKind::context: {
      if (!context_callbacks_enabled()) break;
      CUpti_ResourceData data{};
      data.context = primary_context(activity.device);
      notify(CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED, &data);
      break;
    }
    default:
      break;
  }
}

}  // namespace simcuda::cupti
