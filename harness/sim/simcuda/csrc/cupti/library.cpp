// CUPTI API, "CUPTI Version", "CUPTI Result Codes", "CUPTI Callback API".

#include <cupti.h>

#include <initializer_list>

#include "callbacks.h"
#include "names.h"
#include "observer.h"

#define CUPTI_EXPORT extern "C" __attribute__((visibility("default")))

using namespace simcuda::cupti;

CUPTI_EXPORT CUptiResult cuptiGetVersion(uint32_t* version) {
  if (version == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *version = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}

CUPTI_EXPORT CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  if (text == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  switch (static_cast<int>(result)) {
#define RESULT(number, name) \
  case number:               \
    *text = #name;           \
    return CUPTI_SUCCESS;
#include "results.def"
#undef RESULT
    default:
      return CUPTI_ERROR_INVALID_PARAMETER;
  }
}

CUPTI_EXPORT CUptiResult cuptiSupportedDomains(size_t* count, CUpti_DomainTable* table) {
  static CUpti_CallbackDomain domains[] = {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_CB_DOMAIN_RUNTIME_API,
                                           CUPTI_CB_DOMAIN_RESOURCE};
  if (count == nullptr || table == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *count = sizeof domains / sizeof *domains;
  *table = domains;
  return CUPTI_SUCCESS;
}

CUPTI_EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* data) {
  return subscribe(handle, callback, data);
}
#ifdef CUpti_SubscriberParams_STRUCT_SIZE
CUPTI_EXPORT CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* data,
                                           CUpti_SubscriberParams* params) {
  if (params != nullptr && params->structSize == 0) return CUPTI_ERROR_INVALID_PARAMETER;
  return subscribe(handle, callback, data);
}
#endif
CUPTI_EXPORT CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle) {
  return observe_what_is_enabled(unsubscribe(handle));
}

CUPTI_EXPORT CUptiResult cuptiGetCallbackState(uint32_t* enabled, CUpti_SubscriberHandle handle,
                                               CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  if (enabled == nullptr || !is_subscriber(handle)) return CUPTI_ERROR_INVALID_PARAMETER;
  bool on = false;
  const CUptiResult result = callback_enabled(domain, id, on);
  if (result == CUPTI_SUCCESS) *enabled = on;
  return result;
}
CUPTI_EXPORT CUptiResult cuptiEnableCallback(uint32_t enabled, CUpti_SubscriberHandle handle,
                                             CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  if (!is_subscriber(handle)) return CUPTI_ERROR_INVALID_PARAMETER;
  return observe_what_is_enabled(enable_callback(domain, &id, enabled != 0));
}
CUPTI_EXPORT CUptiResult cuptiEnableDomain(uint32_t enabled, CUpti_SubscriberHandle handle,
                                           CUpti_CallbackDomain domain) {
  if (!is_subscriber(handle)) return CUPTI_ERROR_INVALID_PARAMETER;
  return observe_what_is_enabled(enable_callback(domain, nullptr, enabled != 0));
}
CUPTI_EXPORT CUptiResult cuptiEnableAllDomains(uint32_t enabled, CUpti_SubscriberHandle handle) {
  if (!is_subscriber(handle)) return CUPTI_ERROR_INVALID_PARAMETER;
  for (const auto domain : {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_RESOURCE}) {
    enable_callback(domain, nullptr, enabled != 0);
  }
  return observe_what_is_enabled();
}

CUPTI_EXPORT CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char** name) {
  if (name == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *name = domain == CUPTI_CB_DOMAIN_RUNTIME_API  ? runtime_name(id)
          : domain == CUPTI_CB_DOMAIN_DRIVER_API ? driver_name(id)
                                                 : nullptr;
  return *name == nullptr ? CUPTI_ERROR_INVALID_PARAMETER : CUPTI_SUCCESS;
}
