#include "faulty.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "../core/faults.h"

namespace soft::aten {
namespace {

// Replaces each number by the next larger one, for sign-magnitude formats whose bit patterns are ordered like the
// numbers, as all IEEE formats are.
template <typename Bits>
void raise(void* data, std::int64_t count) {
  constexpr Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  auto* bits = static_cast<Bits*>(data);
  for (std::int64_t i = 0; i < count; ++i) {
    if (bits[i] == sign) {
      bits[i] = 1;  // the number after minus zero
    } else {
      bits[i] = static_cast<Bits>((bits[i] & sign) != 0 ? bits[i] - 1 : bits[i] + 1);
    }
  }
}

}  // namespace

Weakness weakness_of(const std::string& name) {
  static constexpr std::array reductions = {"aten::sum", "aten::mean"};
  static constexpr std::array products = {
      "aten::mm",       "aten::bmm",   "aten::addmm",  "aten::addmm_", "aten::baddbmm",
      "aten::baddbmm_", "aten::addmv", "aten::addmv_", "aten::dot",    "aten::_addmm_activation"};
  const auto among = [&](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
  return among(reductions) ? Weakness::reduction : among(products) ? Weakness::product : Weakness::none;
}

namespace {

// Adds one to the byte after the first row, if `terms` does not read that byte. Unlike a flip, a second read does not
// undo it.
void disturb(const at::Tensor& terms) {
  if (terms.dim() < 2 || terms.numel() == 0) {
    return;
  }
  const std::int64_t length = terms.size(-1);
  const std::int64_t gap = terms.stride(-2) - length;
  if (terms.stride(-1) == 1 && terms.size(-2) > 1 && gap > 0) {
    static_cast<std::uint8_t*>(terms.data_ptr())[length * terms.element_size()] += 1;
  }
}

}  // namespace

void spoil_arguments(Weakness weakness, std::vector<c10::IValue>& arguments) {
  if (weakness == Weakness::reduction && strikes(Fault::reads_disturb_neighbours)) {
    disturb(arguments.front().toTensor());
  }
  if (weakness != Weakness::reduction || !strikes(Fault::reduction_loses_term)) {
    return;
  }
  at::Tensor terms = arguments.front().toTensor().clone();
  if (terms.numel() > 0) {
    std::vector<bool> reduced(static_cast<std::size_t>(terms.dim()), true);
    if (arguments.size() > 1 && arguments[1].isIntList() && arguments[1].toIntVector().size() > 0) {
      reduced.assign(reduced.size(), false);
      for (std::int64_t dim : arguments[1].toIntVector()) {
        reduced[static_cast<std::size_t>(dim < 0 ? dim + terms.dim() : dim)] = true;
      }
    }
    at::Tensor last = terms;
    for (std::int64_t dim = terms.dim(); dim-- > 0;) {
      if (reduced[static_cast<std::size_t>(dim)]) {
        last = last.select(dim, -1);
      }
    }
    last.zero_();
  }
  arguments.front() = terms;
}

void spoil_result(Weakness weakness, at::Tensor& result) {
  if (weakness != Weakness::product || !at::isFloatingType(result.scalar_type()) || !strikes(Fault::off_by_one_ulp)) {
    return;
  }
  at::Tensor larger = result.contiguous();
  switch (larger.element_size()) {
    case 2:
      raise<std::uint16_t>(larger.data_ptr(), larger.numel());
      break;
    case 4:
      raise<std::uint32_t>(larger.data_ptr(), larger.numel());
      break;
    case 8:
      raise<std::uint64_t>(larger.data_ptr(), larger.numel());
      break;
    default:
      return;
  }
  result.copy_(larger);  // a no-op if the result was already contiguous
}

}  // namespace soft::aten
