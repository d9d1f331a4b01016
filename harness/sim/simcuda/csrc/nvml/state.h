// Conditions that a test sets for the simulated devices, in the file that SIMCUDA_NVML_STATE names. Each call reads the
// file.
//
// A line is "<index> <word> <number>". The last line with the same index and word counts. Words:
//   ecc_corrected ecc_uncorrected ecc_aggregate   ECC counts: volatile, volatile, uncorrected since manufacture
//   rows_correctable rows_uncorrectable rows_pending rows_failed   remapped rows
//   throttle      the mask of reasons for slow clocks
//   temperature   in degrees Celsius
//   replays       the counter of PCIe replays
//   lost          1 if the GPU is lost
//   xid           an Xid of the device; such lines add up
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
