// The program's buffers: they are requested when there is a record, filled, and returned.
//
// Records are written when they are complete, so no buffer contains an incomplete record: each flush, forced or not,
// returns all records. The thread that fills a buffer returns it immediately. The program's functions are called
// without a lock held, since they may call CUPTI.
#pragma once

#include <cupti.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace simcuda::cupti {

void set_buffer_callbacks(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete);
bool has_buffer_callbacks();

// The start and end of a request for a buffer.
struct Request {
  std::uint64_t start, end;
};

// Returns nothing if no buffer was requested. A record for which the program provides no buffer is dropped.
std::optional<Request> append(const void* record, std::size_t size);
// Returns once the program has all records so far.
void flush();
std::size_t take_dropped();  // number of records dropped since the last call

// Sets `*record` to the record after `*record`, or to the first record if it is null.
CUptiResult next(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record);

}  // namespace simcuda::cupti
