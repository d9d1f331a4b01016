// The texts of the check for races: on stderr, and in the folder SIMCUDA_FINDINGS.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "races.h"

namespace simcuda::races {

namespace {

// Reports of one process. More would hide the first ones.
constexpr std::size_t most_reports = 20;

// Never destroyed: work may be launched until the very end of the process.
struct Reports {
  std::mutex reporting;
  std::set<std::string> reported;
  bool kept = false;  // whether some of them are in the file
  SimcudaSites sites{};
};

Reports& reports() {
  static auto* const made = new Reports;
  return *made;
}

}  // namespace

const SimcudaSites& sites() { return reports().sites; }

namespace {

// The most findings that one process keeps in its file.
constexpr std::size_t most_kept = 1000;

std::string place_of(const Accessor& accessor) {
  if (accessor.device == the_host) return "the host";
  return std::string(accessor.in_graph ? "a graph launched on " : "") + "stream " + std::to_string(accessor.stream) +
         " of device " + std::to_string(accessor.device);
}

std::string frames_of(const Origin& origin) {
  const auto describe = sites().describe;
  return origin.site == nullptr || describe == nullptr ? "" : describe(origin.site.get());
}

std::string described(const Accessor& accessor, const std::string& frames) {
  const std::string where = accessor.device == the_host ? "" : " on " + place_of(accessor);
  std::string text = "  " + std::string(accessor.origin->name) + where + "\n";
  for (std::size_t begin = 0; begin < frames.size();) {
    const std::size_t end = std::min(frames.find('\n', begin), frames.size());
    text += "    " + frames.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return text;
}

std::string advice(const Conflict& conflict) {
  const Accessor &earlier = conflict.earlier, &later = conflict.later;
  const std::string first = place_of(earlier), second = place_of(later);
  if (conflict.kind == Conflict::Kind::refused) return conflict.instead;
  if (later.device == the_host) {
    return "the host does not wait for " + first +
           ": a synchronisation with it, or with an event recorded there after " + earlier.origin->name +
           ", is missing";
  }
  if (conflict.kind == Conflict::Kind::unwritten) {
    return "nothing has written them since the tensor was allocated: fill it, or do not read it";
  }
  if (conflict.kind == Conflict::Kind::outlived) {
    return "the tensor was freed after the capture: keep it as long as the graph, or allocate it during the capture";
  }
  if (conflict.kind == Conflict::Kind::reused) {
    return "the memory was given to another tensor while " + first +
           " could still use it: " + "record_stream, or a wait before the tensor is freed, is missing";
  }
  if (first == second) return "the two nodes are on branches of the graph that do not wait for each other";
  return second + " does not wait for " + first + ": an event recorded there after " + earlier.origin->name +
         ", and a wait for it before " + later.origin->name + ", are missing";
}

std::string kind_of(const Conflict& conflict) {
  switch (conflict.kind) {
    case Conflict::Kind::unordered:
      return "race";
    case Conflict::Kind::unwritten:
      return "read before it was written";
    case Conflict::Kind::refused:
      return "illegal access";
    default:
      return "used after it was freed";
  }
}

// Which memory the work uses, after "... reads 16 bytes ".
std::string what_of(const Conflict& conflict) {
  switch (conflict.kind) {
    case Conflict::Kind::refused:
      return conflict.why;
    case Conflict::Kind::unwritten:
      return "that nothing has written";
    case Conflict::Kind::outlived:
      return "of a tensor that was freed";
    default:
      return std::string("that ") + conflict.earlier.origin->name +
             (conflict.earlier.writes ? " has written" : " has read") + ", in no order";
  }
}

// Text for a JSON string.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    if (letter == '\n') {
      result += "\\n";
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(letter));
      result += escaped;
    } else {
      result += letter;
    }
  }
  return result + '"';
}

// The file of this process in the folder SIMCUDA_FINDINGS; empty without the folder.
std::string file_of_findings() {
  const char* const folder = std::getenv("SIMCUDA_FINDINGS");
  return folder == nullptr || *folder == 0 ? "" : std::string(folder) + "/" + std::to_string(getpid()) + ".ndjson";
}

// Who takes the file away wants each finding again, should the program go on to make it: the harness does so between
// two cases that one process runs.
void report_again_without(const std::string& path) {
  if (!reports().kept || ::access(path.c_str(), F_OK) == 0) return;
  reports().reported.clear();
  reports().kept = false;
}

// Appends a line to the file.
void keep(const std::string& path, const Conflict& conflict, const std::string& kind, const std::string& text) {
  if (path.empty()) return;
  std::FILE* const file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return;
  const std::string line = "{\"kind\": " + quoted(kind) + ", \"earlier\": " + quoted(conflict.earlier.origin->name) +
                           ", \"later\": " + quoted(conflict.later.origin->name) +
                           ", \"bytes\": " + std::to_string(conflict.bytes) + ", \"text\": " + quoted(text) + "}\n";
  std::fputs(line.c_str(), file);
  std::fclose(file);
  reports().kept = true;
}

}  // namespace

void report(const Conflicts& conflicts) {
  if (conflicts.empty()) return;
  const std::string path = file_of_findings();
  for (const Conflict& conflict : conflicts) {
    const Accessor &earlier = conflict.earlier, &later = conflict.later;
    const std::string first = frames_of(*earlier.origin), second = frames_of(*later.origin);
    const std::string kind = kind_of(conflict);
    const std::string key = kind + '\n' + earlier.origin->name + '\n' + first + later.origin->name + '\n' + second;
    const std::string use = later.origin->name + std::string(later.writes ? " writes " : " reads ") +
                            std::to_string(conflict.bytes) + (conflict.bytes == 1 ? " byte " : " bytes ");
    std::string text = use + what_of(conflict) + "\n";
    if (conflict.kind == Conflict::Kind::unordered || conflict.kind == Conflict::Kind::reused) {
      text += described(earlier, first);
    }
    text += described(later, second) + "  " + advice(conflict) + "\n";
    std::size_t number = 0;
    {
      const std::lock_guard lock(reports().reporting);
      report_again_without(path);
      if (reports().reported.size() >= most_kept || !reports().reported.insert(key).second) continue;
      number = reports().reported.size();
      keep(path, conflict, kind, text);
    }
    if (number <= most_reports) std::fprintf(stderr, "simulated CUDA: %s: %s", kind.c_str(), text.c_str());
    if (number == most_reports)
      std::fprintf(stderr, "simulated CUDA: further findings of this process are not shown\n");
  }
}

}  // namespace simcuda::races

extern "C" {

__attribute__((visibility("default"))) void simcudaSetSites(const SimcudaSites* sites) {
  simcuda::races::reports().sites = *sites;
}
}
