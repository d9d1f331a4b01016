// How the source of a module travels in its image, between the simulated NVRTC, which puts it there, and the driver.
//
// A cubin is an ELF file that has a mark in the padding of its identification, and the source after its end. PTX has
// the source in comments at its end, as digits of base 16. A GPU's driver ignores both.
//
// The source is a list of fields: a key, a space, the number of bytes, a line break, the bytes, a line break.
#pragma once

#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace simcuda::image {

constexpr char mark[] = "SIMCUDA";  // of seven bytes, as the padding
constexpr std::size_t mark_place = 9, mark_bytes = 7;
constexpr std::string_view comment = "\n//simcuda ";

inline void add_field(std::string& fields, const char* key, std::string_view value) {
  fields.append(key).append(" ").append(std::to_string(value.size())).append("\n").append(value).append("\n");
}

inline bool is_elf(const void* image) { return std::memcmp(image, ELFMAG, SELFMAG) == 0; }

// Returns the bytes of an ELF file in memory, from its tables.
inline std::size_t elf_bytes(const void* image) {
  const auto* const base = static_cast<const char*>(image);
  Elf64_Ehdr header;
  std::memcpy(&header, base, sizeof header);
  std::size_t end = std::max<std::size_t>(header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize,
                                          header.e_phoff + std::size_t{header.e_phnum} * header.e_phentsize);
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, base + header.e_shoff + std::size_t{i} * header.e_shentsize, sizeof section);
    if (section.sh_type != SHT_NOBITS) end = std::max<std::size_t>(end, section.sh_offset + section.sh_size);
  }
  return end;
}

// Returns a cubin with the fields; the cubin itself if its size is not that of its tables.
inline std::string with_fields_elf(std::string image, std::string_view fields) {
  if (image.size() < sizeof(Elf64_Ehdr) || !is_elf(image.data()) || elf_bytes(image.data()) != image.size()) {
    return image;
  }
  image.replace(mark_place, mark_bytes, mark, mark_bytes);
  const std::uint64_t length = fields.size();
  image.append(reinterpret_cast<const char*>(&length), sizeof length);
  return image.append(fields);
}

// `text`: PTX, without the 0 at its end.
inline std::string with_fields_text(std::string text, std::string_view fields) {
  constexpr char digits[] = "0123456789abcdef";
  constexpr std::size_t in_a_line = 4096;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i % in_a_line == 0) text.append(comment);
    const auto byte = static_cast<unsigned char>(fields[i]);
    text.push_back(digits[byte >> 4]);
    text.push_back(digits[byte & 15]);
  }
  return text.append("\n");
}

// Returns the fields of an image; empty if it has none.
inline std::string fields_of(const void* image) {
  const auto* const base = static_cast<const char*>(image);
  if (is_elf(image)) {
    if (std::memcmp(base + mark_place, mark, mark_bytes) != 0) return {};
    const std::size_t end = elf_bytes(image);
    std::uint64_t length = 0;
    std::memcpy(&length, base + end, sizeof length);
    return std::string(base + end + sizeof length, length);
  }
  std::string fields;
  const std::string_view text(base);
  const auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  for (auto place = text.find(comment); place != std::string_view::npos; place = text.find(comment, place + 1)) {
    std::string_view line = text.substr(place + comment.size());
    line = line.substr(0, line.find('\n'));
    for (std::size_t i = 0; i + 1 < line.size(); i += 2) {
      fields.push_back(static_cast<char>(value(line[i]) << 4 | value(line[i + 1])));
    }
  }
  return fields;
}

}  // namespace simcuda::image
