# Shared by the scripts of this folder: progress lines, Debian packages, builds. Sourced, never run.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
started=$SECONDS
bold= plain=
if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; fi

build_packages="g++ cmake ninja-build ccache pkg-config libzmq3-dev cppzmq-dev flatbuffers-compiler libflatbuffers-dev
libboost-dev nlohmann-json3-dev libspdlog-dev libyaml-cpp-dev libcli11-dev libutf8proc-dev libssl-dev python3 python3-pip"
test_packages="libgtest-dev libgmock-dev libpcre2-dev xz-utils"
fuzz_packages="clang-14 libclang-rt-14-dev"

step() { printf '%s[%4d s] %s%s\n' "$bold" $((SECONDS - started)) "$*" "$plain"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# install_packages YES PACKAGE...: installs what is missing; asks first unless YES is 1.
install_packages() {
  local yes=$1 missing=() package answer
  shift
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] && continue
    # python3 and pip may come from elsewhere than Debian.
    [ "$package" = python3 ] && command -v python3 >/dev/null && continue
    [ "$package" = python3-pip ] && python3 -m pip --version >/dev/null 2>&1 && continue
    missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  command -v apt-get >/dev/null || fail "missing: ${missing[*]}; install them with your package manager (this script knows apt-get only)"
  step "Debian packages to install: ${missing[*]}"
  if [ "$yes" != 1 ]; then
    [ -t 0 ] || fail "no terminal to ask on; run again with --yes"
    read -r -p "Install them now? [Y/n] " answer
    case "$answer" in n* | N*) fail "nothing was installed" ;; esac
  fi
  local sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -q -o Dpkg::Use-Pty=0 >/dev/null || fail "apt-get update failed"
  # Not `apt-get -qq`: the user should see that something happens.
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q -o Dpkg::Use-Pty=0 --no-install-recommends "${missing[@]}" |
    grep --line-buffered -E '^(Get:|Setting up|Err)' | cut -c1-100 || true
  for package in "${missing[@]}"; do
    dpkg-query -W "$package" >/dev/null 2>&1 || fail "package $package could not be installed"
  done
}

# build PRESET [CMAKE_OPTION...] -- [TARGET...]: configures if needed and builds with progress.
# A new build tree has neither tests nor benchmarks unless an option says so: they need more packages. An old one keeps
# what it has.
build() {
  local preset=$1 options=()
  shift
  command -v cmake >/dev/null && command -v ninja >/dev/null ||
    fail "the build tools are missing; scripts/quickstart installs them"
  [ -f "$root/build/$preset/CMakeCache.txt" ] || options=(-DRINGMASTER_TESTS=OFF -DRINGMASTER_BENCH=OFF)
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  cmake --preset "$preset" -S "$root" "${options[@]}" >"$root/build-$preset.log" 2>&1 ||
    { tail -20 "$root/build-$preset.log"; fail "cmake failed; whole output in build-$preset.log"; }
  rm -f "$root/build-$preset.log"
  NINJA_STATUS="[%f/%t] " ninja -C "$root/build/$preset" "$@"
}
