#include "tokenizer-worker/template/arena.h"

#include <algorithm>

namespace ringmaster::tokenizer_worker::jinja {
namespace {
// A short chat fits the first; later ones double up to the largest, so that chunks stay few and waste small.
constexpr size_t kFirstChunk = 16 << 10;
constexpr size_t kLargestChunk = 1 << 20;
// Texts shorter than this are copied faster than they are kept extensible.
constexpr size_t kExtensible = 512;
}  // namespace

void Arena::grow(size_t bytes) {
  const size_t usual = std::min(kLargestChunk, kFirstChunk << std::min<size_t>(chunks_.size(), 6));
  const size_t size = std::max(bytes, usual);
  chunks_.push_back(std::make_unique_for_overwrite<char[]>(size));
  next_ = chunks_.back().get();
  end_ = next_ + size;
  used_ += size;
}

char* Arena::text_after(std::string_view prefix, size_t size) {
  if (!prefix.empty() && prefix.data() + prefix.size() == text_end_ &&
      size - prefix.size() <= static_cast<size_t>(text_capacity_ - text_end_)) {
    char* first = text_end_ - prefix.size();
    text_end_ = first + size;
    return first;
  }
  const size_t room = size < kExtensible ? size : size + size / 2;
  char* first = static_cast<char*>(allocate(room, 1));
  if (!prefix.empty()) std::memcpy(first, prefix.data(), prefix.size());
  text_end_ = first + size;
  text_capacity_ = first + room;
  return first;
}

}  // namespace ringmaster::tokenizer_worker::jinja
