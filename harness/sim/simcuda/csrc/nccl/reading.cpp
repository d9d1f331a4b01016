// The result of a call, computed from the data that all ranks have posted.

#include <cstring>
#include <vector>

#include "communicator.h"
#include "cuda.h"
#include "faults.h"

namespace simcuda::nccl {

namespace {

constexpr std::size_t large_bytes = std::size_t{64} << 10;

}  // namespace

void Communicator::read(const Call& call, std::uint64_t number) {
  const std::size_t element = size_of(call.type), part = call.count * element;
  const std::size_t bytes = output_elements(call) * element;
  if (bytes == 0 || !accessible(device_, call.to, bytes)) return;
  auto* const to = static_cast<char*>(call.to);
  // A rank's data, from the equal part with index `place` on.
  const auto data = [&](int rank, int place = 0) {
    return reinterpret_cast<const char*>(&announcement(call, rank, number) + 1) +
           static_cast<std::size_t>(place) * part;
  };
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
    case Kind::reduce_scatter: {
      const int place = call.kind == Kind::reduce_scatter ? rank_ : 0;
      const int ranks = ranks_ > 1 && strikes(Fault::reduction_loses_rank) ? ranks_ - 1 : ranks_;
      std::memcpy(to, data(0, place), part);
      for (int rank = 1; rank < ranks; ++rank) combine(call.reduction, call.type, to, data(rank, place), call.count);
      if (call.reduction.divided) divide(call.type, to, call.count, ranks_);
      break;
    }
    case Kind::broadcast: {
      const bool stale = strikes(Fault::broadcast_stale);
      std::vector<char> fresh(data(call.root), data(call.root) + part);
      if (!stale || call.root == rank_) {
        std::memcpy(to, fresh.data(), part);
      } else if (last_broadcast_.size() >= part) {
        std::memcpy(to, last_broadcast_.data(), part);
      }
      if (stale) last_broadcast_ = std::move(fresh);
      break;
    }
    case Kind::all_gather:
    case Kind::gather:
    case Kind::all_to_all: {
      const int turned = ranks_ > 1 && strikes(Fault::ranks_out_of_order) ? 1 : 0;
      for (int rank = 0; rank < ranks_; ++rank) {
        const int source = (rank + turned) % ranks_;
        std::memcpy(to + static_cast<std::size_t>(rank) * part, data(source, call.kind == Kind::all_to_all ? rank_ : 0),
                    part);
      }
      break;
    }
    case Kind::scatter:
      std::memcpy(to, data(call.root, rank_), part);
      break;
    case Kind::receive:
      std::memcpy(to, data(call.root), part);
      break;
    case Kind::send:
      break;
  }
  if (bytes >= large_bytes && rank_ == ranks_ - 1 && strikes(Fault::large_buffer_corrupted)) to[bytes / 2 + 1] ^= 1;
}

}  // namespace simcuda::nccl
