// Runs the tests of CUPTI, each in its own child process: `cupti_test [NAME...]`.

#include "client.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>

namespace simcuda::cupti::testing {

namespace {

std::mutex mutex;  // any thread that fills a buffer returns it

void requested(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
  const std::lock_guard lock(mutex);
  ++client().requests;
  *buffer = client().has_buffers ? static_cast<std::uint8_t*>(std::aligned_alloc(8, client().size)) : nullptr;
  *size = *buffer == nullptr ? 0 : client().size;
  *most = client().most;
}

void completed(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  std::size_t dropped = 0;
  OK(cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped));  // as NVIDIA's samples do
  const std::lock_guard lock(mutex);
  ++client().completions;
  client().dropped += dropped;
  CUpti_Activity* record = nullptr;
  std::uint8_t* last = nullptr;
  const auto keep = [&](const std::uint8_t* end) {
    if (last != nullptr) client().records.push_back({static_cast<const std::uint8_t*>(last), end});
  };
  CUptiResult result;
  while ((result = cuptiActivityGetNextRecord(buffer, valid, &record)) == CUPTI_SUCCESS) {
    keep(reinterpret_cast<std::uint8_t*>(record));
    last = reinterpret_cast<std::uint8_t*>(record);
  }
  EQUAL(result, CUPTI_ERROR_MAX_LIMIT_REACHED);
  keep(buffer + valid);
  // A record may be read as the longest layout.
  for (auto& bytes : client().records) bytes.resize(std::max<std::size_t>(bytes.size(), 512));
  std::free(buffer);
}

}  // namespace

void check_success(const char* file, int line, const char* text, int got) {
  if (got != 0) fail(file, line, std::string(text) + ": " + std::to_string(got));
}

Client& client() {
  static Client* const client = new Client;
  return *client;
}

void register_client() { OK(cuptiActivityRegisterCallbacks(requested, completed)); }

std::vector<CUpti_ActivityKind> kinds() {
  std::vector<CUpti_ActivityKind> found;
  for (const auto& bytes : client().records) {
    CUpti_Activity record;
    std::memcpy(&record, bytes.data(), sizeof record);
    found.push_back(record.kind);
  }
  return found;
}

}  // namespace simcuda::cupti::testing

int main(int count, char** arguments) {
  setenv("SIMCUDA_DEVICE_COUNT", "2", 1);
  setenv("SIMCUDA_DEVICE_MEMORY", "64MiB", 1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  return simcuda::cupti::testing::run(count - 1, arguments + 1);
}
