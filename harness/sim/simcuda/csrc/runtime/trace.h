// SIMCUDA_TRACE=1: what was called how often, told to stderr at the end of the process, and refusals as they happen.
#pragma once

#include <string>

namespace simcuda {

bool tracing();
void count(const char* kind, const std::string& name);  // does nothing while nobody traces
void count(const char* kind, const char* name);
void note(const std::string& line);  // the same
void print_trace();

}  // namespace simcuda
