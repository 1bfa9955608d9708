#!/bin/bash
# Runs the README's commands on a bare Debian 12 (minbase, python3, git, ca-certificates; no compiler, no SSH server), in
# a fresh clone of this checkout's last commit. Needs root and debootstrap, which it installs if it can.
#
#     tools/bare_debian.sh WHO LOG [COMMAND ...]
#
# WHO: root; user, an ordinary user without sudo; or sudoer, one with sudo and without a password. Each COMMAND, a line
# for the shell, is run in the clone; without any, the README's first line and both suites are. Prints the exit status
# and the seconds of each, and ends with that of the first one that fails.
#
# Environment: DL4J_DATA_DIR  MNIST's files, mounted read-only and passed on (unset: downloaded)
#              BARE_ROOT      where the root file systems go (/var/tmp/dl4jlegacy-bare); made once, then copied
#              BARE_CACHE     a folder kept between runs as pip's and Maven's cache (unset: everything is downloaded)
#              BARE_BUSY=N    N processes that keep the cores busy meanwhile
set -eu
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
user=$1 log=$(realpath -m "$2"); shift 2
case $user in root|user|sudoer) ;; *) echo "bare_debian.sh: $user is none of root, user, sudoer" >&2; exit 2 ;; esac
repo=$(cd "$(dirname "$0")/.." && pwd) place=${BARE_ROOT:-/var/tmp/dl4jlegacy-bare}
base=$place/base root=$place/$user-$$
if [ $# = 0 ]; then
    set -- './install && .venv/bin/dl4j train --model dbn --dataset digits --workers 4 --jobs-per-round 4' \
           './install dev && .venv/bin/python -m pytest' '.venv/bin/python -m pytest -m long'
fi
mkdir -p "$place"

if [ ! -e "$base/.complete" ]; then
    command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq debootstrap; } >/dev/null
    rm -rf "$base"
    debootstrap --variant=minbase --include=python3,git,ca-certificates bookworm "$base" http://deb.debian.org/debian
    # what this machine trusts and how it reaches its package index
    mkdir -p "$base/usr/local/share/ca-certificates"
    cp /usr/local/share/ca-certificates/*.crt "$base/usr/local/share/ca-certificates/" 2>/dev/null || true
    chroot "$base" update-ca-certificates >/dev/null
    [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$base/etc/pip.conf"
    touch "$base/.complete"
fi

trap 'rm -rf --one-file-system "$root"' EXIT
cp -a "$base" "$root"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
home=/root
if [ "$user" != root ]; then
    home=/home/$user
    chroot "$root" useradd --create-home --shell /bin/bash "$user"
fi
if [ "$user" = sudoer ]; then
    chroot "$root" sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends sudo' >/dev/null
    echo 'sudoer ALL=(ALL) NOPASSWD: ALL' > "$root/etc/sudoers.d/sudoer"
fi
git clone -q --no-hardlinks "$repo" "$root$home/dl4jlegacy"
chroot "$root" chown -R "$user:" "$home/dl4jlegacy"

settings=(HOME="$home" USER="$user" LOGNAME="$user" LANG=C.UTF-8 TERM=dumb
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
while IFS= read -r line; do
    case $line in
        PIP_FIND_LINKS=*) ;; # a folder that is not in there
        PIP_*|[Hh][Tt][Tt][Pp]_[Pp][Rr]*|[Hh][Tt][Tt][Pp][Ss]_[Pp][Rr]*|[Nn][Oo]_[Pp][Rr]*|SSL_CERT_*|REQUESTS_CA_BUNDLE=*|OPENBLAS_*) settings+=("$line") ;;
    esac
done < <(env)
[ -z "${DL4J_DATA_DIR:-}" ] || settings+=(DL4J_DATA_DIR=/srv/mnist)

inside() { # in namespaces of its own: mounts and processes end with it
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    if [ -e /dev/net/tun ]; then # for any user, as udev makes it where there is one
        [ -e "$root/tun" ] || mknod -m 666 "$root/tun" c 10 200 && mount --bind "$root/tun" "$root/dev/net/tun"
    fi
    mount --rbind /sys "$root/sys"
    if [ -n "${DL4J_DATA_DIR:-}" ]; then
        mkdir -p "$root/srv/mnist" && mount --bind "$DL4J_DATA_DIR" "$root/srv/mnist" && mount -o remount,ro,bind "$root/srv/mnist"
    fi
    if [ -n "${BARE_CACHE:-}" ]; then
        mkdir -p "$BARE_CACHE/$user" "$root$home/.cache" && mount --bind "$BARE_CACHE/$user" "$root$home/.cache"
        chroot "$root" chown "$user:" "$home/.cache"
    fi
    for _ in $(seq "${BARE_BUSY:-0}"); do (while :; do :; done) & done
    for command in "$@"; do
        echo "=== as $user: $command"
        start=$(date +%s) status=0
        chroot --userspec="$user" "$root" env -i "${settings[@]}" sh -c "cd ~/dl4jlegacy && $command" </dev/null || status=$?
        echo "=== exit status $status after $(($(date +%s) - start)) s: $command"
        [ $status = 0 ] || exit $status
    done
}

status=0
export -f inside; export root user home
export settings_text="$(declare -p settings)"
unshare --mount --pid --fork --kill-child bash -c 'set -eu; eval "$settings_text"; inside "$@"' bash "$@" >"$log" 2>&1 || status=$?
grep -E '^===|passed|failed' "$log" | grep -vE '^(FAILED|ERROR) ' || true
exit $status
