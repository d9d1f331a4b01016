// Page sizes, in bytes.
#pragma once

#include <cstddef>

namespace simcuda {

constexpr std::size_t page_size = 4096, huge_page_size = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t size, std::size_t to) { return (size + to - 1) / to * to; }

}  // namespace simcuda
