#include "generator.h"

#include <ATen/Utils.h>
#include <c10/core/DispatchKeySet.h>

#include <array>
#include <cstring>
#include <mutex>
#include <vector>

#include "../operators/random.h"

namespace soft::aten {
namespace {

// CUDA's generators advance in steps of four, and programs rely on it.
constexpr std::uint64_t numbers_per_draw = 4;

using State = std::array<std::uint64_t, 2>;  // seed, offset

}  // namespace

SoftGenerator::SoftGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(kSoft, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(std::make_shared<Counter>()),
      counter_(std::make_shared<Counter>()) {
  seed_->set(c10::default_rng_seed_val);
}

void SoftGenerator::set_current_seed(std::uint64_t seed) {
  seed_->set(seed);
  counter_->set(0);
}

std::uint64_t SoftGenerator::current_seed() const { return seed_->place(); }

std::uint64_t SoftGenerator::seed() {
  const std::uint64_t drawn = c10::detail::getNonDeterministicRandom(true);
  set_current_seed(drawn);
  return drawn;
}

void SoftGenerator::set_offset(std::uint64_t offset) {
  TORCH_CHECK(offset % numbers_per_draw == 0, "a generator's offset must be a multiple of ", numbers_per_draw, ", got ",
              offset);
  counter_->set(offset);
}

std::uint64_t SoftGenerator::get_offset() const { return counter_->place(); }

void SoftGenerator::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  TORCH_CHECK(static_cast<std::size_t>(new_state.numel()) == sizeof(State), "a generator's state has ", sizeof(State),
              " bytes, got ", new_state.numel());
  State state;
  std::memcpy(state.data(), new_state.data(), sizeof state);
  TORCH_CHECK(state[1] % numbers_per_draw == 0, "a generator's offset must be a multiple of ", numbers_per_draw,
              ", got ", state[1]);
  set_current_seed(state[0]);
  counter_->set(state[1]);
}

c10::intrusive_ptr<c10::TensorImpl> SoftGenerator::get_state() const {
  const State state{seed_->place(), counter_->place()};
  const at::Tensor bytes = at::detail::empty_cpu({static_cast<std::int64_t>(sizeof state)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), state.data(), sizeof state);
  return bytes.getIntrusivePtr();
}

c10::intrusive_ptr<c10::GeneratorImpl> SoftGenerator::graphsafe_get_state() const {
  auto shared = c10::make_intrusive<SoftGenerator>(device().index());
  shared->seed_ = seed_;
  shared->counter_ = counter_;
  return shared;
}

void SoftGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  const auto* given = dynamic_cast<const SoftGenerator*>(other.get());
  TORCH_CHECK(given != nullptr && given->device() == device(), "expected the state of a generator of ", device());
  seed_ = given->seed_;
  counter_ = given->counter_;
}

SoftGenerator* SoftGenerator::clone_impl() const {
  auto* clone = new SoftGenerator(device().index());
  clone->seed_->set(seed_->place());
  clone->counter_->set(counter_->place());
  return clone;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = [] {  // never destroyed: Python's references to them live longer
    auto* made = new std::vector<at::Generator>();
    for (int index = 0; index < soft::device_count(); ++index) {
      made->push_back(at::make_generator<SoftGenerator>(static_cast<c10::DeviceIndex>(index)));
    }
    return made;
  }();
  return (*generators)[static_cast<std::size_t>(core_device(c10::Device(kSoft, device)).index())];
}

std::function<at::Generator()> draw(const std::optional<at::Generator>& generator, Stream& stream) {
  const auto index = static_cast<c10::DeviceIndex>(stream.device().index());
  auto* of = at::get_generator_or_default<SoftGenerator>(generator, default_generator(index));
  TORCH_CHECK(of->device().index() == index, "expected a generator of device ", static_cast<int>(index),
              ", got one of device ", static_cast<int>(of->device().index()));
  const std::lock_guard<std::mutex> lock(of->mutex_);
  return translated([&]() -> std::function<at::Generator()> {
    if (const std::shared_ptr<Capture> capture = stream.capture()) {
      const auto counter = of->counter();
      const auto seed = of->seed_counter();
      const std::uint64_t offset = capture->take(counter, numbers_per_draw);
      capture->take(seed, 0);
      return [counter, seed, offset] {
        return operators::cpu_generator(replay_place(seed.get()), replay_place(counter.get()) + offset);
      };
    }
    const std::uint64_t seed = of->current_seed();
    const std::uint64_t place = of->counter()->take(numbers_per_draw);
    return [seed, place] { return operators::cpu_generator(seed, place); };
  });
}

}  // namespace soft::aten
