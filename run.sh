#!/bin/sh
# Builds ngx_http_moe and runs it.
#
#   ./run.sh [MODEL]      serve MODEL (a directory in Hugging Face format or a GGUF file; default:
#                         the demo model) on http://127.0.0.1:8080; PORT, THREADS and CONTEXT in the
#                         environment change the port, the engine's threads and its context
#   ./run.sh test         build and run all tests
#   ./run.sh sanitize     unit and server tests with ASan and UBSan
#   ./run.sh fuzz         every fuzz target for a short time
#   ./run.sh bench        build and measure
#   ./run.sh build        build only
#
# Missing Debian packages are installed with apt-get, as root or through sudo.

set -eu
cd "$(dirname "$0")"

build_packages="gcc make libc6-dev nginx-light nginx-dev libjansson-dev libpcre2-dev libssl-dev
    libutf8proc-dev libhwloc-dev curl"
fuzz_packages="clang libclang-rt-14-dev"
test_packages="libcmocka-dev perl libio-socket-ssl-perl libprotocol-http2-perl openssl procps
    prometheus"

say() {
    printf '%s\n' "run.sh: $*" >&2
}

fail() {
    say "$*"
    exit 1
}

# Debian's nginx-light, -full and -extras all carry /usr/sbin/nginx: any of them will do.
missing() {
    for package in "$@"; do
        case $package in
        nginx-light)
            [ -x /usr/sbin/nginx ] && continue
            ;;
        esac
        dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed$' ||
            printf '%s ' "$package"
    done
}

install() {
    command -v apt-get >/dev/null || fail "no apt-get here: install the equivalents of: $*"
    needed=$(missing "$@")
    [ -z "$needed" ] && return
    as_root=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || fail "as root, please: apt-get install $needed"
        as_root=sudo
    fi
    say "installing $needed"
    # A package's own service must not take port 80 on this machine.
    policy=
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        policy=/usr/sbin/policy-rc.d
        printf '#!/bin/sh\nexit 101\n' | $as_root tee $policy >/dev/null
        $as_root chmod 755 $policy
    fi
    status=0
    { $as_root apt-get -qq update &&
        $as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq install -y --no-install-recommends $needed >/dev/null; } >&2 || status=$?
    [ -z "$policy" ] || $as_root rm -f "$policy"
    [ $status = 0 ] || fail "apt-get could not install: $needed"
}

build() {
    make -s -j"$(nproc)" all
}

# What a model is told by: its GGUF file, config.json, or the GGUF file of its directory.
model_file() {
    for file in "$1" "$1/config.json" "$1"/*.gguf; do
        if [ -f "$file" ]; then
            printf '%s' "$file"
            return
        fi
    done
    return 1
}

# nginx's workers and the engine run as an ordinary user who can read the model; where nobody can
# (a checkout in root's home), as the owner of the checkout.
choose_user() {
    for user in www-data nobody "$(stat -c %U .)"; do
        if setpriv --reuid "$user" --clear-groups test -r "$(model_file "$1")" 2>/dev/null &&
            setpriv --reuid "$user" --clear-groups test -x build/moe-engine 2>/dev/null; then
            printf '%s' "$user"
            return
        fi
    done
    printf root
}

configure() {
    sed -e "s|listen 8080|listen $port|" -e "s|build/run/|$run/|" \
        -e "s|moe_model demo conf/models/nginx-directives-moe |moe_model demo \"$model\" |" \
        conf/demo.conf >"$run/demo.conf"
    [ -z "${THREADS:-}" ] ||
        sed -i "s|^\( *\)context [0-9]*;|\1threads $THREADS;\n&|" "$run/demo.conf"
    if [ -n "${CONTEXT:-}" ]; then
        sed -i "s|context [0-9]*;|context $CONTEXT;|" "$run/demo.conf"
    elif [ "$model" != "$demo_model" ]; then
        sed -i "/^ *context [0-9]*;/d" "$run/demo.conf"
    fi
    [ "$model" = "$demo_model" ] || sed -i "/# The demo model was trained/d" "$run/demo.conf"
    if [ "$(id -u)" = 0 ]; then
        user=$(choose_user "$model")
        [ "$user" != root ] || say "only root can read $model here, so it is served as root"
        sed -i "1i user $user;" "$run/demo.conf"
    fi
}

wait_ready() {
    while kill -0 "$nginx" 2>/dev/null; do
        health=$(curl -s -m 2 "http://127.0.0.1:$port/health" || true)
        case $health in
        *'"ok"'*)
            return 0
            ;;
        *failed*)
            say "$health"
            status=1
            kill -QUIT "$nginx"
            return 1
            ;;
        esac
        sleep 0.1
    done
    return 1
}

serve() {
    port=${PORT:-8080}
    demo_model=$PWD/conf/models/nginx-directives-moe
    model=$(realpath -- "${1:-$demo_model}") || exit 1
    model_file "$model" >/dev/null ||
        fail "$model: neither a GGUF file nor a directory with a config.json or a GGUF file"
    curl -s -m 2 -o /dev/null "http://127.0.0.1:$port/" &&
        fail "port $port is taken: choose another one, as in PORT=9000 ./run.sh"
    run=build/run/$port
    mkdir -p "$run"
    configure
    /usr/sbin/nginx -p "$PWD" -e "$run/error.log" -c "$run/demo.conf" -g 'daemon off;' &
    nginx=$!
    trap 'kill -QUIT $nginx 2>/dev/null' INT TERM
    if wait_ready; then
        cat <<EOF

Serving $model on http://127.0.0.1:$port (log: $run/error.log; stop with Ctrl-C). Try:

curl -N http://127.0.0.1:$port/v1/chat/completions -d '{"messages":[{"role":"user","content":"What is the default of keepalive_timeout?"}],"stream":true}'

EOF
    fi
    # A signal ends wait before nginx.
    while wait "$nginx" || status=$?; kill -0 "$nginx" 2>/dev/null; do
        :
    done
    exit "${status:-0}"
}

case ${1:-} in
test)
    install $build_packages $test_packages
    build
    exec make -s test
    ;;
sanitize)
    install $build_packages $test_packages
    exec make -s -j"$(nproc)" sanitize
    ;;
fuzz)
    install $build_packages $fuzz_packages
    exec make -s -j"$(nproc)" fuzz
    ;;
bench)
    install $build_packages $test_packages
    build
    exec make -s bench
    ;;
build)
    install $build_packages
    build
    ;;
-*)
    sed -n '2,13s/^# \{0,1\}//p' "$0"
    ;;
*)
    install $build_packages
    build
    serve "$@"
    ;;
esac
