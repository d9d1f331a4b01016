// Functions of the runtime that operators and collectives call: launches, and the state of captures.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "../include/simcuda.h"
#include "../include/simcuda_shared.h"
#include "call.h"
#include "capture.h"
#include "context.h"
#include "operation.h"
#include "races.h"
#include "trace.h"

using namespace simcuda;

namespace {

thread_local std::optional<std::vector<races::Access>> declared;

void take_declared(Operation& operation) {
  operation.unknown = !declared;
  operation.accesses = std::exchange(declared, std::nullopt).value_or(std::vector<races::Access>());
}

}  // namespace

SIMCUDA_EXPORT void simcudaDeclare(const SimcudaAccess* accesses, std::size_t count) {
  declared.emplace(accesses, accesses + count);
}

SIMCUDA_EXPORT int simcudaLaunch(cudaStream_t stream, const char* name, std::function<void()>* work) {
  SIMCUDA_CALL(device, {
    count("operator", name);
    Operation operation;
    operation.name = name;
    operation.work = std::move(*work);
    take_declared(operation);
    return submit(*find_stream(stream), std::move(operation));
  });
}

SIMCUDA_EXPORT int simcudaLaunchShared(cudaStream_t stream, const char* name,
                                       std::function<void(std::function<void()>)>* begin, std::function<void()>* work) {
  SIMCUDA_CALL(device, {
    count("shared work", name);
    Operation operation;
    operation.name = name;
    operation.begin = [begin = std::move(*begin)](std::shared_ptr<Mark> mark) {
      begin([mark = std::move(mark)] { mark->finish(); });
    };
    operation.work = std::move(*work);
    take_declared(operation);
    return submit(*find_stream(stream), std::move(operation));
  });
}

SIMCUDA_EXPORT int simcudaIsCapturing(cudaStream_t stream) {
  if (!any_capture()) return 0;
  try {
    return capture_of(*find_stream(stream)) != nullptr;
  } catch (const Error&) {
    return 0;
  }
}

SIMCUDA_EXPORT void simcudaInvalidateCapture(cudaStream_t stream, const char* why) {
  if (!any_capture()) return;
  const std::lock_guard lock(graphs_mutex());
  try {
    if (const auto capture = capture_of(*find_stream(stream))) capture->invalidate(why);
  } catch (const Error&) {
  }
}
