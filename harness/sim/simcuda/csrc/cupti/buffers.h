// The buffers of the program: they are asked for when there is a record, filled, and given back.
//
// Records are written when they are complete, so no buffer has an incomplete one: a flush gives back all that there is,
// forced or not. A full buffer is given back at once, in the thread that filled it. The program's functions are called
// without a lock held: they may call CUPTI.
#pragma once

#include <cupti.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace simcuda::cupti {

void set_buffer_callbacks(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete);
bool has_buffer_callbacks();

// From when to when the program was asked for a buffer.
struct Request {
  std::uint64_t start, end;
};

// Nothing if the program was not asked. A record for which it has no buffer is dropped.
std::optional<Request> append(const void* record, std::size_t size);
// Returns when the program has all records so far.
void flush();
std::size_t take_dropped();  // how many records were dropped since it was last asked

// The record behind `*record`, or the first if that is null.
CUptiResult next(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record);

}  // namespace simcuda::cupti
