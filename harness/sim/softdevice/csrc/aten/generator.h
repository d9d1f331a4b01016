// The device's generator: a seed, and a counter from which each random operation takes numbers.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "../core/graph.h"
#include "common.h"

namespace soft::aten {

class SoftGenerator final : public c10::GeneratorImpl {
 public:
  explicit SoftGenerator(c10::DeviceIndex device);

  static c10::DeviceType device_type() { return kSoft; }

  void set_current_seed(std::uint64_t seed) override;  // also resets the counter
  std::uint64_t current_seed() const override;
  std::uint64_t seed() override;
  void set_offset(std::uint64_t offset) override;
  std::uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& new_state) override;  // 16 bytes: seed, offset
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // From now on, the other generator shares this one's seed and counter.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  // Shared by all generators with this state. The seed is also a counter, from which nothing is taken, so that a
  // graph's replay uses the seed as it was when the replay was launched.
  const std::shared_ptr<Counter>& counter() const { return counter_; }
  const std::shared_ptr<Counter>& seed_counter() const { return seed_; }

 private:
  SoftGenerator* clone_impl() const override;

  std::shared_ptr<Counter> seed_;
  std::shared_ptr<Counter> counter_;
};

const at::Generator& default_generator(c10::DeviceIndex device);

// Takes random numbers at the launch, or from the capture if `stream` is capturing. The work calls the returned
// function in the stream's thread, and gets its own CPU generator, seeded with seed and offset.
std::function<at::Generator()> draw(const std::optional<at::Generator>& generator, Stream& stream);

}  // namespace soft::aten
