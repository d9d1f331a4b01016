// What a test wants the simulated devices to suffer: the file that SIMCUDA_NVML_STATE names, read at every call.
//
// A line is "<index> <word> <number>"; of several lines with the same word the last counts. Words:
//   ecc_corrected ecc_uncorrected ecc_aggregate   ECC counts: volatile, volatile, uncorrected since manufacture
//   rows_correctable rows_uncorrectable rows_pending rows_failed   remapped rows
//   throttle      the mask of reasons for slow clocks
//   temperature   in degrees Celsius
//   replays       the counter of PCIe replays
//   lost          with 1, the GPU is lost
//   xid           this Xid happens to it; such lines add up
#pragma once

#include <vector>

namespace simcuda::nvml {

long state(int device, const char* word, long otherwise);

struct Xid {
  int device;
  long number;
};
std::vector<Xid> xids();

}  // namespace simcuda::nvml
