# The first process of a rented container: it starts an SSH server, and holds the lease until the container ends itself.
#
#   sh container.sh start    as the container's command
#   sh container.sh end      ends it: run by the lease, as the program "poweroff"
#
# `machine_start.py` writes the variables before this: host_key, client_key, lease_sh, lease_s, grace_s, lifetime_s, port;
# and the function end_itself, by which a cloud deletes the container. No init system is there, and perhaps no sshd, which is
# installed then. The lease is `lease.sh`, and it is the first process: while it is there, nothing else that dies ends the
# container, and it takes in the children of processes that have died. OUTRIDER_ROOT is for tests.

folder=$OUTRIDER_ROOT/run/outrider
export PATH="$folder/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin"

call() { # METHOD URL HEADER: a request over HTTP, which fails where it is not answered with success
    if command -v curl >/dev/null; then
        curl -fsS -m 30 -o /dev/null -X "$1" -H "$3" "$2"
    else
        python3 -c '
import sys, urllib.request as r
method, url, header = sys.argv[1:]
name, _, value = header.partition(": ")
r.urlopen(r.Request(url, method=method, headers={name: value}), timeout=30)' "$@"
    fi
}

complete() {
    command -v sshd >/dev/null && command -v ssh-keygen >/dev/null &&
        { command -v curl >/dev/null || command -v python3 >/dev/null; }
}

install() {
    if command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update
        apt-get -qqy install --no-install-recommends openssh-server curl ca-certificates
    elif command -v apk >/dev/null; then
        apk add openssh curl
    else
        for each in dnf microdnf yum zypper; do
            if command -v $each >/dev/null; then $each -y install openssh-server curl; fi
        done
    fi
}

settings() {
    echo "Port $port"
    echo "HostKey $OUTRIDER_ROOT/etc/ssh/ssh_host_ed25519_key"
    echo "AuthorizedKeysFile $folder/authorized_keys"
    echo 'PasswordAuthentication no'
    echo 'KbdInteractiveAuthentication no'
    echo 'PermitRootLogin prohibit-password'
    echo 'UsePAM no'
    echo 'PidFile none'
    echo 'Subsystem sftp internal-sftp'
    # What the image and the host say of programs and GPUs. Anything else stays here, as keys of the cloud may be in it.
    set="$(env | grep -E '^(PATH|LD_LIBRARY_PATH|LANG|LC_ALL|(CUDA|NCCL|NVIDIA)_[A-Z_]+)=[^"\\]*$' | sed 's/.*/"&"/' | tr '\n' ' ')"
    echo "SetEnv $set"
}

serve() {
    until complete; do
        install
        complete || sleep 5
    done
    # What Debian's package does: a user for the part that speaks with strangers. Root must not be locked: keys alone open it.
    grep -q '^sshd:' "$OUTRIDER_ROOT/etc/passwd" || echo 'sshd:x:74:74::/run/sshd:/bin/false' >>"$OUTRIDER_ROOT/etc/passwd"
    if [ -e "$OUTRIDER_ROOT/etc/shadow" ]; then sed -i 's/^root:!*:/root:*:/' "$OUTRIDER_ROOT/etc/shadow"; fi
    settings >"$folder/sshd_config"
    while :; do
        "$(command -v sshd)" -D -e -f "$folder/sshd_config"
        sleep 1
    done
}

start() {
    umask 022
    mkdir -p "$folder/bin" "$OUTRIDER_ROOT/run/sshd" "$OUTRIDER_ROOT/etc/ssh"
    rm -f "$folder/over" "$OUTRIDER_ROOT/etc/ssh/ssh_host_ed25519_key" # of a container that was stopped and started
    (umask 077 && printf '%s\n' "$host_key" >"$OUTRIDER_ROOT/etc/ssh/ssh_host_ed25519_key")
    printf '%s\n' "$client_key" >"$folder/authorized_keys"
    printf '%s\n' "$lease_sh" >"$folder/lease.sh"
    printf '#!/bin/sh\nexec sh %s/container.sh end\n' "$folder" >"$folder/bin/poweroff"
    printf '#!/bin/sh\nexit 1\n' >"$folder/bin/shutdown" # what the lease tries next; the image's own deletes nothing
    chmod 755 "$folder/bin/poweroff" "$folder/bin/shutdown"
    serve </dev/null >"$folder/log" 2>&1 &
    up=0
    read -r up _ </proc/uptime
    exec sh "$folder/lease.sh" watch "$lease_s" "$grace_s" "$lifetime_s" "${up%%.*}"
}

end() {
    case $(tr '\0' ' ' </proc/1/cmdline) in
    *"$folder/lease.sh watch"*) # and not of a whole computer
        if [ ! -e "$folder/over" ]; then
            : >"$folder/over"
            kill -s KILL -- -1 # all but the lease and this
        fi
        ;;
    esac
    end_itself
}

"$@"
