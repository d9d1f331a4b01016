// SIMCUDA_TRACE=1 prints the number of calls to stderr at the end of the process, and refusals as they happen.
#pragma once

#include <string>

namespace simcuda {

bool tracing();
void count(const char* kind, const std::string& name);  // has no effect without SIMCUDA_TRACE
void count(const char* kind, const char* name);
void note(const std::string& line);  // has no effect without SIMCUDA_TRACE
void print_trace();

}  // namespace simcuda
