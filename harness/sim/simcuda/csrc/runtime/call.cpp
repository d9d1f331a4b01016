#include "call.h"

#include "access.h"
#include "device.h"
#include "process.h"
#include "trace.h"

namespace simcuda {

cudaError_t begin_call(const char* name, Needs needs) {
  count("call", name);
  note_host_thread();
  if (needs == Needs::nothing) return cudaSuccess;
  if (InHostFunction::now()) return cudaErrorNotPermitted;
  if (forked()) return cudaErrorInitializationError;
  initialize();
  if (needs == Needs::driver) return cudaSuccess;
  note_use();
  const int index = current_index();
  return index < 0 ? cudaErrorNoDevice : device(index).error();
}

}  // namespace simcuda
