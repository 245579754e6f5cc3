# The first process of a container: it does nothing but keep the lease. When it ends, the kernel ends all others there,
# and Docker or Podman removes the container.
#
#   sh -c THIS outrider FILE LEASE_S GRACE_S LIFETIME_S
#
# Whoever touches FILE renews the lease. The container ends LEASE_S after the last renewal (or after its start: then
# GRACE_S more), and LIFETIME_S after its start whoever renews; 0 is for ever. All are whole seconds of the kernel's
# uptime. A renewal is a change of the file, whose times are compared with no clock; a file that is gone is not renewed.
#
# As a container's first process it also takes in the children of processes that have died: `wait` forgets them.

export TZ=UTC0 # what stat prints changes with the file alone
file=$1 lease=$2 dies=0 now=0
trap 'exit 143' TERM INT
trap '' HUP

uptime_s() { # where it cannot be read, time goes on by $1
    up=
    read -r up _ 2>/dev/null </proc/uptime
    case ${up%%.*} in
    '' | *[!0-9]*) now=$((now + $1)) ;;
    *) now=${up%%.*} ;;
    esac
}

look() {
    sleep 1 &
    wait $! # a signal ends it at once
    uptime_s 1
    found=$(stat -c '%i %y' "$file" 2>/dev/null)
    if [ "$found" ] && [ "$found" != "$seen" ]; then
        seen=$found
        ends=$((now + lease))
    fi
    if [ "$now" -ge "$ends" ] || { [ "$dies" -gt 0 ] && [ "$now" -ge "$dies" ]; }; then over=yes; fi
}

uptime_s 0
ends=$((now + lease + $3)) over=
if [ "$4" -gt 0 ]; then dies=$((now + $4)); fi
umask 000 # any user of the container renews
rm -f "$file"
touch "$file"
umask 022
seen=$(stat -c '%i %y' "$file" 2>/dev/null)
# Where dash and busybox cannot fork, they leave an eval, not the script.
while [ ! "$over" ]; do command eval look; done
